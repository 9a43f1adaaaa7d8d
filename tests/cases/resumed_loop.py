"""Kind: a custom loop that continues from a checkpoint computes otherwise than the uninterrupted one.

Right: the bits, dtypes and weak types of the uninterrupted loop, which the program runs beside the continued one.
"""

import anytpu as tpu  # isort: skip
from case import check_equal, finish  # isort: skip

import tempfile

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


class Noise(nnx.Module):
    """A weight, random keys, and a number."""

    def __init__(self) -> None:
        self.weight, self.rngs, self.calls = nnx.Param(jnp.ones(3, "bfloat16")), nnx.Rngs(7), 0


def loop(folder: str, last: int) -> tuple[dict, Noise]:
    """Run the steps that are left of a loop."""
    net = eqx.nn.Linear(3, 3, key=jax.random.key(0))
    state = {"net": net, "rate": jnp.asarray(0.125), "key": jax.random.key(1), "count": 0}
    module = Noise()
    for _ in tpu.Checkpointer(folder, every_steps=1).steps(last, state=state, module=module):
        state["key"], key = jax.random.split(state["key"])
        noise = jax.random.normal(module.rngs(), (3,)) + jax.random.normal(key, (3,))
        module.weight[...] = module.weight[...] * state["rate"] + noise.astype("bfloat16")
        state["net"] = jax.tree.map(lambda leaf: leaf * 0.5 if eqx.is_array(leaf) else leaf, state["net"])
        state["rate"], state["count"] = state["rate"] * 0.9, state["count"] + 0.5
        module.calls += 1
    return state, module


def facts(values: tuple[dict, Noise]) -> list:
    """Return the bits and the types of all leaves."""
    state, module = values
    state = {**state, "key": jax.random.key_data(state["key"])}
    leaves = [*jax.tree.leaves(eqx.filter(state, eqx.is_array)), module.weight[...], module.rngs.default.count[...]]
    arrays = [(str(v.dtype), v.weak_type, np.asarray(v).tobytes().hex()[:8]) for v in leaves]
    return [*arrays, state["count"], module.calls]


whole = facts(loop(tempfile.mkdtemp(), 4))
folder = tempfile.mkdtemp()
loop(folder, 2)
check_equal("the continued loop", whole, facts(loop(folder, 4)))
finish()
