"""The in-memory twin: a backend whose handles raise on any use except `get`.

Idea: a front door that reads a handle directly works on the backends of this process, and fails on one in another
process. On the twin it fails at once, in a test.

Rule: any misuse that another backend may tolerate is an error here. A call invalidates the handles of its state, even
if XLA did not reuse the buffers.
"""

from __future__ import annotations

from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from anytpu.engine.backend import Backend, Executable, Loop, StepResults
from anytpu.engine.handles import Handle, consume, value_of
from anytpu.engine.virtual import VirtualBackend
from anytpu.program.program import Layout, Program, Tree
from anytpu.system.cores import Core, Numerics


@final
class TwinBackend(Backend):
    """Virtual cores behind opaque handles.

    Args:
        cores: the virtual cores.
        numerics: "machine" or "tpu": the rounding of float32 products.
    """

    def __init__(self, cores: tuple[Core, ...], numerics: Numerics = "machine") -> None:
        self._inner = VirtualBackend(cores, numerics)

    @property
    def cores(self) -> tuple[Core, ...]:
        """The cores."""
        return self._inner.cores

    def put(self, tree: Tree, layout: Layout) -> Tree:
        """Copy arrays in; handles pass through."""
        return self.put_once(tree, layout)

    def put_once(self, tree: Tree, layout: Layout) -> Tree:
        """Return handles of copies that a call takes along, so this is no transfer of its own; handles pass through."""

        def put_leaf(leaf: Any) -> Handle:
            if isinstance(leaf, Handle):
                return leaf
            return Handle(self._inner.put(_copy(leaf), layout))

        return jax.tree.map(put_leaf, tree)

    def get(self, tree: Tree) -> Tree:
        """Copy arrays out, as NumPy arrays; typed random keys as JAX arrays."""
        return jax.tree.map(lambda handle: _copy(value_of(handle)), tree)

    def is_ready(self, tree: Tree) -> bool:
        """Return whether the arrays behind the handles are computed."""
        return self._inner.is_ready(_open(tree))

    def wait(self, tree: Tree) -> None:
        """Wait until the arrays behind the handles are computed."""
        self._inner.wait(_open(tree))

    def compile(self, program: Program, loop: Loop | None = None) -> Executable:
        """Compile a Program with the virtual backend."""
        return _TwinExecutable(self._inner.compile(program, loop))

    def close(self) -> None:
        """Close the inner backend."""
        self._inner.close()


@final
class _TwinExecutable(Executable):
    def __init__(self, inner: Executable) -> None:
        self._inner = inner

    @property
    def outputs(self) -> Tree:
        return self._inner.outputs

    def step(self, state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        result = self._inner.step(_open(state), _open(batch))
        _consume(state)
        return _close(result)

    def steps(self, state: Tree, feed: Tree, start: int, count: int) -> StepResults:
        steps = self._inner.steps(_open(state), _open(feed), start, count)
        _consume(state)
        return StepResults(_close(steps.state), _close(steps.last), _close(steps.every), count, _close(steps.bad_steps))


def _copy(leaf: Any) -> Any:
    """Copy an array; a typed random key stays a JAX array, because NumPy has no such dtype."""
    is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return leaf.copy() if is_key else np.array(leaf)


def _consume(state: Tree) -> None:
    """Invalidate the handles of a state."""
    for handle in jax.tree.leaves(state):
        consume(handle)


def _open(tree: Tree) -> Tree:
    return jax.tree.map(value_of, tree)


def _close(tree: Tree) -> Tree:
    return jax.tree.map(Handle, tree)
