"""A program for test_joint_sums.py, on four CPU devices: numbers of exchanges, and errors, as JSON."""

import json
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from anytpu.engine.joint_sums import with_joint_sums

ROWS = 8


def images(rows=ROWS):
    random = np.random.default_rng(0)
    return random.normal(size=(rows, 6, 6, 1)).astype("float32"), random.integers(0, 3, rows)


def weights(features=4):
    random = np.random.default_rng(1)
    shapes = [(3, 3, 1, features), (features,), (16 * features, 3), (3,)]
    return [random.normal(size=shape).astype("float32") for shape in shapes]


def logits_of(weights, x, normalize):
    kernel, bias, matrix, offset = weights
    dimensions = ("NHWC", "HWIO", "NHWC")
    y = jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=dimensions) + bias
    if normalize:
        y = (y - y.mean((0, 1, 2))) * jax.lax.rsqrt(y.var((0, 1, 2)) + 1e-3)
    y = jax.nn.relu(y)
    return jnp.einsum("nf,fc->nc", y.reshape(len(x), -1), matrix) + offset


def products(x):
    return x.sum(1), x @ x.T, (x.T @ x).sum()


def step_of(normalize):
    def loss(weights, x, y):
        logits = logits_of(weights, x, normalize)
        errors = -(jax.nn.log_softmax(logits) * jax.nn.one_hot(y, 3)).sum(1)
        return errors.mean(), (logits.argmax(1) == y).sum()

    def step(weights, x, y):
        (value, hits), gradients = jax.value_and_grad(loss, has_aux=True)(weights, x, y)
        return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)], value, hits

    return step


def compiled_on(cores, step, weights, x, y, joint=True) -> Any:
    mesh = mesh_of(cores)
    closed, form = jax.make_jaxpr(step, return_shape=True)(weights, x, y)
    if joint:
        closed = with_joint_sums(closed, [None] * len(weights) + [0, 0], mesh)

    def run(weights, x, y):
        return jax.tree.unflatten(jax.tree.structure(form), jaxpr_as_fun(closed)(*weights, x, y))

    whole, rows = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("replica"))
    return jax.jit(run, in_shardings=(whole, rows, rows), out_shardings=whole).lower(weights, x, y).compile()


def exchanges(compiled):
    """Return the number of arrays that the cores exchange."""
    found = re.findall(r"= (.*?) (?:all-reduce|collective-permute)(?:-start)?\(", compiled.as_text())
    return sum(max(1, result.count("[")) for result in found)


def mesh_of(cores):
    return Mesh(np.array(jax.devices()[:cores]), ("replica",))


def compared(cores, normalize):
    """Return the exchanges of a training step, those without joint sums, and the largest error."""
    step, arguments = step_of(normalize), (weights(), *images())
    together, alone = (compiled_on(cores, step, *arguments, joint=joint) for joint in (True, False))
    pairs = zip(jax.tree.leaves(together(*arguments)), jax.tree.leaves(step(*arguments)), strict=True)
    error = max(float(np.abs(np.asarray(found) - right).max()) for found, right in pairs)
    return {"joint": exchanges(together), "alone": exchanges(alone), "error": error}


def wrong_axis():
    """Return the largest error for an axis that is none of rows."""
    matrix = np.arange(64.0, dtype="float32").reshape(8, 8)
    joint = with_joint_sums(jax.make_jaxpr(products)(matrix), [1], mesh_of(4))
    pairs = zip(jaxpr_as_fun(joint)(matrix), products(matrix), strict=True)
    return max(float(np.abs(np.asarray(found) / right - 1).max()) for found, right in pairs)


def main():
    """Print the results."""
    uneven = jax.make_jaxpr(step_of(False))(weights(), *images(6))
    results = {
        "gradients": compared(4, False),
        "two cores": compared(2, False),
        "normalization": compared(4, True),
        "wrong axis": wrong_axis(),
        "uneven is unchanged": with_joint_sums(uneven, [None] * 4 + [0, 0], mesh_of(4)) is uneven,
    }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
