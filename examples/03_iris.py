"""Irises on the TPU: a network of 5 x 256 x 3, trained on one flower per step.

The program is examples/03_iris_plain.py with three changed lines: the import of anytpu, the optimizer, and the call of
`train`. The network and the output are those of a post of 2018. The post sent each of its 10,000 steps to the TPU
separately; here they are one loop on the device. As in the post, a third of the flowers is the test set. anytpu draws
it from the same seed, scikit-learn drew the post's.

    python examples/03_iris.py [--smoke]
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

import anytpu as tpu
from anytpu.pipeline import iris

EPOCHS = 3 if "--smoke" in sys.argv else 100
HIDDEN = 256
LEARNING_RATE = 0.01
SEED = 42

optimizer = tpu.CrossShardOptimizer(optax.sgd(LEARNING_RATE))


def flowers():
    """Return the flowers, a 1 in front of each in place of a bias, and their species as one-hot rows."""
    train, test = iris(seed=SEED, test_fraction=0.33)
    return [part for x, y in (train, test) for part in (np.insert(x, 0, 1, axis=1), np.eye(3, dtype=np.float32)[y])]


def init_weights(key, shape):
    return 0.1 * jax.random.normal(key, shape)


def forward(weights, x):
    w_1, w_2 = weights  # (5, 256) and, a row a species, (3, 256).
    return jax.nn.sigmoid(x @ w_1) @ w_2.T


def cost(weights, x, y):
    return optax.softmax_cross_entropy(forward(weights, x), y).mean()


def accuracy(weights, x, y):
    return jnp.mean(jnp.argmax(forward(weights, x), 1) == jnp.argmax(y, 1))


def train(weights, train_x, train_y, test_x, test_y):
    def step(i, carry):
        weights, state = carry
        gradients = jax.grad(cost)(weights, train_x[i], train_y[i])
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(weights, updates), state

    def epoch(carry, _):
        carry = jax.lax.fori_loop(0, len(train_x), step, carry)
        return carry, (accuracy(carry[0], train_x, train_y), accuracy(carry[0], test_x, test_y))

    (weights, _), history = jax.lax.scan(epoch, (weights, optimizer.init(weights)), length=EPOCHS)
    return weights, history


def main():
    keys = jax.random.split(jax.random.key(SEED))
    weights = init_weights(keys[0], (5, HIDDEN)), init_weights(keys[1], (3, HIDDEN))

    _, history = tpu.rewrite(train, [weights, *flowers()])

    for number, (on_train, on_test) in enumerate(np.stack(history, 1), 1):
        print(f"Epoch = {number}, train accuracy = {100 * on_train:.2f}%, test accuracy = {100 * on_test:.2f}%")


if __name__ == "__main__":
    main()
