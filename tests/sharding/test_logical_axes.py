"""Logical axes of traced steps, against the axes that the author of the code means."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anytpu.sharding.logical_axes import logical_axes


def axes_of(function, *shapes):
    """Return the groups of the arguments and of the results, renumbered in the order of their first use."""
    trace = jax.make_jaxpr(function)(*[jax.ShapeDtypeStruct(shape, "float32") for shape in shapes])
    level = logical_axes(trace)
    numbers = {}
    found = [level.of(variable) for variable in (*trace.jaxpr.invars, *trace.jaxpr.outvars)]
    return ["".join("abcdefghij"[numbers.setdefault(axis, len(numbers))] for axis in axes) for axes in found]


@pytest.mark.parametrize(
    ("function", "shapes", "expected"),
    [
        (lambda x, w: x @ w, [(2, 3), (3, 4)], ["ab", "bc", "ac"]),
        (lambda x, w: jnp.einsum("bshk,bthk->bhst", x, w), [(2, 5, 3, 4), (2, 6, 3, 4)], ["abcd", "aecd", "acbe"]),
        (lambda x, b: x + b, [(2, 3), (3,)], ["ab", "b", "ab"]),
        (lambda x, y: x * y, [(2, 1), (2, 3)], ["ab", "ac", "ac"]),
        (lambda x: x.T, [(2, 3)], ["ab", "ba"]),
        (lambda x: x.sum(0), [(2, 3)], ["ab", "b"]),
        (lambda x: x.reshape(6, 4), [(2, 3, 4)], ["abc", "ac"]),
        (lambda x: x.reshape(2, 3, 4), [(6, 4)], ["ab", "acb"]),
        (lambda x: x.reshape(2, 2, 2), [(8,)], ["a", "abc"]),
        (lambda x: x.reshape(1, 6, 1), [(6,)], ["a", "bac"]),
        (lambda x: x.reshape(6, 4), [(4, 6)], ["ab", "cd"]),
        (lambda x: jax.nn.relu(x), [(2, 3)], ["ab", "ab"]),
        (lambda x: x[:, :2], [(4, 3)], ["ab", "ac"]),
        (lambda x, y: jnp.concatenate([x, y]), [(2, 3), (4, 3)], ["ab", "cb", "db"]),
        (lambda x: jnp.argmax(x, 1), [(2, 3)], ["ab", "a"]),
        (jnp.cumsum, [(4,)], ["a", "a"]),
        (lambda x, w: jax.lax.conv(x, w, (1, 1), "SAME"), [(2, 3, 8, 8), (5, 3, 3, 3)], ["abcd", "ebfg", "aehi"]),
        (lambda table, x: table[x.astype("int32")], [(9, 4), (2, 3)], ["ab", "cd", "cdb"]),
        (lambda x: x.reshape(0, 5), [(0, 4)], ["ab", "cd"]),
    ],
)
def test_axes_of_operations(function, shapes, expected):
    assert axes_of(function, *shapes) == expected


def test_a_layer_called_twice_has_its_own_axes_each_time():
    relu = jax.jit(lambda x: jnp.maximum(x, 0))
    assert axes_of(lambda x, y: (relu(x), relu(y)), (2, 3), (2, 3)) == ["ab", "cd", "ab", "cd"]


def test_a_scan_over_stacked_layers_relates_the_layers():
    def run(x, first, second):
        def layer(x, weights):
            return jnp.tanh(x @ weights[0]) @ weights[1], x.sum(1)

        return jax.lax.scan(layer, x, (first, second))

    x, first, second, last, sums = axes_of(run, (2, 3), (7, 3, 5), (7, 5, 3))
    assert (x, first[1:], second[1:], last, sums[1:]) == ("ab", "bd", "db", "ab", "a")


def test_bodies_of_loops_and_branches_are_related():
    def run(x, w):
        x = jax.lax.while_loop(lambda x: x.sum() < 1, lambda x: x @ w, x)
        return jax.lax.cond(x.sum() > 0, lambda x: x, lambda x: x * 2, x)

    assert axes_of(run, (2, 3), (3, 3)) == ["ab", "bb", "ab"]


def test_gradients_and_slots_follow_the_weights():
    def step(w1, w2, slot1, slot2, x):
        def loss(w1, w2):
            hidden = jax.checkpoint(lambda x: jax.nn.relu(x @ w1))(x)
            return ((hidden @ w2) ** 2).mean()

        grads = jax.grad(loss, (0, 1))(w1, w2)
        slots = [0.9 * slot + grad for slot, grad in zip((slot1, slot2), grads, strict=True)]
        return w1 - slots[0], w2 - slots[1], *slots

    found = axes_of(step, (3, 5), (5, 4), (3, 5), (5, 4), (2, 3))
    assert found == ["ab", "bc", "ab", "bc", "da", "ab", "bc", "ab", "bc"]


def test_a_group_knows_the_sizes_that_a_mesh_must_divide():
    trace = jax.make_jaxpr(lambda x, w: x.reshape(2, 4, 8) @ w)(np.ones((2, 32)), np.ones((8, 3)))
    level = logical_axes(trace)
    merged = level.of(trace.jaxpr.invars[0])[1]
    assert level.groups.divisor(merged) == 4


def test_equations_count_the_iterations_of_a_scan():
    def run(x, w):
        return jax.lax.scan(lambda x, w: (x @ w, None), x, w)[0] @ w[0]

    level = logical_axes(jax.make_jaxpr(run)(np.ones((2, 3)), np.ones((7, 3, 3))))
    counts = [times for _, equation, times in level.equations() if equation.primitive.name == "dot_general"]
    assert counts == [7, 1]
