"""`plan`, `max_batch_size` and `scaling`: predict a job on TPUs before renting one.

Idea: each is one job on some systems with some batches, and returns a `Prediction` for each pair.

Rule: no step of the job is run, and a Keras model needs only its input shapes.
"""

from __future__ import annotations

import concurrent.futures
import contextvars
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, Unpack

from anytpu._calls import explain_arguments
from anytpu.errors import SettingError
from anytpu.planning.compiler import compilations
from anytpu.planning.forecasts.forecast import predict
from anytpu.planning.jobs.job import PlanJob, batch_rows, makes_jobs
from anytpu.planning.jobs.settings import PlanSettings, check_positive_integer
from anytpu.planning.plans.request import JobOptions, RunOptions, requested
from anytpu.planning.plans.review import compile_largest_batch, find_largest_batch, review
from anytpu.planning.records import Plan, Prediction
from anytpu.planning.records.target import Target, target_named, targets_named

T = TypeVar("T")

AT_ONCE = 2
"""Number of compilations that run at a time: each takes a core and, for a large program, several gigabytes."""


@functools.partial(explain_arguments, also=RunOptions.__annotations__)
def plan(
    job: Any,
    batch_size: int | Sequence[int] | None = None,
    tpu: str | Sequence[str] = "v2-8",
    *,
    sweep_batches: Sequence[int] = (),
    advise: bool = False,
    **settings: Unpack[RunOptions],
) -> Plan:
    """Predict how fast a job would be on a TPU, whether it fits, and what it costs, with the TPU's own compiler.

    Args:
        job: a compiled Keras model, a JAX function `step(state, batch) -> (state, outputs)`, a TPUEstimator or a
            Program. Or a step of Flax NNX or Equinox, as `program.of` takes it. Or the path of a program file or of a
            StableHLO file (".mlir"). For a step that names a mesh: a function of the number of devices that returns one
            of these or a pair (job, input_specs).
        batch_size: examples of one step over all devices: one number for all systems or one for each. None for a job
            that brings its own batch.
        tpu: one system or several: "v3-8", "v5e-8", ....
        sweep_batches: further batch sizes to predict on each system.
        advise: whether to compile changed programs to measure the gain of each piece of advice.
        **settings: any of the following, of which most are also arguments of `scaling`, `max_batch_size`,
            `ways_to_fit` and `shard`.
        input_specs: shapes of the inputs, as `program.of` takes them; a Keras model knows its own.
        mode: "train" or "infer"; None is the job's own mode, "train" for a job that supports both.
        precision: "float32" or "bfloat16" for a Keras model in that precision; None for the model's own.
        batch_axis: the axis of the examples in a JAX function's batch: one axis for all leaves, or a tree of axes like
            the batch. Example: (3, 0) for images (height, width, channels, rows) and labels (rows,). None: the axis
            that the batch's sharding splits over a data axis, else axis 0; a note says where axis 0 was assumed.
        layout: how the model lies over the devices. "data": weights whole on each; "fsdp": weights, optimizer slots
            and batch split over all; a `keras.distribution.LayoutMap`, a dictionary {pattern: PartitionSpec}, a
            function (name, shape) -> PartitionSpec, or a layout of `shard`. None: whole weights, or the step's own.
        mesh: {name: size} of the axes of the layout's mesh, at most one of them -1, which fills the devices. None: one
            axis "data" over all devices.
        steps_per_execution: steps that one call of the host starts. None: the model's own number, or as many as `fit`
            would choose; 1 for a job that is not a Keras model.
        input_examples_per_s: rate of the input pipeline, examples per second; None: never waited for.
        examples: examples of an epoch, for its time and cost. A call of `fit` starts no more steps than an epoch has.
        epochs: epochs of the run, for its time and cost.
        prices: a file of prices that replaces the included table; see `anytpu docs prices`.
        options: options of the compiler, such as {"xla_tpu_scoped_vmem_limit_kib": "65536"}.
        timeout_s: time limit of one compilation, seconds (600); after it the plan has the compiler's schedule, or a
            floor if that takes longer too.
        use_cache: whether to reuse compilations from the disk; True by default.
        progress: called with one line before each step of the work.
        name: name of the job in the plan and in progress lines; None: the program's name.

    Raises:
        UnknownTPUError: no such TPU; the message names the nearest.
        ProgramError: the job cannot be planned; the message says what is missing.
        PlanError: the compiler refused the program or crashed. If it is not installed, or takes too much time or
            memory, the plan has a floor in place of a forecast: `Prediction.basis`.

    Example:
        >>> tpu.plan(model, batch_size=1024, tpu=["v2-8", "v3-8"]).fastest.target.name  # doctest: +SKIP
        'v3-8'
    """
    # 1. The arguments.
    targets = targets_named(tpu)
    jobs, own = requested(job, targets[0].devices, **settings)
    # 2. The pairs of a system and a batch: those to plan, and those of the sweep.
    pairs = _pairs(targets, batch_size)
    others = [(target, other) for target, own in pairs for other in _batches(sweep_batches, own)]

    # 3. The predictions, in the order of the pairs.
    predictions = run_together(_predictions(jobs, pairs, others, own, advise))
    planned, sweep = predictions[: len(pairs)], predictions[len(pairs) :]
    return Plan(own.name or planned[0].program, tuple(planned), tuple(sweep), own.examples, own.epochs)


