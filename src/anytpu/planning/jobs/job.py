"""`PlanJob`: the job of a plan, from which a Program of any batch, precision and number of devices can be made.

Idea: a sweep, a search for the largest batch and tried advice all need the same job with one change.

Rule: a Program is made once for each combination. Per-replica code is made for the devices of the planned system: the
global batch is unchanged, each replica's share changes.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from anytpu import program as programs
from anytpu.errors import ProgramError, SettingError
from anytpu.planning.records.quoting import quoted
from anytpu.program.lowering import TRACING
from anytpu.program.makers import Repeats, is_job, repeats_of
from anytpu.program.placed import check_divides
from anytpu.program.program import Layout, Program
from anytpu.sharding import ModelLayout, place, resolve


@dataclasses.dataclass(frozen=True, eq=False)
class PlanJob:
    """A job and the settings of all of its Programs.

    Attributes:
        source: a Keras model, a JAX function, an Estimator, a Program, the path of a file.
        input_specs: as `program.of` takes them.
        mode: "train", "infer" or None for the job's own.
        precision: "float32", "bfloat16" or None for the job's own.
        batch_axis: the axis of the batch along which examples lie, as `program.of` takes it.
        layout: how its Programs lie over the devices; None: rows split, or the shardings of its own step.
        change: changes each Program before it is placed; None: nothing is changed.
    """

    source: Any
    input_specs: Any = None
    mode: str | None = None
    precision: str | None = None
    batch_axis: Any = None
    layout: ModelLayout | None = None
    change: Callable[[Program], Program] | None = None

    @functools.cached_property
    def program(self) -> Callable[..., Program]:
        """Function `(batch_size=None) -> Program`, which makes each Program once, in one thread at a time."""
        make_once = functools.cache(self._program)

        def make(batch_size: int | None = None) -> Program:
            with TRACING:
                return make_once(batch_size)

        return make

    @property
    def has_batches(self) -> bool:
        """Whether it can be made for another batch: neither a Program nor a file."""
        return not isinstance(self.source, Program | str | Path)

    @property
    def is_model(self) -> bool:
        """Whether it can be made in another precision: a Keras model."""
        return any(cls.__module__.startswith("keras.") for cls in type(self.source).__mro__)

    @functools.cached_property
    def repeats(self) -> Repeats | None:
        """The equal consecutive blocks among its layers, or None."""
        return repeats_of(self.source)

    def with_repeats(self, count: int) -> PlanJob:
        """Return the job with so many of its equal blocks.

        Raises:
            ProgramError: it cannot be made with that number.
        """
        assert self.repeats is not None
        return dataclasses.replace(self, source=self.repeats.with_count(count))

    def _program(self, batch_size: int | None = None) -> Program:
        program = programs.of(
            self.source,
            self.input_specs,
            self.mode,  # type: ignore[arg-type]
            batch_size=batch_size,
            precision=self.precision,  # type: ignore[arg-type]
            batch_axis=self.batch_axis,
        )
        # The change comes first: the layout places the arrays of the changed program.
        if self.change is not None:
            program = self.change(program)
        if self.layout is None:
            return program
        if program.placement is not None and not program.placement.assumption:
            raise ProgramError(
                f"{program.name!r} has shardings of its own, and the layout {self.layout.name!r} would replace them. "
                "Leave the shardings out of its specs and its step, or leave the layout out."
            )
        placed = place(program, self.layout)
        assert placed.placement is not None
        check_divides(placed.name, placed.state, placed.batch, placed.placement)
        return placed


def jobs_of(job: PlanJob, layout: Any = None, mesh: Mapping[str, int] | None = None) -> Callable[[int], PlanJob]:
    """Return a function from the number of devices to the job.

    A step that names a mesh is for as many devices as the mesh has. A function of one argument makes the job for any
    number: `devices -> job` or `devices -> (job, input_specs)`.

    Args:
        job: a job, or one whose source is a function of the number of devices. Its `input_specs` are then those of a
            job that the function returns without any.
        layout: as `sharding.resolve` takes it, or None.
        mesh: sizes of the mesh axes, or None.

    Raises:
        SettingError: (when a job is requested) the layout does not fit that number of devices.
        ProgramError: (when a job is requested) the function returned no job, or it raised and comes with input_specs as
            a step does.
    """
    source, input_specs = job.source, job.input_specs
    if layout is None and mesh is not None:
        raise SettingError(f'mesh={mesh!r} is the mesh of a layout: give one too, such as layout="fsdp"')

    @functools.cache
    def placed_job(devices: int) -> PlanJob:
        return dataclasses.replace(make_job(devices), layout=resolve(layout, mesh, devices))

    @functools.cache
    def make_job(devices: int) -> PlanJob:
        if not makes_jobs(source, input_specs):
            return job
        try:
            returned = source(devices)
        except Exception as error:
            if input_specs is not None:
                raise ProgramError(
                    f"{_call(source, devices)} raised {type(error).__name__}: {error}. A function of one argument is "
                    "called with the number of devices, to make the job for them. A step takes two arguments, "
                    "step(state, batch), also where it has no state, and comes with input_specs of both."
                ) from error
            error.add_note(f"{_call(source, devices)} was called to make the job for {devices} devices.")
            raise
        pair = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, input_specs)
        if not is_job(pair[0]):
            raise ProgramError(
                f"{_call(source, devices)} returned {quoted(returned)}, of which no Program can be made. A function of "
                "one argument is called with the number of devices, and returns a job or a pair (job, input_specs). A "
                "step takes two, step(state, batch), and comes with input_specs."
            )
        return dataclasses.replace(job, source=pair[0], input_specs=pair[1])

    return make_job if layout is None else placed_job


def makes_jobs(source: Any, input_specs: Any) -> bool:
    """Return whether a job is a function of the number of devices: callable with one argument.

    A function that is also callable with two arguments is a step, if it comes with input_specs.

    Example:
        >>> makes_jobs(lambda devices: (step, specs), None), makes_jobs(lambda state, batch: (state, {}), None)
        (True, False)
    """
    if not (inspect.isroutine(source) or isinstance(source, functools.partial)):
        return False
    return _takes(source, 1) and (input_specs is None or not _takes(source, 2))


def _takes(function: Any, count: int) -> bool:
    try:
        inspect.signature(function).bind(*[None] * count)
    except (TypeError, ValueError):
        return False
    return True


def _call(source: Any, devices: int) -> str:
    return f"{getattr(source, '__name__', 'the function')}({devices})"


def for_devices(program: Program, devices: int) -> Program:
    """Return per-replica code for that many devices, and whole-batch code with its embedding tables split over them.

    The global batch is unchanged, but rows that the devices do not divide are rounded up. Other code is unchanged.

    Example:
        >>> spec = jax.ShapeDtypeStruct((8, 16, 3), "float32")
        >>> program = Program("mean", lambda s, b: (s, b), (), spec, Layout(0), replicas=8)
        >>> for_devices(program, 4).batch.shape
        (4, 32, 3)
    """
    if program.tables and program.replicas is None and program.placement is None and devices > 1:
        return place(program, resolve("data", None, devices))
    if program.replicas in (None, devices):
        return program
    batch = jax.tree.map(
        lambda leaf, layout: _reshare(leaf, layout, program.replicas or 1, devices), program.batch, program.layout
    )
    return dataclasses.replace(program, replicas=devices, batch=batch)


def batch_rows(program: Program) -> int | None:
    """Return the examples of one step over all devices, or None if nothing is split."""
    if program.replicas is None:
        return program.rows
    shares = [leaf.shape[:2] for leaf, layout in program.leaves() if layout.axis == 0 and len(leaf.shape) > 1]
    return shares[0][0] * shares[0][1] if shares else program.replicas


def batch_parts(program: Program, devices: int) -> int:
    """Return the number of parts into which so many devices split the examples: fewer if a mesh also splits other
    things.

    Example:
        >>> mesh = jax.sharding.AbstractMesh((2, 4), ("data", "model"))
        >>> rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
        >>> spec = jax.ShapeDtypeStruct((16, 3), "float32", sharding=rows)
        >>> batch_parts(PlanJob(lambda state, batch: (state, batch), ((), spec)).program(), 8)
        2
    """
    if program.placement is None:
        return devices
    leaves, sizes = program.leaves(), dict(program.placement.axes)
    specs = program.placement.specs[len(program.placement.specs) - len(leaves) :]
    split = [
        math.prod(sizes[axis] for axis in spec[layout.axis])
        for (_, layout), spec in zip(leaves, specs, strict=True)
        if layout.axis is not None and layout.axis < len(spec)
    ]
    return max(split, default=1)


def weights_of(program: Program) -> dict[str, tuple[int, ...]]:
    """Return the shape of each named leaf of the state."""
    return dict(zip(program.state_names, (leaf.shape for leaf in jax.tree.leaves(program.state)), strict=False))


def _reshare(leaf: jax.ShapeDtypeStruct, layout: Layout, replicas: int, devices: int) -> jax.ShapeDtypeStruct:
    if layout.axis is None:
        return leaf
    if len(leaf.shape) < 2:
        return jax.ShapeDtypeStruct((devices, *leaf.shape[1:]), leaf.dtype)
    rows = -(-replicas * leaf.shape[1] // devices)
    return jax.ShapeDtypeStruct((devices, rows, *leaf.shape[2:]), leaf.dtype)
