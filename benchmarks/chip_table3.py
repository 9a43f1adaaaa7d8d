"""Table 3 of the TPU's paper, predicted: where the cycles of six applications go, beside what its counters measured.

    python benchmarks/chip_table3.py [--output benchmarks/results/chip_table3.json]

The shapes of the layers are not published. `chip_table1.py` guesses three for each application from Table 1 alone, and
was frozen before any of them was timed. Of these three, one is chosen by one counter: the shape whose row 3 over row 2
(multiply-adds of cells without work, over useful ones) is nearest to the paper's. That ratio says how full the tiles
are, and neither the clock nor a memory changes it. So rows 2 and 3 are chosen, in their ratio; rows 1, 4 to 8 and the
TOPS are predicted. The first shape of each, the plainest reading of Table 1, stands beside it. No constant is fitted to
an application. Each program is compiled by `compile_image`, so it is our compiler's, not Google's; a batch that does
not fit into the Unified Buffer (CNN1's) goes in the largest power of two that does, each of which reads the weights
anew. It is timed in three ways:

    given row 6    what the matrix unit does when nothing but weights holds it back, in what row 6 leaves of the cycles
    plain          as `time` predicts by default: no delay but those that follow from the paper and the geometry
    delay slots    the matrix unit finishes each layer before it starts the next (section 2 of the paper has such
                   "delay slots"; our compiler syncs plane by plane instead), and a Sync costs SYNC_CYCLES

SYNC_CYCLES is the one number that was chosen with Table 3 in view, once for all six: a round one, about the time of a
round trip over PCIe. The ablation shows what it does, and what other choices would do.

The reference are the counters, rows 1 to 8. Row 9, the TOPS, was measured in production and is not what the counters
give, peak * row 2 (halved for the recurrent nets, whose 16-bit activations take two passes): Table 3 disagrees with
itself, as its caption says, so that no model can meet both. The table of TOPS shows both. And of row 6, the time in
which the matrix unit has nothing to do, the counters "cannot exactly explain" a part: rows 7 and 8 leave 8 of 17.5
points open for MLP0, 15 of 31.9 for MLP1, 15 of 21.8 for CNN0.

What would have to be known: the shapes of the layers, which decide how full the tiles are (a factor of 1.5 for LSTM0)
and how much goes over the host's link (almost half of LSTM1's row 6 is its guessed output of 13,480 numbers); and how
Google's compiler placed and synchronised them. Of CNN1 the counters tell something: waits for weights and shifts of
that length mean that its weights were read several times a batch. All 32 pictures at a time would wait a third as long;
in the batches of 8 that fit into 24 MiB, rows 1, 4, 5 and 6 of the first shape come out within 5 points. CNN1 has a
second sketch: 4,700 images a second (section 8) and row 2 are 2.2 G multiply-adds an image. Inception V2 for pictures
of 224 with the dense layers ("224 as published") has 2.3 G. Table 1's 1,750 operations a byte are 5.5 G. The two tables
cannot both be right, so both sketches are shown, and the one that agrees with Table 1 is the prediction.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import statistics
import time as clock
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from anytpu.chip.compiler import compile_image, largest_batch
from anytpu.chip.graph.nodes import Network
from anytpu.chip.image.image import Image
from anytpu.chip.isa.design import TPU_V1, UNIT_BYTES
from anytpu.chip.isa.instructions import ArrayInstruction, DebugTag, InterruptHost, ReadHostMemory, ReadWeights, Sync
from anytpu.chip.isa.units import Unit
from anytpu.chip.page.levels import peak_units
from anytpu.chip.timing import Latencies, Timing, time
from anytpu.errors import CapacityError
from chip_table1 import CONTRADICTING, SKETCHES, TABLE_1

SYNC_CYCLES = 1000

ROWS = {
    "active": "1 array active",
    "useful": "2 useful multiply-adds",
    "unused": "3 unused multiply-adds",
    "stall": "4 weight stall",
    "shift": "5 weight shift",
    "other": "6 non-matrix",
    "data_wait": "7 waits for results",
    "input_wait": "8 waits for input",
}
PAPER = {
    "MLP0": (12.7, 12.5, 0.3, 53.9, 15.9, 17.5, 3.3, 6.1),
    "MLP1": (10.6, 9.4, 1.2, 44.2, 13.4, 31.9, 8.4, 8.8),
    "LSTM0": (8.2, 8.2, 0.0, 58.1, 15.8, 17.9, 14.6, 5.1),
    "LSTM1": (10.5, 6.3, 4.2, 62.1, 17.1, 10.3, 10.6, 2.4),
    "CNN0": (78.2, 78.2, 0.0, 0.0, 0.0, 21.8, 3.5, 3.4),
    "CNN1": (46.2, 22.5, 23.7, 28.1, 7.0, 18.7, 22.8, 0.6),
}
"""Table 3, rows 1 to 8, percent of the cycles."""

PAPER_TOPS = {"MLP0": 12.3, "MLP1": 9.7, "LSTM0": 3.7, "LSTM1": 2.8, "CNN0": 86.0, "CNN1": 14.1}
PAPER_HOST = {"MLP0": 21, "MLP1": 76, "LSTM0": 11, "LSTM1": 20, "CNN0": 51, "CNN1": 14}
"""Table 5: the time of the interaction with the host, percent of the TPU's."""
PAPER_BUFFER = {"MLP0": 11.0, "MLP1": 2.3, "LSTM0": 4.8, "LSTM1": 4.5, "CNN0": 1.5, "CNN1": 13.9}
"""Table 8: the most of the Unified Buffer that is used, MiB."""
PAPER_INFERENCES = {"MLP0": 225_000, "MLP1": 360_000, "CNN1": 4_700}
"""Table 4 and section 8: inferences a second."""

