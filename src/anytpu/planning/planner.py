"""`plan`, `max_batch_size` and `scaling`: the three questions to ask before renting a TPU.

Idea: each is one job, some systems, some batches, and a `Prediction` for each pair.

Rule: no step of the job is run, and a Keras model needs only its input shapes.
"""

from __future__ import annotations

import concurrent.futures
import contextvars
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from anytpu.errors import SettingError
from anytpu.planning.asking import ask, ask_largest
from anytpu.planning.compiler import compilations
from anytpu.planning.host_wait import FIT_CALL_S
from anytpu.planning.job import Job, batch_rows, jobs_of, makes_jobs
from anytpu.planning.judging import judged
from anytpu.planning.prices import read_prices
from anytpu.planning.records import Plan, Prediction
from anytpu.planning.target import Target, target_named
from anytpu.planning.wish import Wish, positive_integer

AT_ONCE = 2
"""Compilations that run at a time: each takes a core and, for a large program, several gigabytes."""

STEPS_BY_THE_CLOCK = 1024
"""Steps of one call that a plan reckons with where `fit` chooses them: as many as take a quarter of a second, at most
these. Where it starts fewer, a step is so long that the host's share is next to nothing."""


def plan(
    job: Any,
    batch_size: int | Sequence[int] | None = None,
    tpu: str | Sequence[str] = "v2-8",
    *,
    input_specs: Any = None,
    mode: str | None = None,
    precision: str | None = None,
    batch_axis: Any = None,
    steps_per_execution: int | None = None,
    input_examples_per_s: float | None = None,
    examples: int | None = None,
    epochs: int | None = None,
    sweep_batches: Sequence[int] = (),
    advise: bool = False,
    prices: str | Path | None = None,
    options: Mapping[str, str] | None = None,
    timeout_s: float = 600.0,
    use_cache: bool = True,
    progress: Callable[[str], None] | None = None,
    name: str | None = None,
) -> Plan:
    """Predict how fast a job would be on a TPU, whether it fits, and what it costs, with the TPU's own compiler.

    Args:
        job: a compiled Keras model, a JAX function `step(state, batch) -> (state, outputs)`, a TPUEstimator, a Program,
            or the path of a program file or of a StableHLO file (".mlir"). Also a function of one argument, the number
            of devices, that returns one of these or a pair (job, input_specs): for steps that name a mesh.
        batch_size: examples of one step over all devices, one number for all systems or one for each; None for a job
            that brings its own.
        tpu: one system or several: "v3-8", "v5e-8", ....
        input_specs: the shapes that go in, as `program.of` takes them; a Keras model knows its own.
        mode: "train" or "infer"; None is the job's own, "train" for one that can do both.
        precision: "float32" or "bfloat16" for a Keras model in that precision; None for the model's own.
        batch_axis: the axis of a JAX function's batch along which examples lie: one for all leaves, or a tree of axes
            like the batch, such as (3, 0) for images (height, width, channels, rows) and labels (rows,). None: the axis
            that the sharding of the batch splits over a data axis, else axis 0; a note says where that was assumed.
        steps_per_execution: steps that one call of the host starts. None is the model's own, or as many as `fit` would
            choose, and 1 for what is no Keras model.
        input_examples_per_s: what the input pipeline delivers; None: fast enough.
        examples: examples of an epoch, for its time and cost; a call of `fit` starts no more steps than it has.
        epochs: epochs of the run, for its time and cost.
        sweep_batches: further batch sizes to predict on each system.
        advise: compile changed programs to see what each piece of advice gains.
        prices: a file of prices that replaces those that come along; see docs/prices.md.
        options: options of the compiler, such as {"xla_tpu_scoped_vmem_limit_kib": "65536"}.
        timeout_s: how long one compilation may take, seconds; then there is a floor in place of a forecast.
        use_cache: take what was compiled before from the disk.
        progress: called with one line before each step of the work.
        name: name of the job in the plan and in progress lines; None: the program's name.

    Raises:
        UnknownTPUError: no such TPU; the message names the nearest.
        ProgramError: the job cannot be planned; the message says what is missing.
        PlanError: the compiler refused the program or crashed. Where it is not installed, or takes too much time or
            memory, the plan has a floor in place of a forecast: `Prediction.basis`.

    Example:
        >>> tpu.plan(model, batch_size=1024, tpu=["v2-8", "v3-8"]).fastest.target.name  # doctest: +SKIP
        'v3-8'
    """
    targets, jobs = _targets(tpu), jobs_of(job, input_specs, mode, precision, batch_axis)
    fit_steps = _steps_of_fit(jobs(targets[0].devices).source)
    wish = Wish(
        steps_per_execution or fit_steps or 1,
        input_examples_per_s,
        examples,
        epochs,
        read_prices(prices),
        options or {},
        timeout_s,
        use_cache,
        progress or Wish.progress,
        name,
        host_call_s=FIT_CALL_S if fit_steps else 0.0,
    )
    pairs = _pairs(targets, batch_size)
    others = [(target, other) for target, own in pairs for other in _batches(sweep_batches, own)]
    for target, batch in (*pairs, *others):
        jobs(target.devices).program(batch)  # before any thread: Keras traces in one only

    def ask_all(asked: Sequence[tuple[Target, int | None]]) -> list[Prediction]:
        return together([functools.partial(ask, jobs(target.devices), batch, target, wish) for target, batch in asked])

    predictions = [
        judged(jobs(target.devices), batch, predicted, wish, tries=advise)
        for predicted, (target, batch) in zip(ask_all(pairs), pairs, strict=True)
    ]
    sweep = ask_all(others)
    return Plan(name or predictions[0].program, tuple(predictions), tuple(sweep), examples, epochs)


