"""The local backend: the TPU cores or GPUs of this machine, or of all hosts of a job, as one mesh.

Idea: whole-batch code is compiled once with the batch split over the mesh, and XLA inserts the collectives. Per-replica
code is the body of a `shard_map`. Both see the same arrays as on one device.

A program with a placement runs on a mesh of its named axes. Its new state has the shardings of the old state.

Rule: padding is for the transfer only. `put` pads an axis that its cores do not divide. The compiled program first cuts
it to its true size, so pad rows never reach a model; XLA handles the uneven split from there. A state is never padded.

On several hosts each process runs the same calls. `put` is given the same array on every host, and each host transfers
the part of its devices. Outputs are gathered within the program, so every host can read them without the others.

`check_vma` is off in `shard_map`: with it on, `psum(grad(loss)(w))` is too large by a factor of the number of cores.
With it off, `shard_map` does not detect a state that differs between the cores. So per-replica code is also traced in
its one-device form, which detects it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.mesh_utils import create_device_mesh
from jax.extend.core import ClosedJaxpr
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from anytpu.engine.backend import Backend, Executable, Loop
from anytpu.engine.executable import CompiledExecutable, is_canonical, is_ready, wait
from anytpu.engine.hosts import hosts_of
from anytpu.engine.joint_sums import with_joint_sums
from anytpu.engine.loop import Step, cut_padding, feed_specs, make_loop, trace_step, with_checked_state
from anytpu.engine.numerics import apply_numerics
from anytpu.engine.shards import check_fits, feed_layouts, row_layout, whole_layout
from anytpu.errors import BackendError
from anytpu.program.jaxprs import with_rewritten_trace
from anytpu.program.lowering import one_device_step
from anytpu.program.program import REPLICA_AXIS, ROWS, Layout, Program, SharedOutput, Tree, array_layouts
from anytpu.system.cores import Core, Numerics


@final
class LocalBackend(Backend):
    """The accelerators of this machine, or of all hosts of a job.

    Args:
        cores: the cores to use; `device_id` of each is the id of its JAX device.
        numerics: "machine" or "tpu": the rounding of float32 products.

    Attributes:
        hosts: the hosts of these cores.
    """

    def __init__(self, cores: tuple[Core, ...], numerics: Numerics = "machine") -> None:
        platforms = {core.platform for core in cores}
        devices = {(device.platform, device.id): device for name in platforms for device in jax.devices(name)}
        self._cores = cores
        self._numerics: Numerics = numerics
        self._devices = [devices[core.platform, core.device_id] for core in cores]
        self._mesh = Mesh(np.array(self._devices), (REPLICA_AXIS,))
        self.hosts = hosts_of(self._mesh)
        self._named_mesh = functools.cache(functools.partial(_named_mesh, tuple(self._devices)))

    @property
    def abstract_device(self) -> Any:
        """Kind of the devices of the mesh."""
        return self._mesh.abstract_mesh.abstract_device

    @property
    def cores(self) -> tuple[Core, ...]:
        """The cores, in the order of the mesh."""
        return self._cores

    def put(self, tree: Tree, layout: Layout) -> Tree:
        """Transfer arrays to the mesh; a split axis is padded with copies of its last row."""
        pieces, sharding = layout.pieces(len(self._cores)), self.sharding(layout)
        padded = jax.tree.map(lambda leaf: _padded(leaf, pieces), tree)
        if self.hosts.is_alone:
            return jax.device_put(padded, sharding)
        return jax.tree.map(lambda leaf: self._put_own_part(leaf, sharding), padded)

    def put_once(self, tree: Tree, layout: Layout) -> Tree:
        """Return NumPy arrays unchanged if one host has all cores and they divide them: a call takes them along."""
        pieces = layout.pieces(len(self._cores)).items()

        def travels(leaf: Any) -> bool:
            return self.hosts.is_alone and is_canonical(leaf) and all(leaf.shape[a] % n == 0 for a, n in pieces)

        return jax.tree.map(lambda leaf: leaf if travels(leaf) else self.put(leaf, layout), tree)

    def get(self, tree: Tree) -> Tree:
        """Return the arrays themselves; on several hosts whole copies, which this host can read alone."""
        return tree if self.hosts.is_alone else jax.tree.map(self._whole, tree)

    def get_later(self, tree: Tree) -> Tree:
        """Return what `get` does, whose arrays are perhaps still being computed."""
        return self.get(tree)

    def is_ready(self, tree: Tree) -> bool:
        """Return whether JAX has computed the arrays."""
        return is_ready(tree)

    def wait(self, tree: Tree) -> None:
        """Wait until JAX has computed the arrays."""
        wait(tree)

    def compile(self, program: Program, loop: Loop | None = None) -> Executable:
        """Compile a Program for the mesh."""
        check_fits(program, self._cores)
        # 1. Make the step on whole arrays, and rewrite its trace.
        step = apply_numerics(self._numerics, with_checked_state(program, self._mesh_step(program)))
        if self._is_joined_by_tcp and program.replicas is None and program.placement is None:
            step = with_rewritten_trace(step, functools.partial(self._join_sums, program))
        # 2. Trace it once, for the specs of its outputs. A placement is pinned inside the step, so it also holds in a
        # loop.
        step, outputs = trace_step(step, program.state, program.batch)
        if program.placement is not None:
            step = self._pinned(step, program)
        # 3. Choose the shardings. The new state has those of the old one, because it is an argument of the next call.
        state_layout, batch_layout = array_layouts(program)
        laid = jax.tree.map(self.sharding, state_layout)
        whole = self.sharding(whole_layout(jax.tree.leaves(batch_layout)))
        last = self._output_shardings(program, outputs, stacked=False)
        state = jax.tree.map(_spec, program.state, laid)
        # 4. Wrap the step: alone, or in a loop over a feed. The state is donated, so XLA may reuse its buffers.
        if loop is None:
            run = self._with_cut_batch(step, program.batch)
            jitted = jax.jit(run, donate_argnums=0, out_shardings=(laid, last))
            batch = jax.tree.map(self._padded_spec, program.batch, batch_layout)
            arguments: tuple[Any, ...] = (state, batch)
        else:
            run = make_loop(step, program.state, program.batch, loop)
            every = self._output_shardings(program, outputs, stacked=True) if loop.keeps_every else None
            shardings = (laid, last, every, whole if loop.guard else None)
            jitted = jax.jit(run, donate_argnums=0, out_shardings=shardings)
            count = jax.ShapeDtypeStruct((), "int32")
            feed = jax.tree.map(self._padded_spec, feed_specs(program.batch, loop), feed_layouts(batch_layout, loop))
            arguments = (state, feed, count, count)
        # 5. Lower and compile.
        try:
            lowered = jitted.lower(*arguments)
            executable = CompiledExecutable(lowered)
        except jax.errors.JaxRuntimeError as error:
            platform = self._cores[0].platform
            raise BackendError(f"XLA could not compile {program.name!r} for the {platform}: {error}") from error
        # 6. Compare the modules of the hosts: a collective waits for all hosts, so all must run the same ones.
        if not self.hosts.is_alone:
            self.hosts.check_program(program.name, lowered.as_text())
        return executable

    def close(self) -> None:
        """Do nothing, because JAX holds its devices until the process ends."""

    def sharding(self, layout: Layout) -> NamedSharding:
        """Return the sharding of a layout."""
        if layout.mesh:
            return NamedSharding(self._named_mesh(layout.mesh), PartitionSpec(*layout.spec))
        spec = () if layout.axis is None else (*[None] * layout.axis, REPLICA_AXIS)
        return NamedSharding(self._mesh, PartitionSpec(*spec))

    def _put_own_part(self, leaf: Any, sharding: NamedSharding) -> Any:
        """Transfer the parts of an array that belong to the devices of this host."""
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            return jax.device_put(leaf, sharding)  # A handle: all hosts exchange their parts.
        array = np.asarray(leaf)
        array = array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
        # Arrays that differ by host, the rows of each one, do not enter the digest that the hosts compare.
        if sharding.is_fully_replicated or not self.hosts.has_own_rows:
            self.hosts.count_bytes(array)
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    @property
    def _is_joined_by_tcp(self) -> bool:
        """Whether the cores are CPU devices of several processes. Other platforms join the all-reduces themselves."""
        return not self.hosts.is_alone and self._cores[0].platform == "cpu"

    def _join_sums(self, program: Program, closed: ClosedJaxpr) -> ClosedJaxpr:
        layouts = [layout.axis for _, layout in program.leaves()]
        return with_joint_sums(closed, [None] * (len(closed.jaxpr.invars) - len(layouts)) + layouts, self._mesh)

    def _whole(self, leaf: Any) -> Any:
        """Return an array of the mesh as an array of one device of this host; all hosts must gather a split array."""
        if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
            return leaf
        return (leaf if leaf.is_fully_replicated else self._gather(leaf)).addressable_data(0)

    @functools.cached_property
    def _gather(self) -> Any:
        return jax.jit(lambda leaf: leaf, out_shardings=self.sharding(Layout()))

    def _padded_spec(self, spec: jax.ShapeDtypeStruct, layout: Layout) -> jax.ShapeDtypeStruct:
        """Return the spec of an array on the mesh: padded, with the sharding of its layout."""
        shape = list(spec.shape)
        for axis, pieces in layout.pieces(len(self._cores)).items():
            shape[axis] += -shape[axis] % pieces
        return jax.ShapeDtypeStruct(tuple(shape), spec.dtype, sharding=self.sharding(layout))

    def _pinned(self, step: Step, program: Program) -> Step:
        """Return the step with its batch and its new state in the shardings of the placement, also inside a loop."""
        state_layout, batch_layout = array_layouts(program)

        def pin(leaf: Any, layout: Layout) -> Any:
            pieces = layout.pieces(len(self._cores))
            # JAX rejects a sharding constraint that does not divide its axis, and the batch may be uneven.
            is_even = all(leaf.shape[axis] % count == 0 for axis, count in pieces.items())
            return jax.lax.with_sharding_constraint(leaf, self.sharding(layout)) if is_even else leaf

        def pinned_step(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
            state, outputs = step(state, jax.tree.map(pin, batch, batch_layout))
            return jax.tree.map(pin, state, state_layout), outputs

        return pinned_step

    def _with_cut_batch(self, step: Step, batch: Tree) -> Step:
        """Return the step preceded by a cut of every batch leaf to its true size."""
        return lambda state, padded: step(state, jax.tree.map(cut_padding, padded, batch))

    def _mesh_step(self, program: Program) -> Step:
        """Return the step on whole arrays: unchanged for whole-batch code, a `shard_map` for per-replica code."""
        if program.replicas is None:
            return one_device_step(program)
        # The one-device form detects a state that differs between replicas, and shows which outputs are shared.
        _, output_forms = jax.eval_shape(one_device_step(program), program.state, program.batch)
        batch_specs = jax.tree.map(lambda layout: self.sharding(layout).spec, program.layout)

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

    def _output_shardings(self, program: Program, outputs: Tree, stacked: bool) -> Tree:
        """Split an output like the rows of the batch if they divide its row axis; replicate the others.

        On several hosts all outputs are replicated, so that each host can read them.
        """
        rows, whole = program.replicas or program.rows, whole_layout(jax.tree.leaves(array_layouts(program)))
        split = row_layout(array_layouts(program)[1]) if program.placement else ROWS
        divides = self.hosts.is_alone and rows is not None and rows % split.pieces(len(self._cores)).get(0, 1) == 0

        def sharding(spec: Any) -> NamedSharding:
            splits = divides and not SharedOutput.is_one(spec) and spec.shape[:1] == (rows,)
            layout = split if splits else whole
            return self.sharding(layout.stacked() if stacked else layout)

        return jax.tree.map(sharding, outputs, is_leaf=SharedOutput.is_one)


def _replica_output(form: Any, value: Any) -> Any:
    """Return the output of one replica: shared if its one-device form is shared, else with a leading replica axis."""
    return SharedOutput(jnp.asarray(value)) if SharedOutput.is_one(form) else jnp.asarray(value)[None]


def _spec(spec: jax.ShapeDtypeStruct, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=sharding)


def _padded(leaf: Any, pieces: Mapping[int, int]) -> Any:
    """Return an array with each split axis padded to a multiple of its pieces."""
    leaf = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
    for axis, count in pieces.items():
        size = leaf.shape[axis]
        if missing := -size % count:
            leaf = leaf[(*[slice(None)] * axis, np.minimum(np.arange(size + missing), size - 1))]
    return leaf


def _named_mesh(devices: tuple[Any, ...], axes: tuple[tuple[str, int], ...]) -> Mesh:
    """Return the mesh of named axes, in the order of devices that suits the chips' network."""
    names, sizes = zip(*axes, strict=True)
    return Mesh(create_device_mesh(sizes, devices, allow_split_physical_axes=True), names)
