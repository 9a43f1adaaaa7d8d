"""Gradients of `tpu.value_and_grad` are used like arrays in a loop by hand, and are never summed twice.

The right weights are those of the same loop in NumPy on one device. The kind: arithmetic, functions of JAX and Keras,
accumulators, a loop of two gradients (SAM), a scaled loss.
"""

from case import check, finish

import anytpu as tpu  # isort: skip
import jax.numpy as jnp
import keras
import numpy as np

x = np.arange(1, 17, dtype="float32").reshape(8, 2) / 10
start = np.array([0.5, -0.25], "float32")
strategy = tpu.connect("virtual", cores=4)
(batch,) = strategy.distribute_dataset([x])


def gradient(w):
    return 2 * ((x @ w - 1) @ x) / 8


def trained(change, steps=2):
    with strategy.scope():
        weight, total = keras.Variable(start), keras.Variable(np.zeros(2, "float32"))
        optimizer = keras.optimizers.SGD(0.1)

    def step(x):
        differentiate = tpu.value_and_grad(lambda: tpu.compute_average_loss((x @ weight.value - 1) ** 2), [weight])
        changed = change(differentiate()[1], weight, total, differentiate)
        optimizer.apply_gradients(zip(changed, [weight], strict=True))

    for _ in range(steps):
        strategy.run(step, args=(batch,))
    return np.asarray(weight.value)


def sharpened(gradients, weight, total, differentiate):
    move = [0.05 * g / jnp.linalg.norm(g) for g in gradients]
    weight.assign_add(move[0])
    gradients = differentiate()[1]
    weight.assign_sub(move[0])
    return gradients


def added(gradients, weight, total, differentiate):
    total.assign_add(gradients[0])
    return [total / 2]


unit = lambda g: g / np.linalg.norm(g)  # noqa: E731
loops = {
    "division": (lambda gs, *_: [g / 4 for g in gs], lambda g, w: g / 4),
    "weight decay": (lambda gs, w, *_: [g + 0.1 * w for g in gs], lambda g, w: g + 0.1 * w),
    "jnp.clip": (lambda gs, *_: [jnp.clip(g, -0.1, 0.1) for g in gs], lambda g, w: np.clip(g, -0.1, 0.1)),
    "keras.ops.clip": (lambda gs, *_: [keras.ops.clip(g, -0.1, 0.1) for g in gs], lambda g, w: np.clip(g, -0.1, 0.1)),
    "norm": (lambda gs, *_: [g / jnp.linalg.norm(g) for g in gs], lambda g, w: unit(g)),
    "SAM": (sharpened, lambda g, w: gradient(w + 0.05 * unit(g))),
}
for name, (change, right) in loops.items():
    weight = start
    for _ in range(2):
        weight = weight - 0.1 * right(gradient(weight), weight)
    check(name, weight, trained(change))
weight, total = start, 0 * start
for _ in range(2):
    total = total + gradient(weight)
    weight = weight - 0.1 * total / 2
check("accumulator", weight, trained(added))


def scaled(cores):
    system, weight = tpu.connect("virtual", cores=cores), keras.Variable(start)
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.1), dynamic_growth_steps=2)

    def loss_of(x, factor):
        return optimizer.scale_loss(tpu.compute_average_loss((x @ weight.value - 1) ** 2) * factor)

    def step(x, factor):
        _, gradients = tpu.value_and_grad(loss_of, [weight])(x, factor)
        optimizer.apply_gradients(zip(gradients, [weight], strict=True))

    (rows,) = system.distribute_dataset([x])
    for factor in (1.0, 1.0, np.inf, 1.0):
        system.run(step, args=(rows, np.float32(factor)))
    return [*np.asarray(weight.value), float(optimizer.dynamic_scale), float(optimizer.iterations)]


check("LossScaleOptimizer", scaled(1), scaled(4))
finish()
