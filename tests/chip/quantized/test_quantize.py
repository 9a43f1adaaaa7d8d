"""From float networks to whole numbers: near to them, with nothing that wraps, clips or is shared by mistake."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anytpu.chip.graph.nodes import (
    UNSCALED,
    Concatenate,
    Convolution,
    Elementwise,
    Function,
    HostStep,
    Network,
    Node,
    Pool,
    Port,
    Quantization,
    Reshape,
    Shape,
    Slice,
    Table,
)
from anytpu.chip.quantized import counterparts, quantize, reference, summarize
from anytpu.chip.quantized.choices import choose
from anytpu.chip.quantized.ranges import Range
from anytpu.chip.quantized.reference import compute as evaluate
from anytpu.chip.quantized.summary import decibels
from anytpu.chip.quantized.weights import max_sums
from anytpu.errors import QuantizationError
from refusals import refusal

SAME = ((1, 1), (1, 1))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return (1 / (1 + np.exp(-x))).astype(np.float32)


class Draft:
    """A network, node by node; each method returns the name of what it makes."""

    def __init__(self, **inputs: Shape):
        self.shapes: dict[str, Shape] = dict(inputs)
        self.inputs = tuple(Port(name, shape) for name, shape in inputs.items())
        self.nodes: list[Node] = []
        self.rng = np.random.default_rng(len(inputs))

    def add(self, made: type[Node], inputs: tuple[str, ...], shape: Shape, layer: str = "", **fields) -> str:
        name = f"{made.__name__.lower()}_{len(self.nodes)}"
        self.nodes.append(made(name, layer or name, inputs, name, **fields))
        self.shapes[name] = shape
        return name

    def convolve(self, x: str, outputs: int, kernel: int = 1, layer: str = "", scale: float = 1.0, **fields) -> str:
        height, width, depth = self.shapes[x]
        groups = fields.get("groups", 1)
        if "weights" not in fields:
            size = (kernel, kernel, depth // groups, outputs)
            fields["weights"] = (self.rng.normal(size=size) * scale / np.sqrt(np.prod(size[:3]))).astype(np.float32)
            fields["bias"] = (self.rng.normal(size=outputs) * scale / 4).astype(np.float32)
        padding, strides = fields.get("padding", ((0, 0), (0, 0))), fields.get("strides", (1, 1))
        ends = [(n + sum(p) - kernel) // s + 1 for n, p, s in zip((height, width), padding, strides, strict=True)]
        return self.add(Convolution, (x,), (*ends, outputs), layer, weight_scales=UNSCALED, **fields)

    def pool(self, x: str, kind: str, size: int = 2, padding=((0, 0), (0, 0))) -> str:
        height, width, depth = self.shapes[x]
        ends = [(n + sum(p) - size) // size + 1 for n, p in zip((height, width), padding, strict=True)]
        fields = {"kind": kind, "window": (size, size), "strides": (size, size), "padding": padding}
        return self.add(Pool, (x,), (*ends, depth), **fields)

    def combine(self, kind: str, a: str, b: str, layer: str = "", **clip) -> str:
        return self.add(Elementwise, (a, b), self.shapes[a], layer, kind=kind, **clip)

    def function(self, kind: str, x: str, apply, layer: str = "") -> str:
        return self.add(Function, (x,), self.shapes[x], layer, kind=kind, apply=apply)

    def concatenate(self, axis: int, *names: str, layer: str = "") -> str:
        shape = list(self.shapes[names[0]])
        shape[axis] = sum(self.shapes[name][axis] for name in names)
        return self.add(Concatenate, names, tuple(shape), layer, axis=axis)

    def slice(self, x: str, axis: int, start: int, stop: int, layer: str = "") -> str:
        shape = list(self.shapes[x])
        shape[axis] = stop - start
        return self.add(Slice, (x,), tuple(shape), layer, axis=axis, start=start, stop=stop)

    def network(self, *outputs: str) -> Network:
        ports = tuple(Port(name, self.shapes[name]) for name in outputs or (self.nodes[-1].output,))
        return Network("draft", self.inputs, ports, self.shapes, {}, tuple(self.nodes))

    def examples(self, count: int = 64, scale: float = 1.0) -> list[np.ndarray]:
        rng = np.random.default_rng(7)
        return [(scale * rng.normal(size=(count, *port.shape))).astype(np.float32) for port in self.inputs]


def errors(network: Network, quantized: Network, examples: list[np.ndarray]) -> dict[str, float]:
    """Return the ratio of signal to noise of each tensor, in dB."""
    exact, ours = evaluate(network, examples), reference.compute(quantized, examples)
    found = {}
    for name, values in exact.items():
        if name not in quantized.shapes:  # a product that was split
            continue
        near = quantized.quantizations[name].dequantize(ours[name])
        found[name] = decibels(float(np.square(values).sum()), float(np.square(values - near).sum()))
    return found


def dense() -> tuple[Draft, list[str]]:
    draft = Draft(x=(1, 1, 20))
    hidden = draft.convolve("x", 30, low=0.0)
    return draft, [draft.convolve(hidden, 10)]


def residual() -> tuple[Draft, list[str]]:
    draft = Draft(x=(8, 8, 3))
    a = draft.convolve("x", 16, 3, padding=SAME, low=0.0)
    b = draft.convolve(draft.convolve(a, 16, 3, padding=SAME, groups=16, low=0.0, high=6.0), 16)
    c = draft.combine("add", a, b, low=0.0)
    d = draft.pool(c, "max")
    return draft, [draft.convolve(draft.pool(d, "average", 4), 10)]


def inception() -> tuple[Draft, list[str]]:
    draft = Draft(x=(9, 9, 4))
    stem = draft.convolve("x", 8, 3, strides=(2, 2), low=0.0)
    one = draft.convolve(stem, 8, low=0.0, scale=4.0)
    three = draft.convolve(stem, 8, 3, padding=SAME, low=0.0)
    pooled = draft.convolve(draft.pool(stem, "average", 1), 8, low=0.0)
    whole = draft.concatenate(2, one, three, pooled)
    return draft, [draft.convolve(draft.pool(whole, "average", 4), 10)]


def gated() -> tuple[Draft, list[str]]:
    draft = Draft(x=(6, 6, 4), y=(1, 1, 4))
    gate = draft.function("sigmoid", draft.convolve("y", 4), sigmoid)
    scaled = draft.combine("multiply", "x", gate)
    changed = draft.function("function", scaled, lambda x: np.float32(0.5) * x * (1 + np.tanh(x)))
    return draft, [draft.combine("subtract", changed, scaled), draft.slice(scaled, 1, 1, 3)]


def recurrent(steps: int = 6, features: int = 5, units: int = 8) -> tuple[Draft, list[str]]:
    draft = Draft(x=(1, steps, features))
    rng = np.random.default_rng(3)
    fields = {
        "weights": (rng.normal(size=(1, 1, features + units, 4 * units)) * 0.5).astype(np.float32),
        "bias": rng.normal(size=4 * units).astype(np.float32),
    }
    start = draft.slice("x", 1, 0, 1)
    h = draft.function("tanh", draft.convolve(start, units, layer="start"), np.tanh, layer="start")
    c = draft.function("tanh", draft.convolve(start, units, layer="start"), np.tanh, layer="start")
    states = []
    for step in range(steps):
        now = draft.slice("x", 1, step, step + 1, "lstm")
        z = draft.convolve(draft.concatenate(2, now, h, layer="lstm"), 4 * units, layer="lstm", **fields)
        i, f, g, o = (draft.slice(z, 2, k * units, (k + 1) * units, "lstm") for k in range(4))
        i, f, o = (draft.function("sigmoid", one, sigmoid, "lstm") for one in (i, f, o))
        g = draft.function("tanh", g, np.tanh, "lstm")
        kept, new = draft.combine("multiply", f, c, "lstm"), draft.combine("multiply", i, g, "lstm")
        c = draft.combine("add", kept, new, "lstm")
        h = draft.combine("multiply", o, draft.function("tanh", c, np.tanh, "lstm"), "lstm")
        states.append(h)
    return draft, [draft.concatenate(1, *states, layer="states"), draft.convolve(h, 4)]


NETWORKS = [dense, residual, inception, gated, recurrent]


@pytest.mark.parametrize("made", NETWORKS)
@pytest.mark.parametrize(("bits", "least_db"), [(8, 25.0), (16, 36.0)])
@pytest.mark.parametrize("method", ["minmax", "percentile", "mse"])
def test_whole_numbers_are_near_to_the_float_network(made, bits: int, least_db: float, method):
    draft, outputs = made()
    network, examples = draft.network(*outputs), draft.examples()
    quantized = quantize(network, examples, bits=bits, method=method)
    found = errors(network, quantized, examples)
    assert min(found[name] for name in outputs) >= least_db, found
    assert all(one.bits == bits for one in quantized.quantizations.values())
    assert [node.output for node in quantized.nodes if node.output in network.shapes] == [
        n.output for n in network.nodes
    ]


@pytest.mark.parametrize("bits", [8, 16])
def test_integers_that_share_a_memory_share_a_quantization(bits: int):
    for made in NETWORKS:
        draft, outputs = made()
        quantized = quantize(draft.network(*outputs), draft.examples(), bits=bits)
        known = quantized.quantizations
        for node in quantized.nodes:
            keeps = isinstance(node, Pool) and node.kind == "max"
            if keeps or type(node).__name__ in ("Concatenate", "Slice", "Reshape"):
                assert {known[name] for name in node.inputs} == {known[node.output]}, node


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("share", [0.01, 0.4, 0.9])
def test_parts_of_a_product_have_scales_of_their_own_where_their_ranges_differ(bits: int, share: float):
    draft, rng = Draft(x=(1, 3, 30)), np.random.default_rng(1)
    weights = rng.normal(size=(1, 1, 30, 14)).astype(np.float32)
    weights[..., :4] *= share
    fields = {"weights": weights, "bias": np.zeros(14, np.float32)}
    outputs = []
    for step in range(2):  # products of the same weights are split alike
        now = draft.slice("x", 1, step, step + 1, "head")
        whole = draft.convolve(now, 14, layer="head", **fields)
        outputs += [draft.slice(whole, 2, 0, 4, "head"), draft.slice(whole, 2, 4, 14, "head")]
    network = draft.network(*outputs)
    examples = [rng.normal(size=(50, 1, 3, 30)).astype(np.float32)]
    examples[0][:, :, 1] *= 0.01  # the second product is as uneven as the first
    quantized = quantize(network, examples, bits=bits)
    products = [node for node in quantized.nodes if isinstance(node, Convolution)]
    is_split = bits == 8 and share < 0.5
    assert len(products) == (4 if is_split else 2)
    assert len({id(node.weights) for node in products}) == (2 if is_split else 1)
    assert len({node.name for node in products}) == len(products)
    least = min(errors(network, quantized, examples)[name] for name in outputs[:2])
    assert least > (35 if bits == 8 else 40)
    assert next(layer.layer for layer in summarize(network, quantized, examples).layers) == "head"


def test_what_is_used_elsewhere_too_keeps_its_finer_steps():
    draft = Draft(x=(1, 1, 8))
    fine, coarse = draft.convolve("x", 8, scale=0.1), draft.convolve("x", 8, scale=10.0)
    alone = draft.convolve("x", 8, scale=0.1)
    whole = draft.concatenate(2, fine, coarse, alone)
    quantized = quantize(draft.network(whole, draft.convolve(fine, 3)), draft.examples())
    known = quantized.quantizations
    # One is used only there, and so is the coarse one; the other goes through a table.
    assert known[alone] == known[coarse] == known[whole] != known[fine]
    (table,) = [node for node in quantized.nodes if isinstance(node, Table)]
    assert (table.kind, table.inputs, table.output, table.layer) == ("requantize", (fine,), f"{fine}/as {whole}", whole)
    (joined,) = [node for node in quantized.nodes if isinstance(node, Concatenate)]
    assert joined.inputs == (table.output, coarse, alone)
    assert quantized.shapes[table.output] == (1, 1, 8)
    every = np.arange(-128, 128)
    real = known[fine].dequantize(every)
    assert np.array_equal(table.table, known[whole].quantize(real))
    # Where the steps are hardly coarser, a table is not worth it.
    draft = Draft(x=(1, 1, 8))
    first, second = draft.convolve("x", 8), draft.convolve("x", 8)
    whole = draft.concatenate(2, first, second)
    quantized = quantize(draft.network(whole, draft.convolve(first, 3)), draft.examples())
    assert not [node for node in quantized.nodes if isinstance(node, Table)]


def test_what_the_user_is_given_keeps_its_own_steps():
    draft = Draft(x=(1, 1, 8))
    fine, coarse = draft.convolve("x", 8, scale=0.01), draft.convolve("x", 8)
    whole = draft.concatenate(2, fine, coarse)
    known = quantize(draft.network(fine, whole), draft.examples()).quantizations
    assert known[fine].scale < known[whole].scale / 20


def test_what_others_look_at_too_keeps_its_ends():
    draft = Draft(x=(1, 1, 8))
    wide = draft.convolve("x", 8, scale=30.0)
    curved = draft.function("sigmoid", wide, sigmoid)
    greatest = np.abs(evaluate(draft.network(), draft.examples())[wide]).max()
    for network in (draft.network(wide, curved), draft.network(curved, draft.combine("add", wide, curved))):
        own = quantize(network, draft.examples()).quantizations[wide]
        assert own.scale * 256 > greatest


@pytest.mark.parametrize("bits", [8, 16])
def test_functions_with_known_ends_have_known_scales(bits: int):
    draft = Draft(x=(1, 1, 8))
    wide = draft.convolve("x", 8, scale=30.0)
    outputs = [draft.function("sigmoid", wide, sigmoid), draft.function("tanh", wide, np.tanh)]
    examples = draft.examples()
    known = quantize(draft.network(*outputs), examples, bits=bits).quantizations
    expected = {8: [Quantization(2**-8, -128), Quantization(2**-7, 0)], 16: [Quantization(2**-15, 0, 16)] * 2}[bits]
    assert [known[name] for name in outputs] == expected
    # Only these functions look at it, and beyond about 7 (of 16 bits, 12) they are flat.
    top = known[wide].scale * (known[wide].high - known[wide].zero_point)
    assert (6 < top < 8) if bits == 8 else (10 < top < 13)
    assert np.abs(evaluate(draft.network(), examples)[wide]).max() > 30


def test_steps_of_a_loop_share_scales_weights_and_tables():
    draft, outputs = recurrent(steps=10)
    quantized = quantize(draft.network(*outputs), draft.examples())
    loop = [node for node in quantized.nodes if node.layer == "lstm"]
    products = [node for node in loop if isinstance(node, Convolution)]
    assert len(products) == 10
    for field in ("weights", "weight_scales", "bias"):
        assert len({id(getattr(node, field)) for node in products}) == 1
    known = quantized.quantizations
    for kind in (Convolution, Concatenate):
        assert len({known[node.output] for node in loop if isinstance(node, kind)}) == 1
    tables = [node for node in loop if isinstance(node, Table) and node.kind != "requantize"]
    assert len(tables) == 50
    # A sigmoid and a tanh of the gates, and a tanh of the state: the first steps' states are made otherwise.
    assert len({id(node.table) for node in tables}) <= 5
    sums = [node for node in loop if isinstance(node, Elementwise) and node.kind == "add"]
    assert len({known[node.output] for node in sums[3:]}) == 1


def greatest(quantized: Network) -> float:
    """Return the greatest |sum| that any input could make in any product."""
    makers = {node.output: node for node in quantized.nodes}
    found = [0.0]
    for node in quantized.nodes:
        if isinstance(node, Convolution):
            source, maker = quantized.quantizations[node.inputs[0]], makers.get(node.inputs[0])
            low, high = source.low, source.high
            if isinstance(maker, Convolution | Elementwise):
                low, high = maker.low, maker.high
            if isinstance(maker, Table):
                low, high = int(maker.table.min()), int(maker.table.max())
            reach = (low - source.zero_point, high - source.zero_point)
            found.append(float((max_sums(node.weights, reach) + np.abs(node.bias.astype(np.int64))).max()))
    return max(found)


@pytest.mark.parametrize("between", ["convolution", "add", "function", "input"])
def test_sums_of_16_bits_have_room(between: str):
    draft = Draft(x=(1, 1, 9000))
    rng = np.random.default_rng(0)
    x = {
        "convolution": lambda: draft.convolve("x", 9000, groups=9000),
        "add": lambda: draft.combine("add", "x", "x"),
        "function": lambda: draft.function("function", "x", lambda x: np.where(x < 0, -4 * x, 2 * x)),
        "input": lambda: "x",
    }[between]()
    # Weights of one size make the greatest sums.
    weights = np.sign(rng.normal(size=(1, 1, 9000, 4))).astype(np.float32)
    draft.convolve(x, 4, weights=weights, bias=np.float32([0, 1, -1, 1e4]) * 1)  # pyright: ignore
    # What is seen above 0 reaches further than what is seen below, which the integers cover too.
    network, examples = draft.network(), [one.clip(-1) for one in draft.examples(20)]
    quantized = quantize(network, examples, bits=16)
    assert greatest(quantized) < 2**31
    product = quantized.nodes[-1]
    assert isinstance(product, Convolution)
    if between != "input":
        # The tensor before it made room, so that the weights keep their 8 bits.
        assert np.abs(product.weights[..., :3].astype(int)).min() == 127
        integers = reference.compute(quantized, [-100 * one for one in examples])[x]
        assert integers.max() <= 2**10
        assert integers.min() >= -(2**10)
    assert errors(network, quantized, examples)[network.outputs[0].tensor] > 30


def test_dead_channels_and_constant_tensors():
    draft = Draft(x=(4, 4, 3))
    weights = np.random.default_rng(0).normal(size=(3, 3, 3, 4)).astype(np.float32)
    weights[..., 1] = 0
    part = draft.convolve("x", 4, 3, weights=weights, bias=np.float32([0, 0, 1, 2]), low=0.0)
    nothing = draft.convolve(part, 2, weights=np.zeros((1, 1, 4, 2), np.float32), bias=np.zeros(2, np.float32))
    steady = draft.convolve(part, 2, weights=np.zeros((1, 1, 4, 2), np.float32), bias=np.float32([-3, 5]))
    draft.combine("add", draft.combine("multiply", nothing, steady), steady)
    network, examples = draft.network(), draft.examples()
    for bits in (8, 16):
        for method in ("minmax", "percentile", "mse"):
            quantized = quantize(network, examples, bits=bits, method=method)
            tensors = reference.compute(quantized, examples)
            assert not quantized.quantizations[part].dequantize(tensors[part])[..., 1].any()
            assert not quantized.quantizations[nothing].dequantize(tensors[nothing]).any()
            (y,) = reference.outputs(quantized, tensors)
            assert np.allclose(y, np.broadcast_to(np.float32([-3, 5]), y.shape), atol=8 / 255)


def test_clips_become_integers():
    draft = Draft(x=(1, 1, 4))
    six = draft.convolve("x", 4, scale=20.0, low=0.0, high=6.0)
    draft.combine("add", six, six, low=-1.0, high=3.0)
    quantized = quantize(draft.network(), draft.examples())
    product, added = quantized.nodes
    assert isinstance(product, Convolution)
    assert isinstance(added, Elementwise)
    assert quantized.quantizations[six] == Quantization(float(np.float32(6 / 255)), -128)
    assert (product.low, product.high) == (-128, 127)
    assert quantized.quantizations[added.output] == Quantization(float(np.float32(3 / 255)), -128)
    assert (added.low, added.high) == (-128, 127)


def test_users_integers_are_exact():
    draft = Draft(x=(2, 2, 3))
    draft.inputs = (Port("x", (2, 2, 3), "uint8"),)
    draft.combine("add", "x", "x")
    examples = [np.random.default_rng(0).integers(0, 20, (9, 2, 2, 3)).astype(np.uint8)]
    quantized = quantize(draft.network(), examples)
    assert quantized.quantizations["x"] == Quantization(1.0, -128)
    every = np.arange(252).reshape(21, 2, 2, 3).astype(np.uint8)
    assert np.array_equal(reference.compute(quantized, [every])["x"].astype(int) + 128, every)


def test_a_function_without_a_value_has_its_neighbours():
    draft = Draft(x=(1, 1, 4))
    positive = draft.convolve("x", 4, low=0.0)
    moved = draft.function("log", positive, lambda x: np.log(np.where(x < 1, np.nan, x)).astype(np.float32))
    network = draft.network(moved)
    node = network.nodes[-1]
    assert isinstance(node, Function)
    source, target = Quantization(0.1, -128), Quantization(0.1, -100)
    table = counterparts.table(node, source, target)
    assert table[:10].tolist() == [-100] * 10  # below 1 it is no number, and at 1 it is 0
    assert np.array_equal(table[10:], target.quantize(np.log(source.dequantize(np.arange(-118, 128)))))


def test_a_function_that_is_never_a_number():
    node = Function("f", "layer", ("x",), "y", "log", lambda x: x * np.float32(np.nan))
    assert (
        refusal(QuantizationError, counterparts.table, node, Quantization(0.5, 3), Quantization(1.0))
        == "layer 'layer': log is not a number for any input from -65.5 to 62"
    )


def test_indices_that_the_chip_would_round():
    draft = Draft(x=(1, 1, 4))
    draft.inputs = (Port("x", (4,), "int32"),)
    draft.add(HostStep, ("x",), (1, 4, 8), "embedding", kind="embedding", why="", steps=None)
    draft.function("function", "x", np.sqrt, "mask")
    assert refusal(
        QuantizationError, choose, draft.network(), {"x": Range(0, 1000), draft.nodes[-1].output: Range(0, 40)}, 8
    ) == (
        "input 'x' of int32 is taken by the host, for layer 'embedding', and by the chip, for layer 'mask', whose "
        "8 bits cannot hold them all: give the model this input twice, once for each"
    )


def test_numbers_that_are_too_great():
    draft = Draft(x=(1, 1, 4))
    y = draft.convolve("x", 4, layer="dense")
    assert refusal(QuantizationError, choose, draft.network(), {"x": Range(-1, 1), y: Range(-1e3, 1e30)}, 8) == (
        "layer 'dense' gives numbers from -1e+03 to 1e+30, and what the chip scales ends at 1e+20: scale them down"
    )
    assert refusal(QuantizationError, choose, draft.network(), {"x": Range(-1e25, 1), y: Range(-1, 1)}, 8) == (
        "input 'x' has numbers from -1e+25 to 1, and what the chip scales ends at 1e+20: scale them down"
    )


def add_any(draft: Draft, x: str, other: str, kind: str, rng: np.random.Generator) -> str:
    """Add a node of some kind that takes `x`, or two tensors of one shape."""
    height, width, depth = draft.shapes[x]
    made = {
        "convolve": lambda: draft.convolve(x, 4, low=rng.choice([None, 0.0]), scale=float(rng.choice([0.1, 1, 8]))),
        "depthwise": lambda: draft.convolve(x, depth, 3, padding=SAME, groups=depth),
        "add": lambda: draft.combine("add", x, other),
        "multiply": lambda: draft.combine("multiply", x, other),
        "sigmoid": lambda: draft.function("sigmoid", x, sigmoid),
        "function": lambda: draft.function("function", x, lambda v: np.abs(v) + np.float32(0.1)),
        "concatenate": lambda: draft.concatenate(2, x, other),
        "slice": lambda: draft.slice(x, 1, 0, width - 1) if width > 2 else x,
        "max": lambda: draft.pool(x, "max", 2) if min(height, width) > 1 else x,
        "average": lambda: draft.pool(x, "average", 2, ((0, 1), (1, 0))),
        "reshape": lambda: draft.add(Reshape, (x,), (1, height * width, depth)),
    }
    return made[kind]()


KINDS = (
    "convolve", "depthwise", "add", "multiply", "sigmoid", "function", "concatenate", "slice", "max", "average",
    "reshape",
)  # fmt: skip


@st.composite
def drafts(draw) -> Draft:
    """Draw a network of a few nodes, each of which takes what was made before."""
    draft = Draft(x=(4, 6, 4))
    draft.rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    names = ["x"]
    for kind in draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=6)):
        x = draw(st.sampled_from(names))
        other = draw(st.sampled_from([name for name in names if draft.shapes[name] == draft.shapes[x]]))
        names.append(add_any(draft, x, other, kind, draft.rng))
    return draft


@given(drafts(), st.sampled_from([8, 16]), st.sampled_from(["minmax", "mse"]))
@settings(max_examples=60, deadline=None)
def test_any_network(draft: Draft, bits: int, method):
    if not draft.nodes:
        return
    network, examples = draft.network(), draft.examples(16)
    quantized = quantize(network, examples, bits=bits, method=method)
    assert greatest(quantized) < 2**31
    # Of 8 bits, errors add up along six nodes, and a product of two wide tensors is mostly small.
    least_db = {8: 12.0, 16: 25.0}[bits]
    assert min(errors(network, quantized, examples).values()) > least_db
    # Far outside of what was seen, everything saturates and nothing wraps: signs and order are kept.
    far = reference.compute(quantized, [1000 * one for one in examples])
    assert all(far[name].dtype == one.dtype for name, one in quantized.quantizations.items())
