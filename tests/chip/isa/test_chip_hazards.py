"""Who touched what, against a plain record of every address and every order."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from anytpu.chip.isa.accesses import Accesses, AddressRange, Memory
from anytpu.chip.isa.hazards import AccessHistory, VectorClocks
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
    history = AccessHistory()
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
        clocks.issue(unit, number)
        place = (AddressRange(Memory.BUFFER, start, stop),)
        touched = history.touch(number, unit, Accesses(place) if kind == "read" else Accesses((), place))
        conflicts = [one for one in touched if one.kind == "unwritten" or not clocks.is_done(one.earlier, unit)]
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
            (one.kind, None if one.kind == "unwritten" else one.earlier, place)
            for one in conflicts
            for place in range(one.place.start, one.place.stop)
        }
        assert found == expected
        for place in range(start, stop):
            if kind == "read":
                readers[place].add(number)
            else:
                writers[place], readers[place] = number, set()


def test_the_first_address_that_nothing_has_written():
    history = AccessHistory()
    assert history.first_unwritten(AddressRange(Memory.HOST, 0, 10)) == 0
    for start, stop in ((0, 4), (6, 10)):
        history.host_writes(AddressRange(Memory.HOST, start, stop))
    places = [(0, 10), (6, 10), (3, 3)]
    assert [history.first_unwritten(AddressRange(Memory.HOST, *place)) for place in places] == [4, None, None]
    assert history.touch(0, 0, Accesses((AddressRange(Memory.WEIGHTS, 0, 9), AddressRange(Memory.BUFFER, 3, 3)))) == []
