"""The local backend: this machine's TPU cores or GPUs, as one mesh.

Idea: whole-batch code is compiled once with the batch split over the mesh and XLA puts the collectives in; per-replica
code is the body of a `shard_map`. Both see the arrays they would see on one device.

Rule: padding is for the transport only. An axis that the cores do not divide is padded by `put`, and cut to its true
size as the first thing the compiled program does, so that pad rows never reach a model; XLA owns the uneven split from
there. `check_vma` is off in `shard_map`: on, `psum(grad(loss)(w))` would be as many times too large as there are cores.
With it off a state that differs between the cores would pass for one value, so per-replica code is traced in its form
for one device too, which tells.
"""

from __future__ import annotations

from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from anytpu.engine.backend import Backend, Executable, Loop
from anytpu.engine.executable import Compiled
from anytpu.engine.loop import Step, carried, cut, feed_specs, looped, traced
from anytpu.engine.numerics import computed_by
from anytpu.errors import BackendError
from anytpu.program.lowering import one_device_step
from anytpu.program.program import REPLICA_AXIS, Layout, Program, SharedOutput, Tree
from anytpu.system.cores import Core, Numerics


@final
class LocalBackend(Backend):
    """The accelerators of this machine.

    Args:
        cores: the cores to use; each names its JAX device by `device_id`.
        numerics: how float32 products are computed.

    Raises:
        BackendError: JAX runs on several hosts.
    """

    def __init__(self, cores: tuple[Core, ...], numerics: Numerics = "machine") -> None:
        check_hosts(jax.process_count())
        devices = {(d.platform, d.id): d for platform in {c.platform for c in cores} for d in jax.devices(platform)}
        self._cores = cores
        self._numerics: Numerics = numerics
        self._mesh = Mesh(np.array([devices[core.platform, core.device_id] for core in cores]), (REPLICA_AXIS,))

    @property
    def cores(self) -> tuple[Core, ...]:
        """The cores, in the order of the mesh."""
        return self._cores

    def put(self, tree: Tree, layout: Layout) -> Tree:
        """Bring arrays to the mesh, padding a split axis by repeats of its last row."""
        sharding, axis = self._sharding(layout), layout.axis
        if axis is not None:
            tree = jax.tree.map(lambda leaf: self._padded(leaf, axis), tree)
        return jax.device_put(tree, sharding)

    def get(self, tree: Tree) -> Tree:
        """Return the arrays themselves."""
        return tree

    def compile(self, program: Program, loop: Loop | None = None) -> Executable:
        """Compile a Program for the mesh."""
        step = computed_by(self._numerics, carried(program, self._mesh_step(program)))
        step, outputs = traced(step, program.state, program.batch)
        whole, last = self._sharding(Layout(None)), self._output_shardings(program, outputs, offset=0)
        state, batch = _specs(program.state, whole), jax.tree.map(self._travelling, program.batch, program.layout)
        if loop is None:
            run = self._cutting(step, program.batch)
            jitted = jax.jit(run, donate_argnums=0, out_shardings=(whole, last))
            given: tuple[Any, ...] = (state, batch)
        else:
            run = looped(step, program.state, program.batch, loop)
            every = self._output_shardings(program, outputs, offset=1) if loop.keeps_every else None
            shardings = (whole, last, every, whole if loop.guard else None)
            jitted = jax.jit(run, donate_argnums=0, out_shardings=shardings)
            count = jax.ShapeDtypeStruct((), "int32")
            given = (state, self._feed(batch, program, loop), count, count)
        try:
            return Compiled(jitted.lower(*given))
        except jax.errors.JaxRuntimeError as error:
            platform = self._cores[0].platform
            raise BackendError(f"XLA could not compile {program.name!r} for the {platform}: {error}") from error

    def close(self) -> None:
        """Do nothing: JAX holds its devices until the process ends."""

    def _sharding(self, layout: Layout) -> NamedSharding:
        spec = () if layout.axis is None else (*[None] * layout.axis, REPLICA_AXIS)
        return NamedSharding(self._mesh, PartitionSpec(*spec))

    def _padded(self, leaf: Any, axis: int) -> Any:
        leaf = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
        size = leaf.shape[axis]
        missing = -size % len(self._cores)
        return leaf[(*[slice(None)] * axis, np.minimum(np.arange(size + missing), size - 1))] if missing else leaf

    def _travelling(self, spec: jax.ShapeDtypeStruct, layout: Layout) -> jax.ShapeDtypeStruct:
        """Return the spec of a batch leaf as it travels: padded, and split over the mesh."""
        shape = list(spec.shape)
        if layout.axis is not None:
            shape[layout.axis] += -shape[layout.axis] % len(self._cores)
        return jax.ShapeDtypeStruct(tuple(shape), spec.dtype, sharding=self._sharding(layout))

    def _feed(self, batch: Tree, program: Program, loop: Loop) -> Tree:
        """Return the specs of a loop's feed: the data set whole on every core, what names or is a batch split."""
        feed = feed_specs(batch, loop)
        if loop.feed == "rows":
            resident, numbers = feed
            return _specs(resident, self._sharding(Layout(None))), _specs(numbers, self._sharding(Layout(1)))
        return jax.tree.map(
            lambda spec, lay: _specs(spec, self._sharding(Layout(None if lay.axis is None else lay.axis + 1))),
            feed,
            program.layout,
        )

    def _cutting(self, step: Step, batch: Tree) -> Step:
        """Return the step behind a cut of every batch leaf to its true size."""
        return lambda state, travelled: step(state, jax.tree.map(cut, travelled, batch))

    def _mesh_step(self, program: Program) -> Step:
        """Return the step on whole arrays: as it is for whole-batch code, a `shard_map` for per-replica code."""
        if program.replicas is None:
            return program.step
        _, known = jax.eval_shape(one_device_step(program), program.state, program.batch)
        specs = jax.tree.map(lambda lay: self._sharding(lay).spec, program.layout)

        def one(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
            mine = jax.tree.map(lambda leaf, lay: leaf if lay.axis is None else leaf[0], batch, program.layout)
            state, outputs = program.step(state, mine)
            return state, jax.tree.map(_output, known, outputs, is_leaf=SharedOutput.is_one)

        whole, split = PartitionSpec(), PartitionSpec(REPLICA_AXIS)
        lie = jax.tree.map(lambda o: whole if SharedOutput.is_one(o) else split, known, is_leaf=SharedOutput.is_one)
        return jax.shard_map(one, mesh=self._mesh, in_specs=(whole, specs), out_specs=(whole, lie), check_vma=False)

    def _output_shardings(self, program: Program, outputs: Tree, offset: int) -> Tree:
        """Split outputs with a row axis that the cores divide; every core holds the others whole."""
        rows = program.replicas or program.rows
        divides = rows is not None and rows % len(self._cores) == 0

        def sharding(spec: Any) -> NamedSharding:
            splits = divides and not SharedOutput.is_one(spec) and spec.shape[:1] == (rows,)
            return self._sharding(Layout(offset if splits else None))

        return jax.tree.map(sharding, outputs, is_leaf=SharedOutput.is_one)


def check_hosts(count: int) -> None:
    """Refuse a JAX that runs on `count` hosts (its processes), unless it is one.

    Raises:
        BackendError: it is not one.
    """
    if count > 1:
        raise BackendError(
            f"JAX runs on {count} hosts here, and this release of anytpu drives the TPU cores or GPUs of one host "
            "only. Start the program on one host, without jax.distributed.initialize()"
        )


def _output(known: Any, value: Any) -> Any:
    """Return one device's output as its form for one device has it."""
    return SharedOutput(jnp.asarray(value)) if SharedOutput.is_one(known) else jnp.asarray(value)[None]


def _specs(tree: Tree, sharding: NamedSharding) -> Tree:
    return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding), tree)
