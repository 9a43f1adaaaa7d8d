"""`time`: predict the cycles of a program and their causes, by a model of the chip's units. No such chip was run.

Idea: five units work in parallel, each on its own queue: READ and WRITE (the host link), WEIGHTS (the Weight Memory),
MATRIX and ACTIVATE. There are three steps:

1. `work.py` divides the program into the queues.
2. `schedule.py` computes the start and the end of each piece of work.
3. `causes.py` determines why the matrix unit was idle.

From the paper (Jouppi et al. 2017, section 2):

- A product streams one row per cycle into the array; a row of 16-bit activations takes two cycles.
- A tile is fetched from the Weight Memory at `weight_bytes_per_s` and waits in a FIFO of `weight_fifo_tiles`. It is
  then shifted in `array` cycles into the array's second plane, while the first plane's tile multiplies.
- So a tile costs the maximum of its rows, its shift and its fetch: 200, 256 and 1349 cycles for MLP0. If the fetch is
  the maximum, the array is idle when the tile arrives, and its shift is not hidden.
- Read_Weights is done when its address is sent, so weights are prefetched until the FIFO is full.
- The matrix unit waits for a Sync before it reads an earlier layer's results.
- Inputs and outputs use the host link at `host_bytes_per_s`, in both directions at once.

Not in the paper, and chosen here:

- The array takes the next tile from the FIFO as soon as its second plane is free, even while a Sync holds the product.
  A FIFO entry is free again when its tile has completely left it.
- The Weight Memory serves tiles, parameters and tables in the order of their requests. The FIFO of the parameters
  (2 KiB for 256 outputs) is never full.
- The sums of a product are in the accumulators `drain_cycles` after its last row: 512, once across the array and once
  down. The matrix unit does not wait for them; only a consumer of the sums does.
- Nothing else takes time: not issue, Unified Buffer arbitration, DRAM refresh or the host's software. `Latencies` has
  parameters for the cost of a Sync and of a batch.
- The host's work at an InterruptHost is named, and takes no time of the chip.
- `work.py` defines the cost of `Activate` and its windows, and `causes.py` the cause of a cycle.
"""

from __future__ import annotations

import dataclasses
import math

from anytpu.chip.image.image import Image
from anytpu.chip.isa.design import COMPILED_FOR, Design
from anytpu.chip.isa.units import Unit
from anytpu.chip.timing.causes import CycleCauses, causes_of
from anytpu.chip.timing.events import events_of
from anytpu.chip.timing.latencies import Latencies
from anytpu.chip.timing.record import PartTiming, Timing
from anytpu.chip.timing.schedule import Schedule
from anytpu.chip.timing.work import WorkQueues, queues_of
from anytpu.errors import ChipError, SettingError

MAX_PASSES = 2**21
"""Maximum passes of the array, and items read from the Weight Memory. It bounds the time and memory of the schedule."""

_RUNS = 4
"""Number of batches simulated back to back: the first fills the queues, and from the third on all are alike."""


