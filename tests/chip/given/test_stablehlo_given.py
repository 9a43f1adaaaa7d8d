"""StableHLO with `!quant` types on the chip: the file's scales, and the integers of StableHLO's definition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anytpu as tpu  # isort: skip
import numpy as np
import pytest

from anytpu.errors import ChipFileError, ProgramError, QuantizationError
from refusals import refusal

I8, I32 = "!quant.uniform<i8:f32, 0.5:3>", "!quant.uniform<i32:f32:3, {0.05,0.1,0.15}>"
KERNEL = "!quant.uniform<i8<-127:127>:f32:3, {0.1,0.2,0.3}>"
MODEL = f"""
module {{
  func.func @main(%arg0: tensor<4x6x6x2xf32>) -> tensor<4x3xf32> {{
    %k = stablehlo.constant() <{{value = dense<[[[[1,2,-3],[4,-5,6]]],[[[7,-8,9],[-1,2,3]]]]> : tensor<2x1x2x3xi8>}}> : () -> tensor<2x1x2x3x{KERNEL}>
    %b = stablehlo.constant() <{{value = dense<[10,-20,30]> : tensor<3xi32>}}> : () -> tensor<3x{I32.replace(":3,", ":0,")}>
    %0 = stablehlo.uniform_quantize %arg0 : (tensor<4x6x6x2xf32>) -> tensor<4x6x6x2x{I8}>
    %1 = stablehlo.convolution(%0, %k) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {{stride = [1, 2]}} {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}} : (tensor<4x6x6x2x{I8}>, tensor<2x1x2x3x{KERNEL}>) -> tensor<4x5x3x3x{I32}>
    %2 = stablehlo.broadcast_in_dim %b, dims = [3] : (tensor<3x{I32.replace(":3,", ":0,")}>) -> tensor<4x5x3x3x{I32}>
    %3 = stablehlo.add %1, %2 : tensor<4x5x3x3x{I32}>
    %4 = stablehlo.uniform_quantize %3 : (tensor<4x5x3x3x{I32}>) -> tensor<4x5x3x3x!quant.uniform<i8:f32, 0.25:-3>>
    %5 = stablehlo.reshape %4 : (tensor<4x5x3x3x!quant.uniform<i8:f32, 0.25:-3>>) -> tensor<4x45x!quant.uniform<i8:f32, 0.25:-3>>
    %6 = "stablehlo.constant"() {{value = dense<103> : tensor<45x3xi8>}} : () -> tensor<45x3x!quant.uniform<i8:f32, 0.125:-100>>
    %7 = stablehlo.dot_general %5, %6, contracting_dims = [1] x [0] : (tensor<4x45x!quant.uniform<i8:f32, 0.25:-3>>, tensor<45x3x!quant.uniform<i8:f32, 0.125:-100>>) -> tensor<4x3x!quant.uniform<i32:f32, 0.03125>>
    %8 = "stablehlo.uniform_quantize"(%7) : (tensor<4x3x!quant.uniform<i32:f32, 0.03125>>) -> tensor<4x3x!quant.uniform<i8:f32, 40.0:-3>>
    %9 = stablehlo.uniform_dequantize %8 : (tensor<4x3x!quant.uniform<i8:f32, 40.0:-3>>) -> tensor<4x3xf32>
    return %9 : tensor<4x3xf32>
  }}
}}
"""  # noqa: E501


def requantized(sums: np.ndarray, own: Any, scale: float, zero: int) -> np.ndarray:
    reals = sums.astype(np.float32) * np.float32(own)
    return np.clip(np.rint(reals / np.float32(scale)) + zero, -128, 127)


def test_a_network(tmp_path: Path):
    path = tmp_path / "mine.mlir"
    path.write_text(MODEL)
    x = np.random.default_rng(0).normal(size=(50, 6, 6, 2)).astype(np.float32) * 20
    taken = np.clip(np.rint(x / np.float32(0.5)) + 3, -128, 127) - 3
    kernel = np.array([[[1, 2, -3], [4, -5, 6]], [[7, -8, 9], [-1, 2, 3]]])
    sums = np.array([10, -20, 30]) + sum(taken[:, row : row + 5, ::2] @ kernel[row] for row in (0, 1))
    hidden = requantized(sums, [0.05, 0.1, 0.15], 0.25, -3)
    # The weights are 103 + 100, more than a byte of the chip holds.
    wanted = requantized((hidden.reshape(50, 45) + 3).sum(axis=1)[:, None] * np.full(3, 203), 0.03125, 40, -3)
    program = tpu.chip.compile(path)
    assert (program.run_int8(x) == wanted).all()
    assert (program.run(x) == (wanted + 3) * 40).all()
    assert len(np.unique(wanted)) > 20
    layers = [node.layer for node in program.network.nodes]
    assert layers == ["uniform_quantize_2", "dot_general_1", "uniform_quantize_3"]


def of(operation: str, types: str, result: str) -> str:
    return (
        "module { func.func @main(%arg0: tensor<4x5xf32>) -> tensor<4x5xf32> {\n"
        f"    %0 = stablehlo.uniform_quantize %arg0 : (tensor<4x5xf32>) -> tensor<4x5x{I8}>\n"
        f"    %1 = stablehlo.{operation} : {types.format(f'tensor<4x5x{I8}>')}\n"
        f"    %2 = stablehlo.uniform_dequantize %1 : (tensor<4x5x{result}>) -> tensor<4x5xf32>\n"
        "    return %2 : tensor<4x5xf32>\n  }\n}\n"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            of("divide %0, %0", "{}", I8),
            "the operation 'divide' is not read from a quantized file. Compile the model that the file was made of, "
            "with calibration=.",
        ),
        (
            of("uniform_quantize %0", "({}) -> tensor<4x5x!quant.uniform<i4:f32, 0.5>>", "!quant.uniform<i4:f32, 0.5>"),
            "it has values of !quant.uniform<i4:f32, 0.5>, and the chip's have 8 or 16 bits, with a scale of float32: "
            "quantize the model with 8 bits.",
        ),
        (
            of(
                "uniform_quantize %0",
                "({}) -> tensor<4x5x" + I8.replace("f32", "f32:0").replace("0.5:3", "{{1.0,1.0,1.0,1.0}}") + ">",
                I8.replace("f32", "f32:0").replace("0.5:3", "{1.0,1.0,1.0,1.0}"),
            ),
            "it has activations with a scale for each channel or of 32 bits, and the chip's have one scale and 8 or 16 "
            "bits: quantize the model with one scale for each activation.",
        ),
    ],
    ids=["operation", "bits", "scales"],
)
def test_what_the_chip_lacks_is_refused(text: str, expected: str, tmp_path: Path):
    path = tmp_path / "mine.mlir"
    path.write_text(text)
    assert refusal(QuantizationError, tpu.chip.compile, path) == f"mine.mlir: {expected}"


def test_a_text_that_is_no_module(tmp_path: Path):
    path = tmp_path / "mine.mlir"
    path.write_text("!quant.uniform<i8:f32, 0.5>")
    with pytest.raises(
        ChipFileError, match=r"'.*mine\.mlir' is no StableHLO that is understood \(.*\): export it again\."
    ):
        tpu.chip.compile(path)
    path.write_text("module {}")
    with pytest.raises(ProgramError, match="is a StableHLO file, which holds no values of weights"):
        tpu.chip.compile(path, np.ones((2, 3), np.float32))


LEVELS = "-17,3,13,43,83"
QUANTIZED = f"tensor<4x5x{I8}>"
SUMS = """  %1 = stablehlo.dot_general %0, %k, contracting_dims = [1] x [0] : ({0}, tensor<5x5x{1}>) -> tensor<4x5x{2}>
    %2 = stablehlo.broadcast_in_dim %b, dims = [1] : (tensor<5x{3}>) -> tensor<4x5x{3}>
    %3 = stablehlo.add %1, %2 : (tensor<4x5x{2}>, tensor<4x5x{3}>) -> tensor<4x5x{2}>
    %4 = stablehlo.uniform_quantize %3 : (tensor<4x5x{2}>) -> {0}
    %5 = stablehlo.uniform_dequantize %4 : ({0}) -> tensor<4x5xf32>
    return %5 : tensor<4x5xf32>