WEIGHT_BOUND = ("MLP0", "MLP1", "LSTM0", "LSTM1")
ROOMY = dataclasses.replace(TPU_V1, unified_buffer_bytes=512 * 2**20)
"""A chip with room for CNN1's 32 pictures at a time, for contrast."""


def batch_of(application: str, network: Network) -> int:
    """Return the batch of Table 1, or where it does not fit on the chip the largest power of two that does."""
    batch = TABLE_1[application].batch
    try:
        compile_image(network, batch=batch)
    except CapacityError:
        return largest_batch(network, TPU_V1, batch)
    return batch


def images() -> Iterator[tuple[str, str, Image]]:
    """Return (application, shapes, program) for each guess."""
    for application in TABLE_1:
        for title, make in (SKETCHES[application] | CONTRADICTING.get(application, {})).items():
            network = make().network()
            yield application, title, compile_image(network, batch=batch_of(application, network))


def without_holds(image: Image) -> Image:
    """Return the program with nothing that the matrix unit could wait for but weights."""
    kept = tuple(
        instruction
        for instruction in image.instructions
        if isinstance(instruction, ArrayInstruction | ReadWeights | DebugTag)
    )
    return dataclasses.replace(image, instructions=kept)


def with_delay_slots(image: Image) -> Image:
    """Return the program with a Sync between layers: the matrix unit waits until the layer before is written."""
    program = []
    for instruction in image.instructions:
        program.append(instruction)
        if isinstance(instruction, DebugTag):
            program.append(Sync(1 << Unit.MATRIX, 1 << Unit.ACTIVATE))
    return dataclasses.replace(image, instructions=tuple(program))


def with_doubled_input(image: Image) -> Image:
    """Return the program without the reads of its input: as if that had come while the batch before was worked on."""
    kept = tuple(
        instruction for instruction in image.instructions if not isinstance(instruction, ReadHostMemory | InterruptHost)
    )
    return dataclasses.replace(image, instructions=kept)


def rows_of(t: Timing) -> dict[str, float]:
    """Return rows 1 to 8, percent."""
    cycles = (t.active_cycles, t.stall_cycles, t.shift_cycles, t.other_cycles, t.data_wait_cycles, t.input_wait_cycles)
    active, stall, shift, other, data, waits = (100 * part / t.cycles for part in cycles)
    shares = (active, 100 * t.useful_share, 100 * t.unused_share, stall, shift, other, data, waits)
    return dict(zip(ROWS, shares, strict=True))


def given_row_6(image: Image, other: float) -> dict[str, float]:
    """Return rows 1 to 6 if row 6 is known."""
    rows = rows_of(time(without_holds(image), back_to_back=True))
    scaled = {name: rows[name] * (100 - other) / 100 for name in ("active", "useful", "unused", "stall", "shift")}
    return {**scaled, "other": other}


