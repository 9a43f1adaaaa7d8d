"""A loss that is equal on all replicas counts once, and a mean over the rows of one replica is refused by name.

The right gradient is that of the mean over all rows, by `jax.grad` on one device. It had been too large, as many times
as there are replicas. The kind: each way to write the loss of a batch in a step of one replica.
"""

from case import check, check_equal, finish

import anytpu as tpu  # isort: skip
import jax
import jax.numpy as jnp
import numpy as np

rng = np.random.default_rng(0)
x, y = rng.normal(size=(16, 3)).astype("float32"), rng.normal(size=(16,)).astype("float32")
weight = jnp.asarray(rng.normal(size=3), "float32")
strategy = tpu.connect("virtual", cores=8)
(batch,) = strategy.distribute_dataset([(x, y)])


def losses(w, x, y):
    return (x @ w - y) ** 2


def gathered(array):
    return tpu.get_replica_context().all_gather(array, 0)


def psum(array):
    return jax.lax.psum(array, "replica")


right = {
    "psum of sums": lambda w, x, y: psum(losses(w, x, y).sum()) / 16,
    "pmean of means": lambda w, x, y: jax.lax.pmean(losses(w, x, y).mean(), "replica"),
    "all_reduce": lambda w, x, y: tpu.get_replica_context().all_reduce("SUM", losses(w, x, y).sum() / 16),
    "ratio of psums": lambda w, x, y: psum(losses(w, x, y).sum()) / psum(len(x)),
    "gathered rows": lambda w, x, y: losses(w, gathered(x), gathered(y)).mean(),
    "share": lambda w, x, y: tpu.compute_average_loss(losses(w, x, y)),
    "sum over the rows of the batch": lambda w, x, y: losses(w, x, y).sum() / 16,
    "mean by the replicas": lambda w, x, y: losses(w, x, y).mean() / strategy.num_replicas_in_sync,
}
refused = {
    "mean": lambda w, x, y: losses(w, x, y).mean(),
    "sum by len": lambda w, x, y: losses(w, x, y).sum() / len(x),
    "half a mean": lambda w, x, y: 0.5 * losses(w, x, y).mean(),
    "masked mean": lambda w, x, y: (losses(w, x, y) * (y < 9)).sum() / (y < 9).sum(),
    "share and a regularizer": lambda w, x, y: tpu.compute_average_loss(losses(w, x, y)) + (w**2).sum(),
}
expected = jax.grad(lambda w: losses(w, x, y).mean())(weight)


def gradient_of(loss):
    found = strategy.run(lambda w, batch: tpu.value_and_grad(loss, w)(*batch)[1], args=(weight, batch))
    return np.asarray(found.values[0])


for name, loss in right.items():
    check(name, expected, gradient_of(loss))
for name, loss in refused.items():
    try:
        found = f"not refused, {gradient_of(loss)}"
    except tpu.errors.ReplicaError as error:
        found = "gradients of 8 replicas" in str(error)
    check_equal(name, True, found)
finish()