def _predictions(
    jobs: Callable[[int], PlanJob],
    pairs: Sequence[tuple[Target, int | None]],
    others: Sequence[tuple[Target, int | None]],
    settings: PlanSettings,
    advise: bool,
) -> Iterator[Callable[[], Prediction]]:
    """Yield a task for each system and batch: a reviewed prediction of each of `pairs`, a prediction of the others."""

    def predict_and_review(job: PlanJob, batch: int | None, target: Target, settings: PlanSettings) -> Prediction:
        return review(job, batch, predict(job, batch, target, settings), settings, tries=advise)

    # A Keras model is first traced by the thread that made it, while the systems before are compiled.
    for answer, planned in ((predict_and_review, pairs), (predict, others)):
        for target, batch in planned:
            job = jobs(target.devices)
            if job.has_batches:  # A file and a Program are traced already.
                settings.progress(f"{settings.name or 'the step'} on {target.name}: tracing it")
            job.program(batch)
            yield functools.partial(answer, job, batch, target, settings)


def run_together(tasks: Iterable[Callable[[], T]]) -> list[T]:
    """Run tasks two at a time and return their results in order; the first error cancels the others.

    A task starts as soon as the iterable yields it.
    """
    with compilations() as ours, concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        futures: list[concurrent.futures.Future[T]] = []
        try:
            # The context has the compilations that belong together (`compilations`).
            futures.extend(pool.submit(contextvars.copy_context().run, task) for task in tasks)
            # Not in order: an error must not wait for earlier tasks.
            done, _ = concurrent.futures.wait(futures, return_when=concurrent.futures.FIRST_EXCEPTION)
            return [future.result() for future in futures if future in done]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            ours.close()  # Otherwise Ctrl-C would wait for the running compilations.
            raise


@functools.partial(explain_arguments, also=JobOptions.__annotations__)
def max_batch_size(job: Any, tpu: str = "v2-8", *, mode: str | None = None, **settings: Unpack[JobOptions]) -> int:
    """Return the largest batch that fits on a TPU, over all its devices, found by compiling.

    The search makes schedules. The batch that it finds is then compiled completely, so that its code counts. So is the
    next larger one: a batch a 32nd larger does not fit, or had no answer in time. Two shallow models and the schedule
    stand for a deep model whose code would take too long. The result is a multiple of 8 examples a device, or 1, 2 or 4
    if no more fit; 0 if none fits.

    Args:
        job: as `plan` takes it; its batch must be changeable.
        tpu: the system.
        mode: as `plan` takes it.
        **settings: as `plan` takes them: input_specs, precision, batch_axis, layout, mesh, options, timeout_s,
            use_cache, progress and name.

    Raises:
        UnknownTPUError: no such TPU.
        ProgramError: the job has one batch only, or cannot be planned.
        CompilerMissingError: the TPU compiler is not installed; a floor cannot say what fits.
        NoAnswerError: a compilation took too much time or memory.
        PlanError: a batch fits by its schedule, and neither it nor three smaller ones fit with their code.

    Example:
        >>> tpu.max_batch_size(model, tpu="v2-8")  # doctest: +SKIP
        6144
    """
    target = target_named(tpu)
    jobs, own = requested(job, target.devices, mode=mode, waits=False, **settings)
    sized = jobs(target.devices)
    largest = find_largest_batch(sized, target, own)
    if largest.ended_by is not None:
        raise largest.ended_by
    return compile_largest_batch(sized, target, own, largest.batch_size) if largest.batch_size else 0


