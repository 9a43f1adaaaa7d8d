"""`Job`: what a user wants planned, which can be made into a Program of any batch, precision and number of devices.

Idea: a sweep, a search for the largest batch and advice that is tried all want the same job with one thing changed.

Rule: Programs are made once for each wish. Per-replica code is made for the devices of the system that it is planned
for: the global batch stays, each replica's share changes.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax

from anytpu import program as programs
from anytpu.program.program import Layout, Program


class Job:
    """A job and the wishes that hold for all of its Programs.

    Args:
        source: a Keras model, a JAX function, an Estimator, a Program, the path of a file.
        input_specs: as `program.of` takes them.
        mode: "train", "infer" or None for the job's own.
        precision: "float32", "bfloat16" or None for the job's own.
    """

    def __init__(
        self, source: Any, input_specs: Any = None, mode: str | None = None, precision: str | None = None
    ) -> None:
        self._source, self._input_specs, self._mode, self._precision = source, input_specs, mode, precision
        self.program = functools.cache(self._program)

    @property
    def has_batches(self) -> bool:
        """Whether it can be made for another batch: not a Program, nor a file."""
        return not isinstance(self._source, Program | str | Path)

    @property
    def is_model(self) -> bool:
        """Whether it can be made in another precision: a Keras model."""
        return any(cls.__module__.startswith("keras.") for cls in type(self._source).__mro__)

    def with_precision(self, precision: str) -> Job:
        """Return the job in another precision."""
        return Job(self._source, self._input_specs, self._mode, precision)

    def _program(self, batch_size: int | None = None) -> Program:
        return programs.of(
            self._source,
            self._input_specs,
            self._mode,  # type: ignore[arg-type]
            batch_size=batch_size,
            precision=self._precision,  # type: ignore[arg-type]
        )


def for_devices(program: Program, devices: int) -> Program:
    """Return per-replica code as it is on that many devices; whole-batch code as it is.

    The global batch stays as it is, but for rows that the devices do not divide: those are rounded up.

    Example:
        >>> spec = jax.ShapeDtypeStruct((8, 16, 3), "float32")
        >>> program = Program("mean", lambda s, b: (s, b), (), spec, Layout(0), replicas=8)
        >>> for_devices(program, 4).batch.shape
        (4, 32, 3)
    """
    if program.replicas in (None, devices):
        return program
    batch = jax.tree.map(
        lambda leaf, layout: _shared(leaf, layout, program.replicas or 1, devices), program.batch, program.layout
    )
    return dataclasses.replace(program, replicas=devices, batch=batch)


def batch_rows(program: Program) -> int | None:
    """Return the examples of one step over all devices, or None where nothing is split."""
    if program.replicas is None:
        return program.rows
    shares = [leaf.shape[:2] for leaf, layout in program.leaves() if layout.axis == 0 and len(leaf.shape) > 1]
    return shares[0][0] * shares[0][1] if shares else program.replicas


def weights_of(program: Program) -> dict[str, tuple[int, ...]]:
    """Return the shape of each leaf of the state that has a name."""
    return dict(zip(program.state_names, (leaf.shape for leaf in jax.tree.leaves(program.state)), strict=False))


def _shared(leaf: jax.ShapeDtypeStruct, layout: Layout, replicas: int, devices: int) -> jax.ShapeDtypeStruct:
    if layout.axis is None:
        return leaf
    if len(leaf.shape) < 2:
        return jax.ShapeDtypeStruct((devices, *leaf.shape[1:]), leaf.dtype)
    rows = -(-replicas * leaf.shape[1] // devices)
    return jax.ShapeDtypeStruct((devices, rows, *leaf.shape[2:]), leaf.dtype)