def counted_tops(application: str) -> float:
    """Return the TOPS that the counters of Table 3 give."""
    passes = 2 if application.startswith("LSTM") else 1
    return TPU_V1.peak_ops_per_s / 1e12 * PAPER[application][1] / 100 / passes


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A guess at an application, timed."""

    application: str
    title: str
    given: dict[str, float]
    plain: Timing
    slots: Timing
    buffer_mib: float
    is_first: bool
    fits: bool

    @property
    def emptiness(self) -> float:
        """Row 3 over row 2."""
        return self.plain.unused_share / self.plain.useful_share

    def record(self) -> dict[str, Any]:
        """Return what is written down."""
        figures = {
            "batch": self.plain.batch,
            "cycles": self.plain.cycles,
            "given_row_6": rounded(self.given),
            "buffer_mib": round(self.buffer_mib, 2),
            "host_share": round(self.plain.host_share, 4),
        }
        for name, t in (("plain", self.plain), ("delay_slots", self.slots)):
            figures[name] = {**rounded(rows_of(t)), "tops": round(t.ops_per_s / 1e12, 2)}
        return figures


def rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 2) for name, value in figures.items()}


def case_of(application: str, title: str, image: Image) -> Case:
    return Case(
        application,
        title,
        given_row_6(image, PAPER[application][5]),
        time(image),
        time(with_delay_slots(image), latencies=Latencies(sync_cycles=SYNC_CYCLES)),
        peak_units(image) * UNIT_BYTES / 2**20,
        title == next(iter(SKETCHES[application])),
        title in SKETCHES[application],
    )


def chosen_of(cases: list[Case]) -> dict[str, Case]:
    """Return for each application the shape whose row 3 over row 2 is nearest to the paper's, the first of equals."""

    def distance(case: Case) -> float:
        return abs(case.emptiness - PAPER[case.application][2] / PAPER[case.application][1])

    return {
        application: min((case for case in cases if case.application == application and case.fits), key=distance)
        for application in PAPER
    }


def table_3(cases: list[Case]) -> Iterator[str]:
    yield "Table 3, chosen by row 3 over row 2: paper | given row 6 | plain | delay slots; in brackets plain over all"
    for shown in (*chosen_of(cases).values(), *(case for case in cases if not case.fits)):
        fitting = [case for case in cases if case.application == shown.application and case.fits]
        yield f"{shown.application} ({shown.title}{'' if shown.fits else ': second sketch, contradicts Table 1'})"
        plain, slots = rows_of(shown.plain), rows_of(shown.slots)
        for (name, text), paper in zip(ROWS.items(), PAPER[shown.application], strict=True):
            spread = [rows_of(case.plain)[name] for case in fitting]
            given = f"{shown.given[name]:6.1f}" if name in shown.given else " " * 6
            yield (
                f"  {text:24} {paper:6.1f} | {given} | {plain[name]:6.1f} | {slots[name]:6.1f}   "
                f"[{min(spread):.1f} to {max(spread):.1f}]"
            )


def tops_table(cases: list[Case]) -> Iterator[str]:
    chosen = chosen_of(cases)
    yield "TOPS           counters   row 9 (apart)   plain (error by counters, row 9)   first shape   all that fit"
    for application, case in chosen.items():
        paper, counted = PAPER_TOPS[application], counted_tops(application)
        fitting = [c for c in cases if c.application == application and c.fits]
        plain, first, *_ = (c.plain.ops_per_s / 1e12 for c in (case, *fitting))
        spread = [c.plain.ops_per_s / 1e12 for c in fitting]
        yield (
            f"  {application:10} {counted:10.1f} {paper:7.1f} ({error(paper, counted):+4.0f} %)  {plain:8.1f} "
            f"({error(plain, counted):+4.0f} %, {error(plain, paper):+4.0f} %)      {first:14.1f}       "
            f"{min(spread):.1f} to {max(spread):.1f}"
        )
    yield from (f"  mean error {name:50} {value:5.1f} %" for name, value in mean_errors(cases).items())
    yield "  Google's own model (Table 7) is off by 8 % on average, in cycles, from the counters of the same programs."


