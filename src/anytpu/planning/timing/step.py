"""`step_time`: how long one step of a compiled program takes.

Idea: the time of a step is that of its operations one after another, as `Clock` walks over them, and what the host
adds: a call for every so many steps. A wait for input is added later, by `input_wait.py`.

Rule: this is a prediction. Its interval is as wide as the same model's errors on published measurements were. It has
no upper end (`math.inf`) where a loop was met of which nobody knows how often it runs.
"""

from __future__ import annotations

from anytpu.planning.hlo import Module
from anytpu.planning.records import OpTime, StepTime
from anytpu.planning.target import Target
from anytpu.planning.timing.clock import Clock
from anytpu.planning.timing.naming import counted
from anytpu.planning.timing.pricing import Pricer
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
        module: the program as the compiler left it.
        target: the system that it was compiled for.
        steps_per_execution: steps that one call of the host starts.
        rates: how fast a device is; None means as calibrated.

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
    clock = Clock(module, Pricer(module, target, rates))
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