def time(
    image: Image,
    *,
    design: Design | None = None,
    events: bool = False,
    back_to_back: bool = False,
    latencies: Latencies | None = None,
) -> Timing:
    """Predict the time of a program.

    Args:
        image: the program.
        design: the chip; its rates, clock and FIFO may differ from those that the program was compiled for. None: the
            chip that it was compiled for.
        events: also record the start and end of each unit's work.
        back_to_back: time a batch in a steady stream, whose input is read while the previous batch is computed. False
            times a single batch, from its first input to its last output.
        latencies: delays that the paper does not give; None: the defaults.

    Raises:
        SettingError: the program was compiled for a chip with another array or other memories. Also: events of batches
            back to back were requested.
        ChipError: the program has more than `MAX_PASSES` passes and reads of weights.
        HazardError: an instruction would wait forever.

    Example:
        >>> from anytpu.chip.isa.instructions import Halt, MatrixMultiply, ReadWeights
        >>> import numpy as np
        >>> program = (ReadWeights(0, 9), MatrixMultiply(0, 0, rows=96, repeat=9), Halt())
        >>> t = time(Image("nine tiles", program, np.zeros(9 * 65536, np.uint8)))
        >>> t.active_cycles, t.stall_cycles, t.shift_cycles, t.other_cycles, round(t.time_s * 1e6, 1)
        (864.0, 9328.0, 2304.0, 512.0, 18.6)
    """
    design, latencies = design or image.design, latencies or Latencies()
    _check(image, design, events and back_to_back)
    # 1. The work of each unit, in order.
    queues = queues_of(image.instructions, design, _RUNS if back_to_back else 1)
    moved = sum(work.passes for unit in (Unit.MATRIX, Unit.WEIGHTS) for work in queues.by_unit[unit])
    if (moved := moved // len(queues.starts)) > MAX_PASSES:
        raise ChipError(
            f"The program {image.name!r} has {moved:,} passes and reads of weights, and {MAX_PASSES:,} is the most "
            "that is timed. Time a program for a smaller batch."
        )
    # 2. Start and end of all work.
    schedule = Schedule(image.name, queues, design, latencies)
    schedule.run()
    # 3. The interval to report: the last of several runs, or the whole single run.
    if back_to_back:
        runs_passes = len(schedule.passes) // _RUNS
        window = (len(schedule.passes) - runs_passes, len(schedule.passes))
        start, end = _ends(schedule, window)
    else:
        window, start = (0, len(schedule.passes)), 0.0
        end = math.ceil(schedule.end + latencies.batch_s * design.clock_hz)
    # 4. The cause of each cycle.
    total, parts, spans = causes_of(schedule, window, start, end)
    timing = _timing(image, design, queues, end - start, total, parts, back_to_back)
    return dataclasses.replace(timing, events=events_of(schedule), spans=spans) if events else timing


def _ends(schedule: Schedule, window: tuple[int, int]) -> tuple[float, float]:
    """Return start and end of the last run, in cycles.

    The run starts at the end of the previous run's last product and ends at the end of its own. Without products, the
    ends of the last two runs count.
    """
    if window[0] < window[1]:
        return schedule.passes[window[0] - 1].stop, schedule.passes[-1].stop
    busy = [done for done in schedule.done if done]
    return max((done[len(done) * (_RUNS - 1) // _RUNS - 1] for done in busy), default=0.0), schedule.end


def _check(image: Image, design: Design, both: bool) -> None:
    for name in COMPILED_FOR:
        compiled, asked = getattr(image.design, name), getattr(design, name)
        if compiled != asked:
            raise SettingError(
                f"{image.name!r} was compiled for a chip with {name} {compiled}, not {asked}: compile it for the other "
                f"chip, and time that."
            )
    if both:
        raise SettingError("Events are those of one batch alone: ask for events or for back_to_back, not for both.")


def _timing(
    image: Image,
    design: Design,
    queues: WorkQueues,
    cycles: float,
    total: CycleCauses,
    parts: dict[int, CycleCauses],
    back_to_back: bool,
) -> Timing:
    runs = len(queues.starts)

    def moved(unit: Unit) -> int:
        return sum(work.bytes * work.passes for work in queues.by_unit[unit]) // runs

    tags = image.tags
    return Timing(
        name=image.name,
        design=design,
        batch=image.batch,
        cycles=cycles,
        active_cycles=total.active,
        stall_cycles=total.stall,
        shift_cycles=total.shift,
        other_cycles=total.other,
        data_wait_cycles=total.data_wait,
        input_wait_cycles=total.input_wait,
        macs=sum(tag.macs for tag in tags),
        capacity_macs=design.tile_bytes * total.active,
        weight_bytes=moved(Unit.WEIGHTS),
        input_bytes=moved(Unit.READ),
        output_bytes=moved(Unit.WRITE),
        parts=_parts(image, queues, parts),
        byte_macs=sum(tag.macs * (2 if index in queues.wide_tags else 1) for index, tag in enumerate(tags)),
        host_steps=_host_steps(image, queues),
        back_to_back=back_to_back,
    )


def _host_steps(image: Image, queues: WorkQueues) -> tuple[str, ...]:
    kinds = [service.step.kind for service in image.services]
    return tuple(kinds[number] if number < len(kinds) else f"step {number}" for number in queues.interrupts)


def _parts(image: Image, queues: WorkQueues, parts: dict[int, CycleCauses]) -> tuple[PartTiming, ...]:
    read: dict[int, int] = {}
    for work in queues.by_unit[Unit.WEIGHTS]:
        read[work.tag] = read.get(work.tag, 0) + work.bytes * work.passes
    runs = len(queues.starts)

    def part(number: int, name: str, macs: int) -> PartTiming:
        causes = parts.get(number, CycleCauses())
        size = read.get(number, 0) // runs
        return PartTiming(name, causes.active, causes.stall, causes.shift, causes.other, macs, size)

    tagged = [part(index, tag.name, tag.macs) for index, tag in enumerate(image.tags)]
    others = [number for number in {*parts, *read} if not 0 <= number < len(image.tags)]
    return (*tagged, *(part(number, "", 0) for number in sorted(others)))
