"""Sums and updates of rows against NumPy: repeated and bad ids, weights of 0, odd widths, several features, threads."""

import hashlib
import math
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("anytpu_kernels", reason="the kernels are not installed: scripts/venv builds them where g++ is")
from anytpu_kernels import row_sums, row_update

SIZES = [(1, 1, 1, 1), (40, 3, 6, 5), (3000, 17, 50, 1), (5000, 64, 300, 20), (700_000, 33, 900, 4), (50, 100, 700, 7)]
RULES = {
    "sgd": (0, ()),
    "momentum": (1, (0.9, 0.0)),
    "nesterov": (1, (0.9, 1.0)),
    "adagrad": (1, (1e-7,)),
    "adam": (2, (0.1, 0.001, 1e-7)),
    "ftrl": (2, (0.5, 0.01, 0.02, 0.03, 0.1)),
    "ftrl of a power": (2, (0.4, 0.01, 0.02, 0.03, 0.1)),
}
RATE = np.float32(0.05)


def feature(rows, width, bags, size, seed=0):
    """Return ids, weights and gradients: half of the ids are of few rows, some are outside, some have no weight."""
    random = np.random.default_rng(seed)
    ids = np.where(random.random((bags, size)) < 0.5, random.integers(0, 1 + rows // 9, (bags, size)), 0)
    ids = np.where(ids == 0, random.integers(-2, rows + 2, (bags, size)), ids).astype("int32")
    weights = random.normal(size=(bags, size)) * (random.random((bags, size)) < 0.9)
    return ids, weights.astype("float32"), random.normal(size=(bags, width)).astype("float32")


def table(rows, width, slots):
    random = np.random.default_rng(1)
    return [random.random((rows, width), "float32") + 0.1 for _ in range(1 + slots)]


def expected_update(arrays, features, rule, numbers, limit):
    """Return the arrays after a step, computed in float64."""
    arrays = [array.astype("float64") for array in arrays]
    uses = {}
    for ids, weights, gradient in features:
        for bag, i in zip(*np.nonzero((ids >= 0) & (ids < len(arrays[0])) & (weights != 0)), strict=True):
            uses.setdefault(ids[bag, i], []).append(weights[bag, i].astype("float64") * gradient[bag])
    for row, each in uses.items():
        g = np.clip(np.sum(each, 0), -limit, limit)
        values = [array[row] for array in arrays]
        for array, value in zip(arrays, FORMULAS[rule.split()[0]](g, numbers, *values), strict=True):
            array[row] = value
    return arrays


def momentum(g, numbers, w, velocity):
    velocity = numbers[0] * velocity - RATE * g
    return w + (numbers[0] * velocity - RATE * g if numbers[1] else velocity), velocity


def adam(g, numbers, w, mean, square):
    mean, square = mean + numbers[0] * (g - mean), square + numbers[1] * (g * g - square)
    return w - RATE * mean / (np.sqrt(square) + numbers[2]), mean, square


def ftrl(g, numbers, w, total, linear):
    power, l1, l2, shrinkage, beta = numbers
    grown = total + g * g
    linear = linear + g + 2 * shrinkage * w - (grown**power - total**power) / RATE * w
    quadratic = grown**power / RATE + 2 * (l2 + beta / (2 * RATE))
    return (np.clip(linear, -l1, l1) - linear) / quadratic, grown, linear


FORMULAS = {
    "sgd": lambda g, numbers, w: (w - RATE * g,),
    "momentum": momentum,
    "nesterov": momentum,
    "adagrad": lambda g, numbers, w, total: (w - RATE * g / np.sqrt(total + g * g + numbers[0]), total + g * g),
    "adam": adam,
    "ftrl": ftrl,
}


def step(arrays, features, rule, limit=math.inf):
    name = {"nesterov": "momentum"}.get(rule, rule.split()[0])
    settings = {"rule": name, "numbers": RULES[rule][1], "limit": limit}
    update = jax.jit(lambda arrays, features: row_update(arrays, RATE, features, **settings), donate_argnums=0)
    return [np.asarray(array) for array in update([jnp.array(array) for array in arrays], features)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sums(sizes):
    rows, width, bags, size = sizes
    ids, weights, _ = feature(rows, width, bags, size)
    (array,) = table(rows, width, 0)
    is_row = (ids >= 0) & (ids < rows)
    terms = array[np.clip(ids, 0, rows - 1)].astype("float64") * np.where(is_row, weights, 0)[..., None]
    made = jax.jit(row_sums)(array, ids, weights)
    assert (np.abs(made - terms.sum(1)) <= 4e-7 * np.abs(terms).sum(1)).all()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_updates(sizes, rule):
    arrays, features = table(*sizes[:2], RULES[rule][0]), [feature(*sizes)]
    made = step(arrays, features, rule)
    for one, exact in zip(made, expected_update(arrays, features, rule, RULES[rule][1], math.inf), strict=True):
        np.testing.assert_allclose(one, exact, rtol=2e-4, atol=2e-5)


def test_several_features_and_a_limit():
    features = [feature(60, 5, bags, size, seed=bags) for bags, size in ((40, 3), (9, 1), (1, 30))]
    arrays = table(60, 5, 2)
    for one, exact in zip(
        step(arrays, features, "adam", 0.5),
        expected_update(arrays, features, "adam", RULES["adam"][1], 0.5),
        strict=True,
    ):
        np.testing.assert_allclose(one, exact, rtol=2e-5, atol=1e-6)


def test_rows_that_no_id_names_are_not_touched():
    arrays = [np.full((30, 4), np.nan, "float32") for _ in range(3)]
    ids = np.array([[3, -1, 30, 7]], "int32")
    made = step(arrays, [(ids, np.array([[0, 1, 1, 0]], "float32"), np.ones((1, 4), "float32"))], "adam")
    assert all(one.tobytes() == array.tobytes() for one, array in zip(made, arrays, strict=True))
    assert np.asarray(row_sums(arrays[0], ids[:, 1:3], np.ones((1, 2), "float32"))).tolist() == [[0.0] * 4]


def test_operands_that_are_still_used_keep_their_values():
    arrays, features = table(500, 8, 2), [feature(500, 8, 40, 5)]
    made = jax.jit(lambda arrays: (arrays, row_update(arrays, RATE, features, rule="adam", numbers=(0.1, 0.1, 0.1))))
    before, after = made(arrays)
    assert all(np.array_equal(*pair) for pair in zip(before, arrays, strict=True))
    assert not any(np.array_equal(*pair) for pair in zip(after, arrays, strict=True))


def test_a_donated_table_keeps_its_memory():
    arrays = [jnp.zeros((4000, 64)) + i for i in range(3)]
    places = [array.unsafe_buffer_pointer() for array in arrays]
    features = [feature(4000, 64, 64, 5)]
    settings = {"rule": "adam", "numbers": RULES["adam"][1]}
    update = jax.jit(lambda arrays: row_update(arrays, RATE, features, **settings), donate_argnums=0)
    assert [array.unsafe_buffer_pointer() for array in update(arrays)] == places


def digest():
    """Return a digest of sums and updates that several threads compute."""
    sizes = 20_000, 48, 600, 11
    arrays, one = table(*sizes[:2], 2), feature(*sizes)
    made = [*step(arrays, [one], "adam"), np.asarray(jax.jit(row_sums)(arrays[0], one[0], one[1]))]
    return hashlib.sha256(b"".join(array.tobytes() for array in made)).hexdigest()


def test_one_thread_computes_the_same():
    program = (
        f"import os; os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}})\n"
        "import test_rows; print(test_rows.digest())"
    )
    made = subprocess.run(
        [sys.executable, "-c", program], cwd=os.path.dirname(__file__), capture_output=True, text=True, timeout=200
    )
    assert made.stdout.split() == [digest()], made.stderr
    assert digest() == digest()
