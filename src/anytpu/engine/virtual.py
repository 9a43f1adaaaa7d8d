"""The virtual backend: N logical TPU cores on one CPU device of this machine.

Idea: a core need not be a device. Per-replica code runs under `vmap`, one lane per core. Whole-batch code has the same
results on one device as on eight, so it runs unchanged. Eight host devices on one CPU are no alternative: they are five
times slower than one device, and their all-reduce can deadlock.

Rule: only while a Program is traced here, Keras's convolution and LSTM are lowered to forms that are fast on XLA:CPU
(`engine/kernels.py`). No axis is ever padded, because one device divides every batch.
"""

from __future__ import annotations

from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from anytpu import _env
from anytpu.engine.backend import Backend, Executable, Loop
from anytpu.engine.executable import CompiledExecutable, is_canonical, is_ready, wait
from anytpu.engine.kernels import fast_kernels, fuse_other_sums, prepare_memory
from anytpu.engine.loop import feed_specs, make_loop, with_checked_state
from anytpu.engine.numerics import apply_numerics
from anytpu.engine.shards import for_one_device
from anytpu.errors import BackendError
from anytpu.program.lowering import one_device_step
from anytpu.program.program import Layout, Program, Tree
from anytpu.system.cores import Core, Numerics

_SMALL_BYTES = 2**20
"""Size below which a copy into a JAX array is faster than `jax.device_put`."""


@final
class VirtualBackend(Backend):
    """Virtual TPU cores, simulated on the CPU.

    Args:
        cores: the virtual cores.
        numerics: "machine" or "tpu": the rounding of float32 products.

    Raises:
        SettingError: JAX cannot start a platform that JAX_PLATFORMS names.
    """

    is_host = True

    def __init__(self, cores: tuple[Core, ...], numerics: Numerics = "machine") -> None:
        self._cores = cores
        self._numerics: Numerics = numerics
        try:
            self._device = jax.local_devices(backend="cpu")[0]
            self._is_default = jax.default_backend() == "cpu"
        except RuntimeError as error:
            raise _env.platforms_error(error) or error from error
        self._sharding = jax.sharding.SingleDeviceSharding(self._device)

    @property
    def cores(self) -> tuple[Core, ...]:
        """The virtual cores."""
        return self._cores

    def put(self, tree: Tree, layout: Layout) -> Tree:
        """Put arrays on the CPU device; the layout has no effect on one device."""
        return jax.tree.map(self._put, tree)

    def put_once(self, tree: Tree, layout: Layout) -> Tree:
        """Return NumPy arrays unchanged: a call accepts them, which is faster than a conversion to JAX arrays."""
        return jax.tree.map(lambda leaf: leaf if is_canonical(leaf) else self._put(leaf), tree)

    def get(self, tree: Tree) -> Tree:
        """Return the arrays themselves."""
        return tree

    def get_later(self, tree: Tree) -> Tree:
        """Return the arrays themselves, perhaps still being computed."""
        return tree

    def is_ready(self, tree: Tree) -> bool:
        """Return whether JAX has computed the arrays."""
        return is_ready(tree)

    def wait(self, tree: Tree) -> None:
        """Wait until JAX has computed the arrays."""
        wait(tree)

    def compile(self, program: Program, loop: Loop | None = None) -> Executable:
        """Compile a Program for the CPU. A placement places nothing on one device; it is checked, and dropped."""
        program = for_one_device(program, self._cores)
        step = with_checked_state(program, one_device_step(program))
        step = apply_numerics(self._numerics, step)
        state, batch = self._device_specs(program.state), self._device_specs(program.batch)
        kernels = fast_kernels(layers=self._numerics == "machine")
        try:
            with kernels, jax.default_device(self._device):
                if loop is None:
                    return _compile(jax.jit(step, donate_argnums=0).lower(state, batch))
                run = make_loop(step, state, batch, loop)
                feed = self._device_specs(feed_specs(batch, loop))
                count = jax.ShapeDtypeStruct((), "int32")
                return _compile(jax.jit(run, donate_argnums=0).lower(state, feed, count, count))
        except jax.errors.JaxRuntimeError as error:
            raise BackendError(f"XLA could not compile {program.name!r} for the CPU: {error}") from error

    def close(self) -> None:
        """Do nothing, because the CPU is not reserved."""

    def _put(self, leaf: Any) -> jax.Array:
        """Put one array on the device. A small one is copied, which is three times faster than `jax.device_put`."""
        is_small = isinstance(leaf, np.ndarray) and leaf.nbytes < _SMALL_BYTES
        override = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
        if is_small and self._is_default and override is None:
            return jnp.array(leaf)
        return jax.device_put(leaf, self._sharding)

    def _device_specs(self, specs: Tree) -> Tree:
        return jax.tree.map(lambda spec: jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=self._sharding), specs)


def _compile(lowered: jax.stages.Lowered) -> CompiledExecutable:
    """Compile, and prepare the memory allocator for the temporary buffers of the executable."""
    fuse_other_sums(lowered)
    executable = CompiledExecutable(lowered)
    prepare_memory(executable.temporary_bytes)
    return executable
