"""The local backend: this machine's TPU cores or GPUs, as one mesh.

Idea: whole-batch code is compiled once with the batch split over the mesh, and XLA inserts the collectives. Per-replica
code is the body of a `shard_map`. Both see the same arrays as on one device.

Rule: padding is for the transfer only. `put` pads an axis that is not a multiple of the number of cores. The compiled
program first cuts it to its true size, so pad rows never reach a model; XLA handles the uneven split from there.

`check_vma` is off in `shard_map`: with it on, `psum(grad(loss)(w))` is too large by a factor of the number of cores.
With it off, `shard_map` does not detect a state that differs between the cores. So per-replica code is also traced in
its one-device form, which detects it.
"""

from __future__ import annotations

from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from anytpu.engine.backend import Backend, Executable, Loop
from anytpu.engine.executable import CompiledExecutable
from anytpu.engine.loop import Step, cut_padding, feed_specs, make_loop, trace_step, with_checked_state
from anytpu.engine.numerics import apply_numerics
from anytpu.errors import BackendError
from anytpu.program.lowering import one_device_step
from anytpu.program.program import REPLICA_AXIS, Layout, Program, SharedOutput, Tree
from anytpu.system.cores import Core, Numerics


@final
class LocalBackend(Backend):
    """The accelerators of this machine.

    Args:
        cores: the cores to use; `device_id` of each is the id of its JAX device.
        numerics: "machine" or "tpu": the rounding of float32 products.

    Raises:
        BackendError: JAX runs on several hosts.
    """

    def __init__(self, cores: tuple[Core, ...], numerics: Numerics = "machine") -> None:
        check_hosts(jax.process_count())
        platforms = {core.platform for core in cores}
        devices = {(device.platform, device.id): device for name in platforms for device in jax.devices(name)}
        self._cores = cores
        self._numerics: Numerics = numerics
        self._mesh = Mesh(np.array([devices[core.platform, core.device_id] for core in cores]), (REPLICA_AXIS,))

    @property
    def cores(self) -> tuple[Core, ...]:
        """The cores, in the order of the mesh."""
        return self._cores

    def put(self, tree: Tree, layout: Layout) -> Tree:
        """Transfer arrays to the mesh; a split axis is padded with copies of its last row."""
        sharding, axis = self._sharding(layout), layout.axis
        if axis is not None:
            tree = jax.tree.map(lambda leaf: self._padded(leaf, axis), tree)
        return jax.device_put(tree, sharding)

    def get(self, tree: Tree) -> Tree:
        """Return the arrays themselves."""
        return tree

    def compile(self, program: Program, loop: Loop | None = None) -> Executable:
        """Compile a Program for the mesh."""
        step = apply_numerics(self._numerics, with_checked_state(program, self._mesh_step(program)))
        step, outputs = trace_step(step, program.state, program.batch)
        whole, last = self._sharding(Layout(None)), self._output_shardings(program, outputs, offset=0)
        state, batch = _specs(program.state, whole), jax.tree.map(self._padded_spec, program.batch, program.layout)
        if loop is None:
            run = self._with_cut_batch(step, program.batch)
            jitted = jax.jit(run, donate_argnums=0, out_shardings=(whole, last))
            arguments: tuple[Any, ...] = (state, batch)
        else:
            run = make_loop(step, program.state, program.batch, loop)
            every = self._output_shardings(program, outputs, offset=1) if loop.keeps_every else None
            shardings = (whole, last, every, whole if loop.guard else None)
            jitted = jax.jit(run, donate_argnums=0, out_shardings=shardings)
            count = jax.ShapeDtypeStruct((), "int32")
            arguments = (state, self._feed_specs(batch, program, loop), count, count)
        try:
            return CompiledExecutable(jitted.lower(*arguments))
        except jax.errors.JaxRuntimeError as error:
            platform = self._cores[0].platform
            raise BackendError(f"XLA could not compile {program.name!r} for the {platform}: {error}") from error

    def close(self) -> None:
        """Do nothing, because JAX holds its devices until the process ends."""

    def _sharding(self, layout: Layout) -> NamedSharding:
        spec = () if layout.axis is None else (*[None] * layout.axis, REPLICA_AXIS)
        return NamedSharding(self._mesh, PartitionSpec(*spec))

    def _padded(self, leaf: Any, axis: int) -> Any:
        leaf = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
        size = leaf.shape[axis]
        missing = -size % len(self._cores)
        return leaf[(*[slice(None)] * axis, np.minimum(np.arange(size + missing), size - 1))] if missing else leaf

    def _padded_spec(self, spec: jax.ShapeDtypeStruct, layout: Layout) -> jax.ShapeDtypeStruct:
        """Return the spec of a batch leaf on the mesh: padded, with the sharding of its layout."""
        shape = list(spec.shape)
        if layout.axis is not None:
            shape[layout.axis] += -shape[layout.axis] % len(self._cores)
        return jax.ShapeDtypeStruct(tuple(shape), spec.dtype, sharding=self._sharding(layout))

    def _feed_specs(self, batch: Tree, program: Program, loop: Loop) -> Tree:
        """Return the specs of a loop's feed: a resident data set is replicated; row indices and batches are split."""
        feed = feed_specs(batch, loop)
        if loop.feed == "rows":
            resident, indices = feed
            return _specs(resident, self._sharding(Layout(None))), _specs(indices, self._sharding(Layout(1)))
        return jax.tree.map(
            lambda spec, layout: _specs(spec, self._sharding(Layout(None if layout.axis is None else layout.axis + 1))),
            feed,
            program.layout,
        )

    def _with_cut_batch(self, step: Step, batch: Tree) -> Step:
        """Return the step preceded by a cut of every batch leaf to its true size."""
        return lambda state, padded: step(state, jax.tree.map(cut_padding, padded, batch))

    def _mesh_step(self, program: Program) -> Step:
        """Return the step on whole arrays: unchanged for whole-batch code, a `shard_map` for per-replica code."""
        if program.replicas is None:
            return program.step
        # The one-device form detects a state that differs between replicas, and shows which outputs are shared.
        _, output_forms = jax.eval_shape(one_device_step(program), program.state, program.batch)
        batch_specs = jax.tree.map(lambda layout: self._sharding(layout).spec, program.layout)

        def replica_step(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
            shard = jax.tree.map(lambda leaf, layout: leaf if layout.axis is None else leaf[0], batch, program.layout)
            state, outputs = program.step(state, shard)
            return state, jax.tree.map(_replica_output, output_forms, outputs, is_leaf=SharedOutput.is_one)

        whole, split = PartitionSpec(), PartitionSpec(REPLICA_AXIS)
        output_specs = jax.tree.map(
            lambda form: whole if SharedOutput.is_one(form) else split, output_forms, is_leaf=SharedOutput.is_one
        )
        in_specs, out_specs = (whole, batch_specs), (whole, output_specs)
        return jax.shard_map(replica_step, mesh=self._mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)

    def _output_shardings(self, program: Program, outputs: Tree, offset: int) -> Tree:
        """Split an output if the number of cores divides its row axis; replicate the others."""
        rows = program.replicas or program.rows
        divides = rows is not None and rows % len(self._cores) == 0

        def sharding(spec: Any) -> NamedSharding:
            splits = divides and not SharedOutput.is_one(spec) and spec.shape[:1] == (rows,)
            return self._sharding(Layout(offset if splits else None))

        return jax.tree.map(sharding, outputs, is_leaf=SharedOutput.is_one)


def check_hosts(count: int) -> None:
    """Check that JAX runs on a single host.

    Args:
        count: number of hosts, one JAX process each.

    Raises:
        BackendError: there are several hosts.
    """
    if count > 1:
        raise BackendError(
            f"JAX runs on {count} hosts, and this release of anytpu uses the TPU cores or GPUs of one host only. Start "
            "the program on one host, without jax.distributed.initialize()"
        )


def _replica_output(form: Any, value: Any) -> Any:
    """Return the output of one replica: shared if its one-device form is shared, else with a leading replica axis."""
    return SharedOutput(jnp.asarray(value)) if SharedOutput.is_one(form) else jnp.asarray(value)[None]


def _specs(tree: Tree, sharding: NamedSharding) -> Tree:
    return jax.tree.map(lambda spec: jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=sharding), tree)