"""
POOL = f"""    %r = stablehlo.reshape %0 : ({QUANTIZED}) -> tensor<4x5x1x1x{I8}>
    %i = stablehlo.constant() <{{value = dense<FIRST> : tensor<i8>}}> : () -> tensor<{I8}>
    %1 = "stablehlo.reduce_window"(%r, %i) <{{window_dimensions = array<i64: 1,1,1,1>MORE}}> ({{
    ^bb0(%a: tensor<{I8}>, %c: tensor<{I8}>):
      %m = stablehlo.maximum %a, %c : tensor<{I8}>
      stablehlo.return %m : tensor<{I8}>
    }}) : (tensor<4x5x1x1x{I8}>, tensor<{I8}>) -> tensor<4x5x1x1x{I8}>
    %2 = stablehlo.uniform_dequantize %1 : (tensor<4x5x1x1x{I8}>) -> tensor<4x5x1x1xf32>
    %3 = stablehlo.reshape %2 : (tensor<4x5x1x1xf32>) -> tensor<4x5xf32>
    return %3 : tensor<4x5xf32>
"""


def main_of(body: str) -> str:
    return (
        "module { func.func @main(\n%arg0: tensor<4x5xf32>\n) -> tensor<4x5xf32> {\n"
        f"    %0 = stablehlo.uniform_quantize %arg0 : (tensor<4x5xf32>) -> {QUANTIZED}\n{body}  }}\n}}\n"
    )


def sums(own: str, bias: str) -> str:
    weights = "!quant.uniform<i8:f32, 0.1>"
    constants = (
        f"    %k = stablehlo.constant() <{{value = dense<3> : tensor<5x5xi8>}}> : () -> tensor<5x5x{weights}>\n"
        f"    %b = stablehlo.constant() <{{value = dense<7> : tensor<5xi32>}}> : () -> tensor<5x{bias}>\n"
    )
    return main_of(constants + SUMS.format(QUANTIZED, weights, own, bias))


I32_SUM = "!quant.uniform<i32:f32, 0.05>"
CONVERTED = f"""    %1 = stablehlo.uniform_dequantize %0 : ({QUANTIZED}) -> tensor<4x5xf32>
    %2 = stablehlo.convert %1 : (tensor<4x5xf32>) -> tensor<4x5xi32>
    %3 = stablehlo.convert %2 : (tensor<4x5xi32>) -> tensor<4x5xf32>
    return %3 : tensor<4x5xf32>