def mean_errors(cases: list[Case]) -> dict[str, float]:
    """Return mean absolute errors of TOPS, percent, of the chosen shapes and of the first ones."""

    def mean(shapes: Iterable[Case], tops: Callable[[Case], float], of: Callable[[str], float]) -> float:
        return statistics.mean(abs(error(tops(case), of(case.application))) for case in shapes)

    def plain(case: Case) -> float:
        return case.plain.ops_per_s / 1e12

    def slots(case: Case) -> float:
        return case.slots.ops_per_s / 1e12

    chosen, first = chosen_of(cases).values(), [case for case in cases if case.is_first]
    references = {"the counters": counted_tops, "row 9": PAPER_TOPS.__getitem__}
    ways = {
        "plain": (chosen, plain),
        "delay slots": (chosen, slots),
        "first shapes, plain": (first, plain),
        "first shapes, delay slots": (first, slots),
    }
    return {
        "of row 9 against the counters": mean(chosen, lambda case: PAPER_TOPS[case.application], counted_tops),
        **{
            f"{way} against {name}": mean(*ways[way], reference)
            for way in ways
            for name, reference in references.items()
        },
        "closest plain against row 9, by hindsight": statistics.mean(closest_errors(cases)),
    }


def closest_errors(cases: list[Case]) -> Iterator[float]:
    """Return the least error of TOPS against row 9 over the shapes that fit; no prediction, it looks at the answer."""
    for application, paper in PAPER_TOPS.items():
        fitting = [case.plain for case in cases if case.application == application and case.fits]
        yield min(abs(error(t.ops_per_s / 1e12, paper)) for t in fitting)


def error(value: float, reference: float) -> float:
    return 100 * (value / reference - 1)


def worst(rows: dict[str, float], application: str) -> tuple[float, str]:
    """Return how far the worst of rows 1, 4, 5 and 6 is off, in points, and which it is."""
    paper = dict(zip(ROWS, PAPER[application], strict=True))
    return max((abs(rows[name] - paper[name]), ROWS[name]) for name in ("active", "stall", "shift", "other"))


def verdicts(cases: list[Case]) -> Iterator[str]:
    yield "Targets: rows 1, 4, 5, 6 of the four weight-bound applications; the worst row, in points"
    chosen = list(chosen_of(cases).values())
    yield f"  {'':22} given row 6 (3)        plain (6)              delay slots (6)"
    for case in cases:
        if case.application in WEIGHT_BOUND:
            found = []
            for rows, most in ((case.given, 3), (rows_of(case.plain), 6), (rows_of(case.slots), 6)):
                points, name = worst(rows, case.application)
                found.append(f"{points:4.1f} (row {name[0]}) {'met' if points <= most else 'missed':6}")
            title = f"{case.application} {case.title}{' *' if case in chosen else ''}"
            yield f"  {title:22} " + "   ".join(found)


CHOICES: dict[str, Callable[[Image], Timing]] = {
    "plain": time,
    "no drain": lambda image: time(image, latencies=Latencies(drain_cycles=0)),
    "delay slots, no cost": lambda image: time(with_delay_slots(image)),
    "delay slots, 500": lambda image: time(with_delay_slots(image), latencies=Latencies(sync_cycles=500)),
    "delay slots, 1000": lambda image: time(with_delay_slots(image), latencies=Latencies(sync_cycles=1000)),
    "delay slots, 2000": lambda image: time(with_delay_slots(image), latencies=Latencies(sync_cycles=2000)),
    "50 us a batch": lambda image: time(image, latencies=Latencies(batch_s=50e-6)),
    "back to back": lambda image: time(image, back_to_back=True),
    "input already there": lambda image: time(with_doubled_input(image)),
    "30 GiB/s of weights": lambda image: time(
        image, design=dataclasses.replace(image.design, weight_bytes_per_s=30 * 2**30)
    ),
    "14 GiB/s of host": lambda image: time(
        image, design=dataclasses.replace(image.design, host_bytes_per_s=14 * 2**30)
    ),
}