@functools.partial(explain_arguments, also=["sweep_batches", "advise", *RunOptions.__annotations__])
def scaling(
    job: Any,
    tpu: str,
    cores: Sequence[int],
    batch_size: int | None = None,
    *,
    grow: bool = True,
    **settings: Any,
) -> Plan:
    """Predict one job on larger and larger slices of a TPU.

    Args:
        job: as `plan` takes it; its batch must be changeable if it is to grow. A step that names a mesh comes as a
            function `devices -> (step, input_specs)`. Without `batch_size` each slice has the batch that the function
            gives it.
        tpu: the chip: "v3".
        cores: the number in the name of each slice: 8 for "v3-8".
        batch_size: examples of one step on the FIRST slice.
        grow: whether the batch grows with the slice (weak scaling: each device keeps its share); False keeps it
            constant.
        **settings: the other arguments of `plan`. A `mesh` needs a size of -1, so that it fills each slice:
            mesh={"data": -1, "model": 4}.

    Raises:
        UnknownTPUError: no such chip, or no such slice.
        SettingError: no cores, or a layout for one number of devices.

    Example:
        >>> tpu.scaling(model, tpu="v3", cores=[8, 32, 128], batch_size=1024).show()  # doctest: +SKIP
        >>> def create_step(devices):
        ...     mesh = jax.sharding.AbstractMesh((devices // 4, 4), ("data", "model"))
        ...     return step, specs_over(mesh)
        >>> tpu.scaling(create_step, tpu="v5e", cores=[8, 16, 32]).show()  # doctest: +SKIP
    """
    if isinstance(cores, str) or not isinstance(cores, Sequence) or not cores:
        raise SettingError(f"cores must list at least one number, such as [8, 32, 128], not {cores!r}")
    check_positive_integer("batch_size", batch_size)
    targets = targets_named([f"{tpu}-{number}" for number in cores])
    specs = settings.get("input_specs")
    if grow and batch_size is None and not makes_jobs(job, specs):
        own = PlanJob(job, specs, settings.get("mode"), batch_axis=settings.get("batch_axis"))
        batch_size = batch_rows(own.program(None))
    sizes = batch_size
    if grow and batch_size is not None:
        sizes = [batch_size * target.devices // targets[0].devices for target in targets]
        if not all(sizes):
            raise SettingError(
                f"batch_size={batch_size} on {targets[0].name} leaves smaller slices less than one example: give more, "
                "or grow=False"
            )
    return plan(job, sizes, [target.name for target in targets], **settings)


def _pairs(targets: list[Target], batch_size: int | Sequence[int] | None) -> list[tuple[Target, int | None]]:
    """Return each system with its batch."""
    sizes = batch_size if isinstance(batch_size, Sequence) else [batch_size] * len(targets)
    if len(sizes) != len(targets):
        raise SettingError(
            f"batch_size must be one number, or one for each system in tpu ({len(targets)}), not {batch_size!r}"
        )
    for size in sizes:
        check_positive_integer("batch_size", size)
    return list(zip(targets, sizes, strict=True))


def _batches(sweep_batches: Sequence[int], planned: int | None) -> list[int]:
    """Return the batches of a sweep that are not planned anyway, smallest first."""
    if not isinstance(sweep_batches, list | tuple | range) or None in sweep_batches:
        raise SettingError(f"sweep_batches must list batch sizes, such as [256, 512], not {sweep_batches!r}")
    for batch in sweep_batches:
        check_positive_integer("sweep_batches", batch)
    return sorted(set(sweep_batches) - {planned})
