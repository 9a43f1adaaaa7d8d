"""Who touched what, against a plain record of every address and every order."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from anytpu.chip.checking.clocks import QueuePosition, VectorClocks
from anytpu.chip.checking.history import MemoryHistory
from anytpu.chip.isa.units import Unit

SIZE = 12
UNITS = st.sampled_from(list(Unit))
MASKS = st.integers(1, 31)
ACCESS = st.tuples(st.sampled_from(["read", "write"]), UNITS, st.integers(0, SIZE - 1), st.integers(1, 6))
SYNC = st.tuples(st.just("sync"), MASKS, MASKS)
WAIT = st.tuples(st.just("wait"))


class PlainOrder:
    """For each instruction the set of all that are surely done before it starts."""

    def __init__(self) -> None:
        self.before: list[set[int]] = []
        self.unit: list[int] = []
        self.of_unit: dict[int, list[int]] = {int(unit): [] for unit in Unit}
        self.pending: dict[int, set[int]] = {int(unit): set() for unit in Unit}

    def issue(self, unit: int) -> int:
        number = len(self.before)
        earlier = set(self.of_unit[unit]) | self.pending[unit]
        for one in list(earlier):
            earlier |= self.before[one]
        self.before.append(earlier)
        self.unit.append(unit)
        self.of_unit[unit].append(number)
        return number

    def sync(self, waiting: int, finished: int) -> None:
        done = {n for unit in Unit if finished >> unit & 1 for n in self.of_unit[unit]}
        for unit in Unit:
            if waiting >> unit & 1:
                self.pending[unit] |= done


@settings(max_examples=400, deadline=None)
@given(st.lists(st.one_of(ACCESS, ACCESS, ACCESS, SYNC, WAIT), max_size=25))
def test_conflicts_are_those_of_the_plain_record(steps: list[tuple]):
    clocks, plain = VectorClocks(), PlainOrder()
    history = MemoryHistory(SIZE, clocks.is_done)
    writers: list[int | None] = [None] * SIZE
    readers: list[set[int]] = [set() for _ in range(SIZE)]
    for step in steps:
        if step[0] == "sync":
            clocks.sync(step[1], step[2])
            plain.sync(step[1], step[2])
            continue
        if step[0] == "wait":
            clocks.wait_for_all()
            plain.sync(31, 31)
            continue
        kind, unit, start, length = step
        stop = min(start + length, SIZE)
        number = plain.issue(int(unit))
        visit = clocks.issue(unit, number)
        conflicts = history.read(start, stop, visit) if kind == "read" else history.write(start, stop, visit)
        expected: set[tuple[str, int | None, int]] = set()
        for place in range(start, stop):
            writer = writers[place]
            if kind == "read" and writer is None:
                expected.add(("unwritten", None, place))
            elif writer is not None and writer not in plain.before[number]:
                expected.add((f"{kind} after write", writer, place))
            if kind == "write":
                # Of each unit, the last reader speaks for the earlier ones.
                last = {plain.unit[reader]: reader for reader in sorted(readers[place])}
                late = {reader for reader in last.values() if reader not in plain.before[number]}
                expected |= {("write after read", reader, place) for reader in late}
        found = {
            (one.kind, None if one.earlier is None else one.earlier.number, place)
            for one in conflicts
            for place in range(one.start, one.stop)
        }
        assert found == expected
        for place in range(start, stop):
            if kind == "read":
                readers[place].add(number)
            else:
                writers[place], readers[place] = number, set()


def test_the_first_address_that_nothing_has_written():
    history = MemoryHistory(10, lambda earlier, later: True)
    visit = QueuePosition(0, 1, 0)
    assert history.first_unwritten(0, 10) == 0
    assert not history.write(0, 4, visit) and not history.write(6, 10, visit)
    assert history.first_unwritten(0, 10) == 4
    assert history.first_unwritten(6, 10) is None
    assert history.first_unwritten(3, 3) is None
