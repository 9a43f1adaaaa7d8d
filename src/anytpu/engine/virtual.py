"""The virtual backend: N logical TPU cores on one CPU device of this machine.

Idea: a core need not be a device. Per-replica code runs under `vmap`, one lane a core; whole-batch code computes the
same numbers on one device as on eight, so it runs as it is. There is no other way to have eight fast cores on a laptop:
eight devices forced out of one CPU are five times slower than one, and their all-reduce can deadlock.

Rule: while a Program is traced here, and only then, Keras's convolution and LSTM are lowered the way XLA's CPU compiler
runs them fast (`engine/kernels.py`). Nothing is ever padded: one device divides every batch.
"""

from __future__ import annotations

from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from anytpu.engine.backend import Backend, Executable, Loop
from anytpu.engine.executable import Compiled
from anytpu.engine.kernels import fast_kernels, prepare_memory
from anytpu.engine.loop import carried, feed_specs, is_loop, looped
from anytpu.engine.numerics import computed_by
from anytpu.engine.small_loops import next_loop_left
from anytpu.errors import BackendError
from anytpu.program.lowering import one_device_step
from anytpu.program.program import Layout, Program, Tree
from anytpu.program.summed_products import summing_products
from anytpu.system.cores import Core, Numerics

_SMALL_BYTES = 2**20


@final
class VirtualBackend(Backend):
    """Virtual TPU cores, simulated on the CPU.

    Args:
        cores: the cores to stand in for.
        numerics: how float32 products are computed.
    """

    is_host = True

    def __init__(self, cores: tuple[Core, ...], numerics: Numerics = "machine") -> None:
        self._cores = cores
        self._numerics: Numerics = numerics
        self._device = jax.local_devices(backend="cpu")[0]
        self._is_default = jax.default_backend() == "cpu"
        self._sharding = jax.sharding.SingleDeviceSharding(self._device)

    @property
    def cores(self) -> tuple[Core, ...]:
        """The virtual cores."""
        return self._cores

    def put(self, tree: Tree, layout: Layout) -> Tree:
        """Bring arrays to the CPU device; the layout makes no difference on one device."""
        return jax.tree.map(self._put, tree)

    def put_once(self, tree: Tree, layout: Layout) -> Tree:
        """Return NumPy arrays as they are: a call takes them, and faster than JAX makes arrays of its own of them."""
        return jax.tree.map(lambda leaf: leaf if _is_canonical(leaf) else self._put(leaf), tree)

    def get(self, tree: Tree) -> Tree:
        """Return the arrays themselves."""
        return tree

    def compile(self, program: Program, loop: Loop | None = None) -> Executable:
        """Compile a Program for the CPU."""
        step = carried(program, one_device_step(program))
        if program.replicas is not None and program.replicas > 1:
            step = summing_products(step)
        step = computed_by(self._numerics, step)
        state, batch = self._here(program.state), self._here(program.batch)
        kernels = fast_kernels(lstm=self._numerics == "machine")
        try:
            with kernels, next_loop_left(is_loop(loop)), jax.default_device(self._device):
                if loop is None:
                    return _prepared(Compiled(jax.jit(step, donate_argnums=0).lower(state, batch)))
                run = looped(step, state, batch, loop)
                feed = self._here(feed_specs(batch, loop))
                count = jax.ShapeDtypeStruct((), "int32")
                return _prepared(Compiled(jax.jit(run, donate_argnums=0).lower(state, feed, count, count)))
        except jax.errors.JaxRuntimeError as error:
            raise BackendError(f"XLA could not compile {program.name!r} for the CPU: {error}") from error

    def close(self) -> None:
        """Do nothing: a CPU is not held."""

    def _put(self, leaf: Any) -> jax.Array:
        """Bring one array to the device. A small one is copied, which JAX does three times faster than placing it."""
        is_small = isinstance(leaf, np.ndarray) and leaf.nbytes < _SMALL_BYTES
        override = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
        if is_small and self._is_default and override is None:
            return jnp.array(leaf)
        return jax.device_put(leaf, self._sharding)

    def _here(self, specs: Tree) -> Tree:
        return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=self._sharding), specs)


def _prepared(executable: Compiled) -> Compiled:
    prepare_memory(executable.temporary_bytes)
    return executable


def _is_canonical(leaf: Any) -> bool:
    """Say whether this is a NumPy array of a dtype that JAX would not change."""
    return isinstance(leaf, np.ndarray) and jax.dtypes.canonicalize_dtype(leaf.dtype) == leaf.dtype