"""
LIMITED = f"""    %k = stablehlo.constant() <{{value = dense<[{LEVELS}]> : tensor<5xi8>}}> : () -> tensor<5x{I8}>
    %b = stablehlo.broadcast_in_dim %k, dims = [1] : (tensor<5x{I8}>) -> {QUANTIZED}
    %1 = stablehlo.maximum %0, %b : {QUANTIZED}
    %2 = stablehlo.uniform_dequantize %1 : ({QUANTIZED}) -> tensor<4x5xf32>
    return %2 : tensor<4x5xf32>
"""
ENDS = f"""    %8 = stablehlo.uniform_quantize %0 : {QUANTIZED}
    %9 = stablehlo.uniform_dequantize %8 : ({QUANTIZED}) -> tensor<4x5xf32>
    return %9 : tensor<4x5xf32>
"""
OTHER_PARTS = "takes other parts than those of each example at constant indices along one axis"
SHIFTED = f"    %1 = stablehlo.slice %0 [1:4, 0:5] : ({QUANTIZED}) -> tensor<3x5x{I8}>\n{ENDS}"


def multiplied(last: int) -> str:
    rows = ",".join(f"[{row},1,1,1,{last}]" for row in range(4))
    return f"""    %k = stablehlo.constant() <{{value = dense<[{rows}]> : tensor<4x5xi16>}}> : () -> {QUANTIZED.replace("i8", "i16")}
    %1 = stablehlo.multiply %0, %k : ({QUANTIZED}, {QUANTIZED.replace("i8", "i16")}) -> {QUANTIZED}
{ENDS}"""  # noqa: E501


def gathered(axes: str, index: str, sizes: str, result: str) -> str:
    numbers = f"offset_dims = [1], collapsed_slice_dims = [{axes}], start_index_map = [{axes}], index_vector_dim = 1"
    return f"""    %c = stablehlo.constant dense<1> : tensor<{index}xi32>
    %1 = "stablehlo.gather"(%0, %c) <{{dimension_numbers = #stablehlo.gather<{numbers}>, slice_sizes = array<i64: {sizes}>}}> : ({QUANTIZED}, tensor<{index}xi32>) -> tensor<{result}x{I8}>
{ENDS}"""  # noqa: E501


OTHER_SCALE = "has another scale for its sums than the product of those of its operands"
NO_POOL = "is no maximum, of nothing else, over the positions of a picture with channels last"


def constant(name: str, values: str, shape: str, quantized: str) -> str:
    return (
        f"    %{name} = stablehlo.constant() <{{value = dense<{values}> : tensor<{shape}xi8>}}> : () -> "
        f"tensor<{shape}x{quantized}>\n"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (main_of(gathered("0", "1x1", "1, 5", "1x5")), f"'gather' {OTHER_PARTS}"),
        (
            main_of(gathered("0, 1", "1x2", "1, 1", "1")).replace("[1], coll", "[], coll"),
            f"'gather' {OTHER_PARTS}",
        ),
        (main_of(SHIFTED), "'slice' makes [3, 5] of 4 examples, and the chip computes each example by itself"),
        (main_of(multiplied(9)), "'multiply' takes constants that differ from example to example"),
        (
            main_of(multiplied(300)),
            "'multiply' takes constants of more than 8 bits",
        ),
        (main_of(LIMITED), "'maximum' takes constants that differ from number to number"),
        (main_of(CONVERTED), "'convert' makes other numbers than floats"),
        (sums(I32_SUM.replace("0.05", "0.5"), I32_SUM), f"'dot_general' {OTHER_SCALE}"),
        (sums(I32_SUM, I32_SUM.replace("0.05", "0.5")), f"'add' {OTHER_SCALE}"),
        (sums(I32_SUM, I32_SUM.replace("0.05", "0.05:9")), "'add' adds constants with a zero point to sums of 32 bits"),
        (
            sums(I32_SUM.replace("0.05", "0.05:9"), I32_SUM),
            "'dot_general' makes 32 bits, and the chip's sums of 32 bits have no zero point and no bounds",
        ),
        (main_of(POOL.replace("FIRST", "3").replace("MORE", "")), f"'reduce_window' {NO_POOL}"),
        (
            main_of(POOL.replace("FIRST", "-128").replace("MORE", ", window_dilations = array<i64: 1,2,1,1>")),
            f"'reduce_window' {NO_POOL}",
        ),
    ],
)
def test_what_would_be_read_with_other_numbers_is_refused(text: str, expected: str, tmp_path: Path):
    path = tmp_path / "mine.mlir"
    path.write_text(text)
    assert refusal(QuantizationError, tpu.chip.compile, path) == (
        f"mine.mlir: the operation {expected}. Compile the model that the file was made of, with calibration=."
    )


def in_one_line(taken: str, size: int, made: int, source: str = "%0") -> str:
    """A slice of examples of one axis, with its result quantized again."""
    start, result = f"tensor<4x{size}x{{}}>", f"tensor<4x{made}x{{}}>"
    own = I8 if source == "%0" else "f32"
    return f"""module {{ func.func @main(%arg0: {start.format("f32")}) -> {result.format("f32")} {{
    %0 = stablehlo.uniform_quantize %arg0 : ({start.format("f32")}) -> {start.format(I8)}
    %1 = stablehlo.slice {source} [0:4, {taken}] : ({start.format(own)}) -> {result.format(own)}
    %2 = stablehlo.uniform_quantize %1 : ({result.format(own)}) -> {result.format(I8)}
    %3 = stablehlo.uniform_dequantize %2 : ({result.format(I8)}) -> {result.format("f32")}
    return %3 : {result.format("f32")}
  }} }}
"""


MADE_OF = "Compile the model that the file was made of, with calibration=."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (in_one_line("0:40000:2", 40000, 20000), f"the operation 'slice' takes more than 16,384 parts. {MADE_OF}"),
        (in_one_line("2:2", 5, 0), f"the operation 'slice' makes a tensor of no numbers. {MADE_OF}"),
        (
            in_one_line("0:5:2", 5, 3, "%arg0"),
            "The layer 'slice_1' takes or makes numbers that the file does not quantize, and every number of the chip "
            "has a scale. Quantize the whole model; for ONNX: quantize_static(...) without nodes_to_exclude and "
            "op_types_to_quantize.",
        ),
    ],
    ids=["parts", "nothing", "floats"],
)
def test_parts_of_examples_that_are_refused(text: str, expected: str, tmp_path: Path):
    path = tmp_path / "mine.mlir"
    path.write_text(text)
    assert refusal(QuantizationError, tpu.chip.compile, path) == f"mine.mlir: {expected}"


def test_one_part_of_many_numbers(tmp_path: Path):
    path = tmp_path / "mine.mlir"
    path.write_text(in_one_line("10:19990", 20000, 19980))
    x = np.random.default_rng(0).integers(-60, 60, (2, 20000)).astype(np.float32)
    assert (tpu.chip.compile(path).run(x) == x[:, 10:19990]).all()


def test_a_quantized_constant_is_quantized_again(tmp_path: Path):
    fine, coarse = f"tensor<4x5x{I8.replace('0.5:3', '0.3')}>", f"tensor<4x5x{I8.replace('0.5:3', '2.0')}>"
    body = f"""    %k = stablehlo.constant() <{{value = dense<5> : tensor<4x5xi8>}}> : () -> {fine}
    %c = stablehlo.uniform_quantize %k : ({fine}) -> {coarse}
    %1 = stablehlo.add %0, %c : ({QUANTIZED}, {coarse}) -> {QUANTIZED}
    %2 = stablehlo.uniform_dequantize %1 : ({QUANTIZED}) -> tensor<4x5xf32>
    return %2 : tensor<4x5xf32>
"""
    path = tmp_path / "mine.mlir"
    path.write_text(main_of(body))
    assert (tpu.chip.compile(path).run(np.zeros((4, 5), np.float32)) == 2).all()


FAR = "!quant.uniform<i8:f32, 0.5:-100>"
HALVES = "!quant.uniform<i32:f32, 0.25>"
CONVOLVED = """    %1 = stablehlo.reshape %0 : (tensor<4x5x{own}>) -> tensor<4x{source}x{own}>
    %2 = stablehlo.convolution(%1, %k) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {{{window}}} {{batch_group_count = 1 : i64, feature_group_count = {groups} : i64}} : (tensor<4x{source}x{own}>, tensor<{kernel}x{weights}>) -> tensor<4x{source}x{sums}>
    %3 = stablehlo.uniform_quantize %2 : (tensor<4x{source}x{sums}>) -> tensor<4x{source}x{own}>
    %7 = stablehlo.reshape %3 : (tensor<4x{source}x{own}>) -> tensor<4x5x{own}>
"""  # noqa: E501
READ = {
    "constant indices": (
        f"""    %c = stablehlo.constant dense<[[4], [0], [1], [1], [9]]> : tensor<5x1xi64>
    %i = stablehlo.convert %c : (tensor<5x1xi64>) -> tensor<5x1xi32>
    %7 = "stablehlo.gather"(%0, %i) <{{dimension_numbers = #stablehlo.gather<offset_dims = [0], collapsed_slice_dims = [1], start_index_map = [1], index_vector_dim = 1>, slice_sizes = array<i64: 4, 1>}}> : ({QUANTIZED}, tensor<5x1xi32>) -> {QUANTIZED}
""",  # noqa: E501
        lambda x: x[:, [4, 0, 1, 1, 4]],
    ),
    "slices": (
        f"""    %1 = stablehlo.slice %0 [0:4, 0:5:2] : ({QUANTIZED}) -> tensor<4x3x{I8}>
    %2 = stablehlo.slice %0 [0:4, 3:5] : ({QUANTIZED}) -> tensor<4x2x{I8}>
    %7 = stablehlo.concatenate %1, %2, dim = 1 : (tensor<4x3x{I8}>, tensor<4x2x{I8}>) -> {QUANTIZED}
""",
        lambda x: x[:, [0, 2, 4, 3, 4]],
    ),
    "constants": (
        constant("k", f"[{LEVELS}]", "5", I8)
        + f"""    %b = stablehlo.broadcast_in_dim %k, dims = [1] : (tensor<5x{I8}>) -> {QUANTIZED}
    %7 = stablehlo.multiply %0, %b : {QUANTIZED}
""",
        lambda x: x * np.array([-10, 0, 5, 20, 40], np.float32),
    ),
    "a transposed convolution": (
        constant("k", "[[[3]],[[-2]],[[1]]]", "3x1x1", I8.replace(":3", ""))
        + CONVOLVED.format(
            own=I8,
            source="5x1",
            window="stride = [2], pad = [[2, 1]], lhs_dilate = [2]",
            groups=1,
            kernel="3x1x1",
            weights=I8.replace(":3", ""),
            sums=HALVES,
        ),
        lambda x: 1.5 * np.pad(x, ((0, 0), (1, 0)))[:, :5] + 0.5 * x,
    ),
    "groups of weights beyond a byte": (
        constant("k", "[[[103,-100,-1,0,127]]]", "1x1x5", FAR)
        + CONVOLVED.format(own=I8, source="1x5", window="", groups=5, kernel="1x1x5", weights=FAR, sums=HALVES),
        lambda x: x * np.array([101.5, 0, 49.5, 50, 113.5], np.float32),
    ),
}


@pytest.mark.parametrize("name", READ)
def test_an_operation(name: str, tmp_path: Path):
    body, expected = READ[name]
    path = tmp_path / "mine.mlir"
    path.write_text(main_of(body + ENDS.replace("%0", "%7")))
    x = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32) * 8
    taken = (np.clip(np.rint(x / np.float32(0.5)) + 3, -128, 127) - 3) * np.float32(0.5)
    wanted = np.clip(np.rint(expected(taken) / np.float32(0.5)) + 3, -128, 127)
    assert (tpu.chip.compile(path).run(x) == (wanted - 3) * 0.5).all()
    assert len(np.unique(wanted)) > 4


def test_a_product_over_all_axes_of_an_example(tmp_path: Path):
    """The weights have an axis for the batch, of one example."""
    path = tmp_path / "mine.mlir"
    path.write_text(f"""
module {{ func.func @main(%arg0: tensor<1x2x3xf32>) -> tensor<1xf32> {{
    %0 = stablehlo.uniform_quantize %arg0 : (tensor<1x2x3xf32>) -> tensor<1x2x3x{I8}>
{constant("k", "[[[1,2],[3,4],[5,6]]]", "1x3x2", I8.replace(":3", ""))}
    %1 = stablehlo.dot_general %0, %k, batching_dims = [0] x [0], contracting_dims = [2, 1] x [1, 2] : (tensor<1x2x3x{I8}>, tensor<1x3x2x{I8.replace(":3", "")}>) -> tensor<1x{HALVES}>
    %2 = stablehlo.uniform_quantize %1 : (tensor<1x{HALVES}>) -> tensor<1x{I8}>
    %3 = stablehlo.uniform_dequantize %2 : (tensor<1x{I8}>) -> tensor<1xf32>
    return %3 : tensor<1xf32>
}} }}
""")  # noqa: E501
    x = np.random.default_rng(0).integers(-9, 9, (20, 2, 3)).astype(np.float32)
    sums = (x * np.array([[0.5, 1.5, 2.5], [1, 2, 3]], np.float32)).sum((1, 2))
    assert (tpu.chip.compile(path).run(x).reshape(20) == np.clip(sums, -65.5, 62)).all()