def together(tasks: Sequence[Callable[[], Prediction]]) -> list[Prediction]:
    """Run tasks two at a time and return their results in order; the first error ends them all."""
    with compilations() as ours, concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        futures = [pool.submit(contextvars.copy_context().run, task) for task in tasks]
        try:
            # Not in order: an error is not to wait for the tasks before it.
            done, _ = concurrent.futures.wait(futures, return_when=concurrent.futures.FIRST_EXCEPTION)
            return [future.result() for future in futures if future in done]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            ours.close()  # Or Ctrl-C would wait for the compilations that run.
            raise


def max_batch_size(
    job: Any,
    tpu: str = "v2-8",
    *,
    input_specs: Any = None,
    mode: str | None = None,
    precision: str | None = None,
    batch_axis: Any = None,
    options: Mapping[str, str] | None = None,
    timeout_s: float = 600.0,
    use_cache: bool = True,
    progress: Callable[[str], None] | None = None,
    name: str | None = None,
) -> int:
    """Return the largest batch that fits on a TPU, over all its devices, found by compiling for it.

    It is found to a 32nd: a multiple of 8 examples a device, or 1, 2 or 4 where no more fit; 0 when not one does.

    Args:
        job: as `plan` takes it; one whose batch can be changed.
        tpu: the system.
        input_specs: as `plan` takes it.
        mode: as `plan` takes it.
        precision: as `plan` takes it.
        batch_axis: as `plan` takes it.
        options: as `plan` takes it.
        timeout_s: how long one compilation may take, seconds.
        use_cache: take what was compiled before from the disk.
        progress: called with one line before each step of the work.
        name: name of the job in progress lines; None: the program's name.

    Raises:
        UnknownTPUError: no such TPU.
        ProgramError: the job has one batch only, or cannot be planned.
        CompilerMissingError: the TPU compiler is not installed; a floor cannot say what fits.
        NoAnswerError: it took too much time or memory.

    Example:
        >>> tpu.max_batch_size(model, tpu="v2-8")  # doctest: +SKIP
        6144
    """
    wish = Wish(
        options=options or {},
        timeout_s=timeout_s,
        use_cache=use_cache,
        progress=progress or Wish.progress,
        name=name,
    )
    target, jobs = target_named(tpu), jobs_of(job, input_specs, mode, precision, batch_axis)
    largest = ask_largest(jobs(target.devices), target, wish)
    if largest.ended_by is not None:
        raise largest.ended_by
    return largest.batch_size


