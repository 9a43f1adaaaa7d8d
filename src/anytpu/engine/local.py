"""The local backend: this machine's TPU cores or GPUs, as one mesh.

Idea: whole-batch code is compiled once with the batch split over the mesh and XLA puts the collectives in; per-replica code
is the body of a `shard_map`. Both see the arrays they would see on one device.

Rule: padding is for the transport only. An axis that the cores do not divide is padded by `put`, and cut to its true size
as the first thing the compiled program does, so that pad rows never reach a model; XLA owns the uneven split from there.
`check_vma` is off in `shard_map`: on, `psum(grad(loss)(w))` would be as many times too large as there are cores.
"""

from __future__ import annotations

from typing import Any, final

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from anytpu.engine.backend import Backend, Executable, Loop
from anytpu.engine.executable import Compiled
from anytpu.engine.loop import Step, feed_specs, looped
from anytpu.errors import BackendError
from anytpu.program.program import REPLICA_AXIS, Layout, Program, Tree
from anytpu.system.cores import Core


@final
class LocalBackend(Backend):
    """The accelerators of this machine.

    Args:
        cores: the cores to use; each names its JAX device by `device_id`.
    """

    def __init__(self, cores: tuple[Core, ...]) -> None:
        devices = {(d.platform, d.id): d for platform in {c.platform for c in cores} for d in jax.devices(platform)}
        self._cores = cores
        self._mesh = Mesh(np.array([devices[core.platform, core.device_id] for core in cores]), (REPLICA_AXIS,))

    @property
    def cores(self) -> tuple[Core, ...]:
        """The cores, in the order of the mesh."""
        return self._cores

    def put(self, tree: Tree, layout: Layout) -> Tree:
        """Bring arrays to the mesh, padding a split axis by repeats of its last row."""
        sharding = self._sharding(layout)
        return jax.tree.map(lambda leaf: jax.device_put(self._padded(leaf, layout), sharding), tree)

    def get(self, tree: Tree) -> Tree:
        """Return the arrays themselves."""
        return tree

    def compile(self, program: Program, loop: Loop | None = None) -> Executable:
        """Compile a Program for the mesh."""
        step = self._mesh_step(program)
        whole = self._sharding(Layout(None))
        state = _specs(program.state, whole)
        batch = jax.tree.map(self._travelling, program.batch, program.layout)
        try:
            if loop is None:
                outputs = self._output_shardings(program, step, offset=0)
                jitted = jax.jit(self._cut(step, program.batch), donate_argnums=0, out_shardings=(whole, outputs))
                return Compiled(jitted.lower(state, batch))
            run = looped(step, program.state, program.batch, loop)
            last = self._output_shardings(program, step, offset=0)
            every = self._output_shardings(program, step, offset=1)
            shardings = (whole, last, every, whole if loop.guard else None)
            jitted = jax.jit(run, donate_argnums=0, out_shardings=shardings)
            feed = self._feed(batch, program, loop)
            count = jax.ShapeDtypeStruct((), "int32")
            return Compiled(jitted.lower(state, feed, count, count))
        except jax.errors.JaxRuntimeError as error:
            platform = self._cores[0].platform
            raise BackendError(f"XLA could not compile {program.name!r} for the {platform}: {error}") from error

    def close(self) -> None:
        """Do nothing: JAX holds its devices until the process ends."""

    def _sharding(self, layout: Layout) -> NamedSharding:
        spec = () if layout.axis is None else (*[None] * layout.axis, REPLICA_AXIS)
        return NamedSharding(self._mesh, PartitionSpec(*spec))

    def _padded(self, leaf: Any, layout: Layout) -> Any:
        if layout.axis is None or isinstance(leaf, jax.Array):
            return leaf
        leaf = np.asarray(leaf)
        missing = -leaf.shape[layout.axis] % len(self._cores)
        widths = [(0, missing if axis == layout.axis else 0) for axis in range(leaf.ndim)]
        return np.pad(leaf, widths, mode="edge") if missing else leaf

    def _travelling(self, spec: jax.ShapeDtypeStruct, layout: Layout) -> jax.ShapeDtypeStruct:
        """Return the spec of a batch leaf as it travels: padded, and split over the mesh."""
        shape = list(spec.shape)
        if layout.axis is not None:
            shape[layout.axis] += -shape[layout.axis] % len(self._cores)
        return jax.ShapeDtypeStruct(tuple(shape), spec.dtype, sharding=self._sharding(layout))

    def _feed(self, batch: Tree, program: Program, loop: Loop) -> Tree:
        """Return the specs of a loop's feed: the data set whole on every core, what names or is a batch split."""
        feed = feed_specs(batch, program.layout, loop)
        if loop.feed == "rows":
            resident, numbers = feed
            return _specs(resident, self._sharding(Layout(None))), _specs(numbers, self._sharding(Layout(1)))
        return jax.tree.map(
            lambda spec, lay: _specs(spec, self._sharding(Layout(None if lay.axis is None else lay.axis + 1))),
            feed,
            program.layout,
        )

    def _cut(self, step: Step, batch: Tree) -> Step:
        """Return the step behind a cut of every batch leaf to its true size."""

        def cut(leaf: Any, spec: jax.ShapeDtypeStruct) -> Any:
            return leaf[tuple(slice(size) for size in spec.shape)] if leaf.shape != spec.shape else leaf

        return lambda state, travelled: step(state, jax.tree.map(cut, travelled, batch))

    def _mesh_step(self, program: Program) -> Step:
        """Return the step on whole arrays: as it is for whole-batch code, a `shard_map` for per-replica code."""
        if program.replicas is None:
            return program.step
        specs = jax.tree.map(lambda lay: self._sharding(lay).spec, program.layout)

        def one(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
            mine = jax.tree.map(lambda leaf, lay: leaf if lay.axis is None else leaf[0], batch, program.layout)
            state, outputs = program.step(state, mine)
            return state, jax.tree.map(lambda leaf: leaf[None], outputs)

        whole, split = PartitionSpec(), PartitionSpec(REPLICA_AXIS)
        return jax.shard_map(
            one, mesh=self._mesh, in_specs=(whole, specs), out_specs=(whole, split), check_vma=False
        )

    def _output_shardings(self, program: Program, step: Step, offset: int) -> Tree:
        """Split outputs with a row axis that the cores divide; every core holds the others whole."""
        rows = program.replicas or program.rows
        _, outputs = jax.eval_shape(step, program.state, program.batch)

        def sharding(spec: jax.ShapeDtypeStruct) -> NamedSharding:
            splits = bool(spec.shape) and spec.shape[0] == rows and rows % len(self._cores) == 0
            return self._sharding(Layout(offset if splits else None))

        return jax.tree.map(sharding, outputs)


def _specs(tree: Tree, sharding: NamedSharding) -> Tree:
    return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding), tree)
