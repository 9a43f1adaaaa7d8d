"""A batch that does not fill the replicas: each replica's results are those of its rows alone, whatever Python does.

The right values are those of the function called on the replica's rows, or of sums over the rows of all replicas.
"""

from case import check, finish

import anytpu as tpu  # isort: skip
import jax
import jax.numpy as jnp
import numpy as np

rows = np.arange(14.0, dtype="float32")
strategy = tpu.connect("virtual", cores=4)
batch = next(iter(strategy.distribute_dataset([rows])))
parts = [rows[0:4], rows[4:8], rows[8:12], rows[12:14]]

STEPS = {
    "numbers of rows": lambda x: jnp.arange(len(x)),
    "a branch": lambda x: jnp.sum(x) if len(x) > 2 else -jnp.sum(x),
    "a limit": lambda x: jnp.sum(x) / min(len(x), 3),
    "no result for few rows": lambda x: 0.0 if len(x) < 3 else x.sum(),
    "half of the rows": lambda x: x[: len(x) // 2],
    "the best two": lambda x: jax.lax.top_k(x, 2)[0],
    "turned": lambda x: x[:, None].T,
}
for name, step in STEPS.items():
    values = strategy.run(step, args=(batch,)).values
    for part, value in zip(parts, values, strict=True):
        check(name, step(jnp.asarray(part)), value)


def total(value):
    return jax.lax.psum(value, "replica")


def loss(weight, x):
    return tpu.compute_average_loss((x * weight) ** 2)


TOTALS = {
    "rows of all": (lambda x: total(len(x)), 14),
    "a sum in a loop": (lambda x: jax.lax.fori_loop(0, 3, lambda _, c: c + total(x.sum()), 0.0), 273),
    "all rows": (lambda x: tpu.get_replica_context().all_gather(x, 0).sum(), 91),
    "a gradient": (lambda x: tpu.value_and_grad(loss, jnp.float32(1))(x)[1], 2 * float(np.mean(rows**2))),
}
for name, (step, expected) in TOTALS.items():
    check(name, [expected] * 4, strategy.run(step, args=(batch,)).values)
one = next(iter(strategy.distribute_dataset([rows[5:6]])))
check("one row on four replicas", [25.0] * 4, strategy.run(lambda x: total((x**2).sum()), args=(one,)).values)
finish()