def scaling(
    job: Any,
    tpu: str,
    cores: Sequence[int],
    batch_size: int | None = None,
    *,
    grow: bool = True,
    **settings: Any,
) -> Plan:
    """Predict one job on ever larger slices of a TPU.

    Args:
        job: as `plan` takes it; one whose batch can be changed, if it is to grow. A step that names a mesh comes as a
            function `devices -> (step, input_specs)`, which makes it for each slice; without `batch_size` each has the
            batch that the function gives it.
        tpu: the chip: "v3".
        cores: the numbers in the names of the slices: 8 for "v3-8".
        batch_size: examples of one step on the FIRST slice.
        grow: the batch grows with the slice (weak scaling: each device keeps its share); False keeps it as it is.
        **settings: all else that `plan` takes.

    Raises:
        UnknownTPUError: no such chip, or no such slice.
        SettingError: no cores.

    Example:
        >>> tpu.scaling(model, tpu="v3", cores=[8, 32, 128], batch_size=1024).show()  # doctest: +SKIP
        >>> def create_step(devices):
        ...     mesh = jax.sharding.AbstractMesh((devices // 4, 4), ("data", "model"))
        ...     return step, specs_over(mesh)
        >>> tpu.scaling(create_step, tpu="v5e", cores=[8, 16, 32]).show()  # doctest: +SKIP
    """
    if not cores:
        raise SettingError("cores must list at least one number, such as [8, 32, 128]")
    targets = [target_named(f"{tpu}-{number}") for number in cores]
    specs = settings.get("input_specs")
    if grow and batch_size is None and not makes_jobs(job, specs):
        own = Job(job, specs, settings.get("mode"), batch_axis=settings.get("batch_axis"))
        batch_size = batch_rows(own.program(None))
    sizes = batch_size
    if grow and batch_size is not None:
        sizes = [batch_size * target.devices // targets[0].devices for target in targets]
    return plan(job, sizes, [target.name for target in targets], **settings)


def _pairs(targets: list[Target], batch_size: int | Sequence[int] | None) -> list[tuple[Target, int | None]]:
    """Return each system with its batch."""
    if not isinstance(batch_size, Sequence):
        positive_integer("batch_size", batch_size)
        return [(target, batch_size) for target in targets]
    if len(batch_size) != len(targets):
        raise SettingError(
            f"batch_size must be one number, or one for each of the {len(targets)} systems in tpu, not {batch_size!r}"
        )
    for batch in batch_size:
        positive_integer("batch_size", batch)
    return list(zip(targets, batch_size, strict=True))


def _targets(tpu: str | Sequence[str]) -> list[Target]:
    names = [tpu] if isinstance(tpu, str) else tpu
    if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):
        raise SettingError(f'tpu must name at least one system, such as "v3-8" or ["v2-8", "v3-8"], not {tpu!r}')
    targets = {name: target_named(name) for name in names}
    return list({target.name: target for target in targets.values()}.values())


def _batches(sweep_batches: Sequence[int], planned: int | None) -> list[int]:
    """Return the batches of a sweep that are not planned anyway, smallest first."""
    if not isinstance(sweep_batches, Sequence) or None in sweep_batches:
        raise SettingError(f"sweep_batches must list batch sizes, such as [256, 512], not {sweep_batches!r}")
    for batch in sweep_batches:
        positive_integer("sweep_batches", batch)
    return sorted(set(sweep_batches) - {planned})


def _steps_of_fit(job: Any) -> int | None:
    """Return how many steps `fit` would run with one call of the host; None for a job that is not a Keras model.

    A model that was compiled with a number has that number. One compiled without reads 1, Keras's default, and
    anytpu's `fit` chooses by the clock: as many as `STEPS_BY_THE_CLOCK` where they are short, or an epoch has.
    """
    steps = getattr(job, "steps_per_execution", None)
    if not isinstance(steps, int):
        return None
    return steps if steps > 1 else STEPS_BY_THE_CLOCK
