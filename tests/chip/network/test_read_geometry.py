"""Any geometry of a product or a pool, drawn by hypothesis: `evaluate` agrees with the program."""

from __future__ import annotations

import dataclasses
from typing import Any

import anytpu  # noqa: F401  # isort: skip
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from anytpu import program
from anytpu.chip.graph.nodes import HostStep, Network
from anytpu.chip.network import read
from anytpu.chip.quantized.reference import compute as evaluate

PAIR = st.tuples(st.integers(1, 3), st.integers(1, 3))
EDGE = st.tuples(st.integers(0, 2), st.integers(0, 2))


def check(function: Any, state: Any, x: np.ndarray) -> Network:
    def step(state: Any, batch: Any) -> Any:
        return state, function(state, batch)

    made = dataclasses.replace(program.of(step, (state, x[:2]), tensors=True), mode="infer")
    network = read(made)
    (port,) = network.outputs
    want = np.asarray(function(state, x))
    got = evaluate(network, [x])[port.tensor].reshape(-1, *port.shape)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    return network


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


@st.composite
def convolutions(draw: Any) -> tuple[np.ndarray, dict[str, Any]]:
    groups, multiplier, depth = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    kernel, dilation = draw(PAIR), draw(PAIR)
    weights = values(*kernel, depth, groups * multiplier)
    picture = [draw(st.integers((size - 1) * by + 1, 9)) for size, by in zip(kernel, dilation, strict=True)]
    settings_ = {
        "window_strides": draw(PAIR),
        "padding": [draw(EDGE), draw(EDGE)],
        "rhs_dilation": dilation,
        "feature_group_count": groups,
    }
    return weights, {"picture": (*picture, depth * groups), "settings": settings_}


@settings(max_examples=12, deadline=None)
@given(convolutions(), st.booleans(), st.booleans())
def test_convolutions(drawn: Any, padded_before: bool, normalized: bool):
    weights, more = drawn
    state = {"w": weights, "scale": np.abs(values(weights.shape[3])) + 0.5, "offset": values(weights.shape[3])}

    def function(state: Any, x: Any) -> Any:
        if padded_before:
            x = jnp.pad(x, ((0, 0), (1, 0), (0, 2), (0, 0)))
        numbers = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(x, state["w"], dimension_numbers=numbers, **more["settings"])
        return jax.nn.relu(x * state["scale"] + state["offset"]) if normalized else x

    network = check(function, state, values(3, *more["picture"]))
    assert len(network.nodes) == 1


@settings(max_examples=12, deadline=None)
@given(PAIR, PAIR, st.tuples(EDGE, EDGE), st.sampled_from(["max", "average", "average inside", "sum"]))
def test_pools(window: Any, strides: Any, padding: Any, kind: str):
    padding = [(min(a, size - 1), min(b, size - 1)) for (a, b), size in zip(padding, window, strict=True)]

    def pooled(x: Any, start: float, function: Any) -> Any:
        around = [(0, 0), *padding, (0, 0)]
        return jax.lax.reduce_window(x, start, function, (1, *window, 1), (1, *strides, 1), around)

    def function(_: Any, x: Any) -> Any:
        if kind == "max":
            return pooled(x, -jnp.inf, jax.lax.max)
        total = pooled(x, 0.0, jax.lax.add)
        inside = pooled(jnp.ones_like(x), 0.0, jax.lax.add)
        return {"sum": total, "average": total / (window[0] * window[1]), "average inside": total / inside}[kind]

    network = check(function, (), values(3, 5, 6, 2))
    assert not any(isinstance(node, HostStep) for node in network.nodes)


@settings(max_examples=12, deadline=None)
@given(st.permutations(range(3)), st.integers(1, 2), st.integers(1, 2))
def test_dense_layers_over_any_of_the_last_axes(order: list[int], summed: int, made: int):
    x = values(3, 2, 3, 4)
    sizes = [*x.shape[4 - summed :], *[5, 2][:made]]
    contracted = "cde"[3 - summed :]
    state = {"w": values(*sizes)}
    output = "".join(np.array(list("b" + "cde"[: 3 - summed] + "xy"[:made])))
    network = check(lambda state, x: jnp.einsum(f"bcde,{contracted}{'xy'[:made]}->{output}", x, state["w"]), state, x)
    assert not any(isinstance(node, HostStep) for node in network.nodes)


@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from([(4,), (3, 4), (2, 3, 4), (2, 3, 4, 2)]), st.integers(0, 3), st.integers(0, 1), st.integers(1, 2)
)
def test_parts(shape: tuple[int, ...], axis: int, start: int, step: int):
    axis = axis % len(shape)
    cut = (slice(None),) * (axis + 1) + (slice(start, None, step),)
    check(lambda _, x: x[cut] * 2.5, (), values(3, *shape))