def ablation(chosen: dict[str, Image]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return what each choice gives: row 6 and TOPS of each application, and means of their errors."""
    for name, choice in CHOICES.items():
        found = {application: choice(image) for application, image in chosen.items()}
        tops = {application: t.ops_per_s / 1e12 for application, t in found.items()}
        others = {application: rows_of(t)["other"] for application, t in found.items()}
        yield (
            name,
            {
                "row_6": rounded(others),
                "tops": rounded(tops),
                "mean_points_row_6": round(statistics.mean(abs(others[a] - PAPER[a][5]) for a in others), 2),
                "mean_error_tops": round(statistics.mean(abs(error(tops[a], PAPER_TOPS[a])) for a in tops), 2),
            },
        )


def ablation_table(found: dict[str, dict[str, Any]]) -> Iterator[str]:
    names = list(PAPER)
    yield "Each choice: row 6 (percent) and TOPS     " + " ".join(f"{name:>12}" for name in names) + "   mean off"
    paper = " ".join(f"{PAPER[name][5]:5.1f} {PAPER_TOPS[name]:6.1f}" for name in names)
    yield f"  {'the paper':38} {paper}"
    for name, choice in found.items():
        figures = " ".join(f"{choice['row_6'][app]:5.1f} {choice['tops'][app]:6.1f}" for app in names)
        yield f"  {name:38} {figures}   {choice['mean_points_row_6']:.1f} points, {choice['mean_error_tops']:.1f} %"


def other_tables(shown: list[tuple[Case, Image]]) -> Iterator[str]:
    yield "Beside other tables             latency   inferences/s alone, back to back (T4)   link (T5)   MiB used (T8)"
    for case, image in shown:
        many = time(image, back_to_back=True)
        paper = PAPER_INFERENCES.get(case.application)
        yield (
            f"  {case.application:6} {case.title:16} {case.plain.time_s * 1e3:7.2f} ms  "
            f"{case.plain.examples_per_s:9,.0f} {many.examples_per_s:9,.0f} ({f'{paper:,}' if paper else '-':>7})   "
            f"{100 * case.plain.host_share:8.1f} % ({PAPER_HOST[case.application]:2} %)   "
            f"{case.buffer_mib:6.1f} ({PAPER_BUFFER[case.application]:.1f})"
        )
    yield "  The paper's inferences, and its latency for MLP0 (7 ms for 99 % of requests), have queues and the host's"
    yield "  time in them, and so has its share of the host (T5)."


def whole_batches(cases: list[Case]) -> Iterator[str]:
    """Time CNN1 with its whole batch at a time, on a chip that has room for it."""
    yield "CNN1, batches that fit | all 32 at a time with 512 MiB: rows 1, 4, 5, 6 (46.2, 28.1, 7.0, 18.7), TOPS (14.1)"
    for title, make in (SKETCHES["CNN1"] | CONTRADICTING["CNN1"]).items():
        fitting = next(case for case in cases if (case.application, case.title) == ("CNN1", title)).plain
        found = []
        for t in (fitting, time(compile_image(make().network(), batch=TABLE_1["CNN1"].batch, design=ROOMY))):
            rows = rows_of(t)
            shares = " ".join(f"{rows[name]:5.1f}" for name in ("active", "stall", "shift", "other"))
            found.append(f"{t.batch:3}: {shares} {t.ops_per_s / 1e12:6.1f}")
        yield f"  {title:18} " + "   |   ".join(found)


def main() -> None:
    """Predict and print all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="write the figures as JSON here")
    arguments = parser.parse_args()
    start_s = clock.perf_counter()
    compiled = list(images())
    cases = [case_of(*program) for program in compiled]
    programs = {case: program[2] for case, program in zip(cases, compiled, strict=True)}
    chosen = chosen_of(cases)
    choices = dict(ablation({application: programs[case] for application, case in chosen.items()}))
    shown = [*chosen.values(), *(case for case in cases if not case.fits)]
    for part in (table_3(cases), verdicts(cases), tops_table(cases), ablation_table(choices), whole_batches(cases)):
        print("\n".join(part), end="\n\n")
    print("\n".join(other_tables([(case, programs[case]) for case in shown])))
    print(f"{len(cases)} programs, {clock.perf_counter() - start_s:.1f} s. Times are predicted, not measured.")
    if arguments.output:
        record = {
            "machine": f"{platform.machine()}, Python {platform.python_version()}",
            "sync_cycles_of_delay_slots": SYNC_CYCLES,
            "chosen_by_row_3_over_row_2": {application: case.title for application, case in chosen.items()},
            "cases": {f"{case.application}, {case.title}": case.record() for case in cases},
            "mean_errors_of_tops_percent": rounded(mean_errors(cases)),
            "choices": choices,
        }
        arguments.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
