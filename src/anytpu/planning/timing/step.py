"""`step_time`: the time of one step of a compiled program.

Idea: the time of a step is the sum over its operations, as `Clock` walks over them, plus the host's call for every so
many steps. `waits.py` adds a wait for input later.

Rule: this is a prediction. Its interval is as wide as the same model's errors on published measurements. It has no
upper bound (`math.inf`) for a step with a loop of unknown length.
"""

from __future__ import annotations

from anytpu.planning.hlo import Module
from anytpu.planning.records import OpTime, StepTime
from anytpu.planning.records.target import Target
from anytpu.planning.timing.clock import Clock
from anytpu.planning.timing.pricing import OpPricer
from anytpu.planning.timing.rates import Rates, rates_of
from anytpu.planning.timing.uncertainty import evidence_of, interval_of


def step_time(
    module: Module,
    target: Target,
    *,
    steps_per_execution: int = 1,
    rates: Rates | None = None,
) -> StepTime:
    """Predict the time of one step.

    Args:
        module: the compiled module.
        target: the system that it was compiled for.
        steps_per_execution: steps that one call of the host starts.
        rates: speed of a device; None: the calibrated rates.

    Example:
        >>> module = parse('''HloModule copy, is_scheduled=true, num_partitions=1
        ...
        ... ENTRY %main (x: f32[4096,4096]) -> f32[4096,4096] {
        ...   %x = f32[4096,4096]{1,0:T(8,128)} parameter(0)
        ...   ROOT %copy = f32[4096,4096]{1,0:T(8,128)} copy(%x), backend_config={"estimated_cycles":"178016"}
        ... }
        ... ''')
        >>> time = step_time(module, target_named("v6e-1"))
        >>> [(op.name, op.kind, op.priced_by) for op in time.ops]
        [('copy', 'memory', 'bandwidth'), ('host dispatch', 'host', 'published measurements')]
    """
    rates = rates or rates_of(target)
    clock = Clock(module, OpPricer(module, target, rates))
    clock.run()
    ops = [*clock.ops, _dispatch(rates, steps_per_execution)]
    return StepTime(
        ops=tuple(ops),
        step_s=sum(op.time_s for op in ops),
        interval_s=interval_of(ops, target, is_endless=clock.is_endless),
        unpriced=counted(clock.unpriced),
        evidence=evidence_of(target, ops),
    )


def _dispatch(rates: Rates, steps_per_execution: int) -> OpTime:
    return OpTime(
        "host dispatch", "host", "host", rates.dispatch_s / steps_per_execution, priced_by="published measurements"
    )


def counted(sentences: list[str]) -> tuple[str, ...]:
    """Return each distinct sentence with its number of occurrences.

    Example:
        >>> counted(["sort: a floor", "gather: a floor", "sort: a floor"])
        ('2 x sort: a floor', 'gather: a floor')
    """
    times = {sentence: sentences.count(sentence) for sentence in dict.fromkeys(sentences)}
    return tuple(f"{count:,} x {sentence}" if count > 1 else sentence for sentence, count in times.items())
