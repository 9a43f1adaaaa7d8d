"""The reference against Python number by number: loops, integers without an end, one float32 operation at a time."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anytpu.chip.graph import arithmetic as multipliers
from anytpu.chip.graph import nodes
from anytpu.chip.graph.nodes import (
    Concatenate,
    Convolution,
    Elementwise,
    Network,
    Pool,
    Port,
    Quantization,
    Reshape,
    Slice,
    Table,
)
from anytpu.chip.quantized import reference

F = np.float32


def one_node(node, shapes, quantizations) -> Network:
    ports = [Port(name, shapes[name]) for name in (*dict.fromkeys(node.inputs), node.output)]
    return Network("one", tuple(ports[:-1]), (ports[-1],), shapes, quantizations, (node,))


def run(node, shapes, quantizations, *inputs):
    network = one_node(node, shapes, quantizations)
    values = dict(zip(dict.fromkeys(node.inputs), inputs, strict=True))
    return reference.compute_integers(network, values)[node.output]


def requantize(x: np.float32, target: Quantization, low: int, high: int) -> int:
    """Round half to even, add the zero point, clip; in Python, where round() is half to even."""
    return min(max(round(float(x)) + target.zero_point, low), high)


def wrap(number: int) -> int:
    return (number + 2**31) % 2**32 - 2**31


def inside(shape, y: int, x: int) -> bool:
    return 0 <= y < shape[0] and 0 <= x < shape[1]


def convolve(node: Convolution, source: Quantization, target: Quantization, q: np.ndarray, shape) -> np.ndarray:
    out = np.zeros((len(q), *shape), target.dtype)
    depth, width = node.weights.shape[2], shape[2] // node.groups
    for n, oh, ow, m in itertools.product(range(len(q)), *map(range, shape)):
        total = int(node.bias[m])
        for kh, kw, c in np.ndindex(*node.weights.shape[:3]):
            y = oh * node.strides[0] - node.padding[0][0] + kh * node.dilation[0]
            x = ow * node.strides[1] - node.padding[1][0] + kw * node.dilation[1]
            if inside(q.shape[1:3], y, x):
                number = int(q[n, y, x, (m // width) * depth + c])
                total += int(node.weights[kh, kw, c, m]) * (number - source.zero_point)
        multiplier = F(F(source.scale) * node.weight_scales[m]) / F(target.scale)
        out[n, oh, ow, m] = requantize(F(F(wrap(total)) * multiplier), target, node.low, node.high)
    return out


def pool(node: Pool, source: Quantization, target: Quantization, q: np.ndarray, shape) -> np.ndarray:
    out = np.zeros((len(q), *shape), target.dtype)
    for n, oh, ow, c in itertools.product(range(len(q)), *map(range, shape)):
        places = [
            (oh * node.strides[0] - node.padding[0][0] + y, ow * node.strides[1] - node.padding[1][0] + x)
            for y, x in np.ndindex(*node.window)
        ]
        seen = [int(q[n, y, x, c]) for y, x in places if inside(q.shape[1:3], y, x)]
        if node.kind == "max":
            out[n, oh, ow, c] = max(seen, default=source.zero_point)
            continue
        count = len(places) if node.counts_padding else max(len(seen), 1)
        multiplier = F(F(source.scale) * F(F(1) / F(count))) / F(target.scale)
        total = sum(number - source.zero_point for number in seen)
        out[n, oh, ow, c] = requantize(F(F(total) * multiplier), target, target.low, target.high)
    return out


# Powers of two make ties: a product of integers and of such scales often ends in exactly a half.
scales = st.sampled_from([0.5, 2.0**-3, 2.0**-6, 1.0, 0.1, 0.0173, 3.7])


@st.composite
def quantizations(draw, bits=(8, 16)):
    of = draw(st.sampled_from(bits))
    return Quantization(float(F(draw(scales))), draw(st.integers(-128, 127)), of)


@st.composite
def windows(draw):
    """Return a window's size, strides, dilation, padding, an input's and an output's height and width."""
    kernel = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    strides = (draw(st.integers(1, 3)), draw(st.integers(1, 2)))
    dilation = (draw(st.integers(1, 2)), draw(st.integers(1, 2)))
    padding = tuple((draw(st.integers(-1, 2)), draw(st.integers(-1, 2))) for _ in range(2))
    sizes = []
    for axis in (0, 1):
        span = (kernel[axis] - 1) * dilation[axis] + 1
        least = max(span - sum(padding[axis]), 3)
        sizes.append(draw(st.integers(least, least + 3)))
    ends = [(sizes[a] + sum(padding[a]) - ((kernel[a] - 1) * dilation[a] + 1)) // strides[a] + 1 for a in (0, 1)]
    return kernel, strides, dilation, padding, sizes, ends


def integers(seed: int, quantization: Quantization, *shape: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(quantization.low, quantization.high + 1, shape).astype(quantization.dtype)


def limits(draw, target: Quantization) -> tuple[int, int]:
    return draw(st.sampled_from([(target.low, target.high), (target.zero_point, target.high), (-7, 9)]))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_convolution_is_the_sum_that_is_written(data):
    kernel, strides, dilation, padding, sizes, ends = data.draw(windows())
    groups, depth, width = (data.draw(st.integers(1, 3)) for _ in range(3))
    source, target = data.draw(quantizations()), data.draw(quantizations())
    seed = data.draw(st.integers(0, 2**32))
    rng = np.random.default_rng(seed)
    low, high = limits(data.draw, target)
    node = Convolution(
        "c", "", ("x",), "y",
        weights=rng.integers(-127, 128, (*kernel, depth, groups * width)).astype(np.int8),
        weight_scales=np.array([data.draw(scales) for _ in range(groups * width)], F) / 8,
        bias=rng.integers(-(2**20), 2**20, groups * width).astype(np.int32),
        strides=strides, dilation=dilation, padding=padding, groups=groups, low=low, high=high,
    )  # fmt: skip
    shapes = {"x": (*sizes, groups * depth), "y": (*ends, groups * width)}
    q = integers(seed, source, 2, *shapes["x"])
    ours = run(node, shapes, {"x": source, "y": target}, q)
    assert ours.dtype == target.dtype
    assert np.array_equal(ours, convolve(node, source, target, q, shapes["y"]))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_pool_is_what_is_written(data):
    window, strides, _, padding, sizes, _ = data.draw(windows())
    ends = [(sizes[a] + sum(padding[a]) - window[a]) // strides[a] + 1 for a in (0, 1)]
    source = data.draw(quantizations())
    kind, counts_padding = data.draw(st.sampled_from([("max", False), ("average", False), ("average", True)]))
    target = source if kind == "max" else data.draw(quantizations())
    node = Pool("p", "", ("x",), "y", kind, window, strides, padding, counts_padding)
    shapes = {"x": (*sizes, 2), "y": (*ends, 2)}
    q = integers(data.draw(st.integers(0, 2**32)), source, 2, *shapes["x"])
    ours = run(node, shapes, {"x": source, "y": target}, q)
    assert ours.dtype == target.dtype
    assert np.array_equal(ours, pool(node, source, target, q, shapes["y"]))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_two_tensors_number_by_number(data):
    first, second, target = (data.draw(quantizations()) for _ in range(3))
    kind = data.draw(st.sampled_from(["add", "subtract", "multiply"]))
    low, high = limits(data.draw, target)
    second_shape = data.draw(st.sampled_from([(2, 3, 4), (1, 1, 4)]))
    shapes = {"a": (2, 3, 4), "b": second_shape, "y": (2, 3, 4)}
    seed = data.draw(st.integers(0, 2**32))
    a, b = integers(seed, first, 2, 2, 3, 4), integers(seed + 1, second, 2, *second_shape)
    node = Elementwise("e", "", ("a", "b"), "y", kind, low, high)
    ours = run(node, shapes, {"a": first, "b": second, "y": target}, a, b)
    operation = {"add": F.__add__, "subtract": F.__sub__, "multiply": F.__mul__}[kind]
    for place in np.ndindex(2, 2, 3, 4):
        n, h, w, c = place
        x = F(F(int(a[place]) - first.zero_point) * F(first.scale))
        y = F(F(int(b[n, h % second_shape[0], w % second_shape[1], c]) - second.zero_point) * F(second.scale))
        assert ours[place] == requantize(F(operation(x, y) / F(target.scale)), target, low, high)


def test_ties_go_to_even_before_the_zero_point():
    # Sums 1, 3, 5, -1, -3, -5 times a half: 0, 2, 2, 0, -2, -2, then an odd zero point.
    source, target = Quantization(1.0, 0), Quantization(2.0, 3)
    node = Convolution(
        "c", "", ("x",), "y", np.ones((1, 1, 1, 1), np.int8), np.ones(1, F), np.zeros(1, np.int32),
        (1, 1), (1, 1), ((0, 0), (0, 0)), 1, -128, 127,
    )  # fmt: skip
    q = np.int8([1, 3, 5, -1, -3, -5]).reshape(6, 1, 1, 1)
    ours = run(node, {"x": (1, 1, 1), "y": (1, 1, 1)}, {"x": source, "y": target}, q)
    assert ours.ravel().tolist() == [3, 5, 5, 3, 1, 1]


def test_sums_wrap_at_32_bits_and_results_saturate():
    node = Convolution(
        "c", "", ("x",), "y", np.full((1, 1, 1, 3), 127, np.int8), F([1, 2.0**-20, 1]),
        np.int32([0, 2**31 - 1, -(2**31)]), (1, 1), (1, 1), ((0, 0), (0, 0)), 1, -128, 127,
    )  # fmt: skip
    q = np.int8([127, -128]).reshape(2, 1, 1, 1)
    ours = run(node, {"x": (1, 1, 1), "y": (1, 1, 3)}, {"x": Quantization(1.0), "y": Quantization(1.0)}, q)
    # 2**31 - 1 + 127 * 127 is a large negative number of 32 bits.
    assert ours[:, 0, 0].tolist() == [[127, -128, -128], [-128, 127, 127]]


def test_sums_of_a_deep_kernel_are_exact():
    rng = np.random.default_rng(0)
    weights = rng.integers(-127, 128, (1, 1, 3000, 2)).astype(np.int8)
    q = rng.integers(-32768, 32768, (3, 1, 1, 3000)).astype(np.int16)
    node = Convolution(
        "c", "", ("x",), "y", weights, np.full(2, 2.0**-17, F), np.zeros(2, np.int32),
        (1, 1), (1, 1), ((0, 0), (0, 0)), 1, -32768, 32767,
    )  # fmt: skip
    known = {"x": Quantization(1.0, 5, 16), "y": Quantization(1.0, 0, 16)}
    ours = run(node, {"x": (1, 1, 3000), "y": (1, 1, 2)}, known, q)
    sums = [
        [sum((int(a) - 5) * int(b) for a, b in zip(row[0, 0], weights[0, 0, :, m], strict=True)) for m in (0, 1)]
        for row in q
    ]
    expected = [[requantize(F(F(wrap(one)) * F(2.0**-17)), known["y"], -32768, 32767) for one in row] for row in sums]
    assert ours[:, 0, 0].tolist() == expected


def test_a_table_starts_with_the_least_integer():
    table = np.arange(255, -1, -1, dtype=np.int64).astype(np.uint8).view(np.int8)
    q = np.int8([-128, -1, 0, 127]).reshape(1, 1, 1, 4)
    known = {"x": Quantization(1.0), "y": Quantization(1.0)}
    ours = run(Table("t", "", ("x",), "y", "f", table), {"x": (1, 1, 4), "y": (1, 1, 4)}, known, q)
    assert ours.ravel().tolist() == [table[0], table[127], table[128], table[255]]


@pytest.mark.parametrize(
    ("node", "shape", "expected"),
    [
        (Concatenate("n", "", ("a", "b"), "y", 0), (4, 3, 2), lambda a, b: np.concatenate([a, b], 1)),
        (Concatenate("n", "", ("a", "b"), "y", 1), (2, 6, 2), lambda a, b: np.concatenate([a, b], 2)),
        (Concatenate("n", "", ("a", "b"), "y", 2), (2, 3, 4), lambda a, b: np.concatenate([a, b], 3)),
        (Slice("n", "", ("a",), "y", 0, 1, 2), (1, 3, 2), lambda a, b: a[:, 1:2]),
        (Slice("n", "", ("a",), "y", 1, 0, 2), (2, 2, 2), lambda a, b: a[:, :, :2]),
        (Slice("n", "", ("a",), "y", 2, 1, 2), (2, 3, 1), lambda a, b: a[..., 1:]),
        (Reshape("n", "", ("a",), "y"), (1, 1, 12), lambda a, b: a.reshape(5, 1, 1, 12)),
    ],
)
def test_the_same_integers_elsewhere(node, shape, expected):
    known = dict.fromkeys("aby", Quantization(0.5, 3))
    a, b = (integers(seed, known["a"], 5, 2, 3, 2) for seed in (0, 1))
    ours = run(node, {"a": (2, 3, 2), "b": (2, 3, 2), "y": shape}, known, *(a, b)[: len(node.inputs)])
    assert ours.dtype == np.int8
    assert np.array_equal(ours, expected(a, b))


def test_real_numbers_in_the_users_shapes():
    known = {"x": Quantization(0.5, 1), "y": Quantization(0.5, 1)}
    network = one_node(Reshape("n", "", ("x",), "y"), {"x": (1, 2, 3), "y": (1, 1, 6)}, known)
    network = Network("n", (Port("x", (2, 3)),), (Port("y", (3, 2), "float32"),), network.shapes, known, network.nodes)
    x = np.arange(12).reshape(2, 2, 3) / 2
    tensors = reference.compute(network, [x])
    assert tensors["x"].shape == (2, 1, 2, 3)
    assert tensors["x"].ravel().tolist() == list(range(1, 13))
    (y,) = reference.outputs(network, tensors)
    assert y.dtype == np.float32
    assert np.array_equal(y, x.reshape(2, 3, 2))


def test_what_is_no_quantized_node_is_refused():
    with pytest.raises(NotImplementedError) as caught:
        run(nodes.Node("n", "", ("x",), "y"), {"x": (1, 1, 1), "y": (1, 1, 1)}, {}, np.zeros((1, 1, 1, 1)))
    assert str(caught.value) == "Node is no node of a quantized network"


def test_multipliers_to_the_last_bit():
    rng = np.random.default_rng(0)
    for _ in range(300):
        a, b, c = (F(number) for number in rng.lognormal(size=3))
        source, target = Quantization(float(a), 3), Quantization(float(c), 5)
        count = int(rng.integers(1, 99))
        assert multipliers.convolution_multipliers(source, np.array([b]), target).tolist() == [F(F(a * b) / c)]
        expected = F(F(a * F(F(1) / F(count))) / c)
        assert multipliers.average_multipliers(source, np.array([count]), target).tolist() == [expected]


def test_the_clip_of_infinities_is_the_end_of_the_integers():
    target = Quantization(0.1, 5)
    assert multipliers.clip_bounds(target, -np.inf, np.inf) == (-128, 127)
    assert multipliers.clip_bounds(target, 0.0, None) == (5, 127)
    assert multipliers.clip_bounds(target, 100.0, 200.0) == (127, 127)
