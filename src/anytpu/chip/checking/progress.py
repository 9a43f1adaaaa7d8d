"""`first_stuck`: the first work of a program that can never start (a deadlock), from its waits and full FIFOs.

Idea: time does not matter, only whether work can start. Each unit advances as far as it can, again and again. Work that
is left when no unit can advance never starts.

Rule: passes and transfers are counted, and not stored: a small file may ask for hundreds of millions of them. So the
time and memory grow with the instructions only.
"""

from __future__ import annotations

from anytpu.chip.isa.units import Unit
from anytpu.chip.timing.work import UnitWork, WorkQueues


def first_stuck(queues: WorkQueues, fifo_tiles: int) -> UnitWork | None:
    """Return the first work that can never start, with this number of entries of the weight FIFO, or None."""
    requests, done, state = queues.by_unit[Unit.WEIGHTS], [0 for _ in queues.by_unit], None
    sent, served, arrived = 0, 0, 0  # requests, and transfers of the next one that have arrived
    tiles, parameters, popped = 0, 0, 0  # items to be popped, and pops of the next product

    def may_start(work: UnitWork) -> bool:
        return all(done[unit] >= count for unit, count in work.waits)

    while state != (state := (*done, sent, served, arrived, popped)):
        # 1. Requests are sent, and then done; only a table is done when it has arrived.
        while sent < len(requests) and may_start(requests[sent]):
            sent += 1
        # 2. The memory serves them in order. Tiles fill the FIFO, and the array's second plane.
        while served < sent:
            left, kind = requests[served].passes - arrived, requests[served].kind
            count = min(left, fifo_tiles + 1 - tiles) if kind == "tile" else left
            tiles, parameters = tiles + count * (kind == "tile"), parameters + count * (kind == "parameters")
            if count < left:
                arrived += count
                break
            served, arrived = served + 1, 0
        while done[Unit.WEIGHTS] < sent and (
            requests[done[Unit.WEIGHTS]].kind != "table" or done[Unit.WEIGHTS] < served
        ):
            done[Unit.WEIGHTS] += 1
        # 3. The other units. Each pop of a tile makes room for one more of the request that waits for room.
        for unit, queue in enumerate(queues.by_unit):
            while unit != Unit.WEIGHTS and done[unit] < len(queue) and may_start(queue[done[unit]]):
                pops = queue[done[unit]].pops
                if unit == Unit.MATRIX:
                    waiting = served < sent and requests[served].kind == "tile"
                    coming = requests[served].passes - arrived if waiting else 0
                    count = min(pops - popped, tiles + coming)
                    arriving = max(0, count - tiles)
                    arrived, tiles, popped = arrived + arriving, tiles + arriving - count, popped + count
                    if popped < pops:
                        break
                    popped = 0
                elif pops > parameters:
                    break
                else:
                    parameters -= pops
                done[unit] += 1
    pairs = zip(queues.by_unit, done, strict=True)
    return min((queue[n] for queue, n in pairs if n < len(queue)), key=lambda work: work.number, default=None)
