"""Gradients of functions with rules of their own, inside `jax.shard_map` over the mesh of a layout.

The right value is the gradient on whole arrays, without a mesh.
"""

from case import check, finish

# isort: split
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

import anytpu as tpu

w, x = np.linspace(-1, 1, 32, dtype="float32").reshape(8, 4), np.linspace(-2, 2, 128, dtype="float32").reshape(16, 8)
functions = {
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "leaky_relu": jax.nn.leaky_relu,
    "logsumexp": lambda x: jax.nn.logsumexp(x, axis=1),
    "checkpoint": jax.checkpoint(lambda x: jnp.sin(jax.nn.relu(x))),
    "loop": lambda x: jax.lax.fori_loop(0, 3, lambda i, x: jax.nn.relu(x) * 1.1 + i, x),
}
for name, function in functions.items():

    def loss(w, x, function=function):
        return function(x @ w).sum()

    def inside(state, batch, loss=loss):
        def shard(w, x):
            return jax.lax.psum(jax.grad(loss)(w, x), "data")

        gradient = jax.shard_map(
            shard, in_specs=(PartitionSpec(), PartitionSpec("data")), out_specs=PartitionSpec(), check_vma=False
        )
        return {"w": state["w"] - gradient(state["w"], batch)}, {}

    def outside(state, batch, loss=loss):
        total = jax.shard_map(
            lambda w, x: jax.lax.psum(loss(w, x), "data"),
            in_specs=(PartitionSpec(), PartitionSpec("data")),
            out_specs=PartitionSpec(),
        )
        return {"w": state["w"] - jax.grad(total)(state["w"], batch)}, {}

    for step in (inside, outside):
        strategy = tpu.connect("virtual", cores=8, layout="fsdp")
        found, _ = strategy.run_steps(step, iter([x]), steps=1, state={"w": w})
        check(f"{name}, gradient {step.__name__}", w - jax.grad(loss)(w, x), found["w"])
finish()
