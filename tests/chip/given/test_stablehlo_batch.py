"""Quantized StableHLO: no file compiles to a program whose results depend on the number of examples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anytpu as tpu  # isort: skip
import numpy as np
import pytest

from anytpu.errors import QuantizationError
from refusals import refusal

SHAPE = (4, 3, 4)
"""A batch of 4, as large as an axis of an example."""

PLAIN = "!quant.uniform<i8:f32, 0.5>"
SUMS = "!quant.uniform<i32:f32, 0.25>"

Drawn = tuple[str, Callable[[np.ndarray], np.ndarray]]
"""The lines that make `%1` of `%0`, and the same in NumPy."""


def tensor(shape: tuple[int, ...], own: str = PLAIN) -> str:
    return f"tensor<{''.join(f'{size}x' for size in shape)}{own}>"


def quantized(x: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(x * 2), -128, 127) / 2


def sliced(rng: np.random.Generator) -> Drawn:
    limits = [int(rng.integers(1, size + 1)) if rng.random() < 0.4 else size for size in SHAPE]
    starts = [int(rng.integers(limit)) if rng.random() < 0.4 else 0 for limit in limits]
    steps = [int(rng.integers(1, 3)) for _ in SHAPE] if rng.random() < 0.4 else [1, 1, 1]
    taken = tuple(map(slice, starts, limits, steps))
    made = np.zeros(SHAPE)[taken].shape
    spelled = ", ".join(f"{part.start}:{part.stop}:{part.step}" for part in taken)
    return f"stablehlo.slice %0 [{spelled}] : ({tensor(SHAPE)}) -> {tensor(made)}", lambda x: x[taken]


def gathered(rng: np.random.Generator) -> Drawn:
    axis, count = int(rng.integers(3)), int(rng.integers(1, 5))
    indices = rng.integers(0, SHAPE[axis], count).tolist()
    sizes = [1 if n == axis else int(rng.integers(1, size + 1)) if n == 0 else size for n, size in enumerate(SHAPE)]
    if rng.random() < 0.5:
        sizes[0] = 1 if axis == 0 else SHAPE[0]
    place = axis if rng.random() < 0.7 else int(rng.integers(3))
    kept = [size for n, size in enumerate(sizes) if n != axis]
    made = (*kept[:place], count, *kept[place:])
    offsets = [n for n in range(3) if n != place]
    numbers = f"offset_dims = {offsets}, collapsed_slice_dims = [{axis}], start_index_map = [{axis}]"
    text = f"""stablehlo.constant dense<{[[n] for n in indices]}> : tensor<{count}x1xi32>
    %1 = "stablehlo.gather"(%0, %c) <{{dimension_numbers = #stablehlo.gather<{numbers}, index_vector_dim = 1>, slice_sizes = array<i64: {str(sizes)[1:-1]}>}}> : ({tensor(SHAPE)}, tensor<{count}x1xi32>) -> {tensor(made)}"""  # noqa: E501
    whole = tuple(slice(None) if n == axis else slice(size) for n, size in enumerate(sizes))
    return f"%c = {text}", lambda x: np.moveaxis(np.take(x[whole], indices, axis), axis, place)


def transposed(rng: np.random.Generator) -> Drawn:
    order = rng.permutation(3).tolist()
    made = tuple(SHAPE[axis] for axis in order)
    return f"stablehlo.transpose %0, dims = {order} : ({tensor(SHAPE)}) -> {tensor(made)}", lambda x: x.transpose(order)


def reshaped(rng: np.random.Generator) -> Drawn:
    made = [(4, 12), (12, 4), (2, 24), (4, 4, 3), (3, 4, 4), (4, 2, 6), (48,), (1, 48), (4, 12, 1)][rng.integers(9)]
    return f"stablehlo.reshape %0 : ({tensor(SHAPE)}) -> {tensor(made)}", lambda x: x.reshape(made)


def joined(rng: np.random.Generator) -> Drawn:
    axis = int(rng.integers(3))
    made = tuple(size * (2 if n == axis else 1) for n, size in enumerate(SHAPE))
    text = f"stablehlo.concatenate %0, %0, dim = {axis} : ({tensor(SHAPE)}, {tensor(SHAPE)}) -> {tensor(made)}"
    return text, lambda x: np.concatenate([x, x], axis)


def contracted(rng: np.random.Generator) -> Drawn:
    axes = [[0], [1], [2], [1, 2], [2, 1], [0, 1], [0, 2], [0, 1, 2]][rng.integers(8)]
    free = (3,) if rng.random() < 0.7 else ()
    shape = (*(SHAPE[axis] for axis in axes), *free)
    weights = rng.integers(-3, 4, shape)
    made = (*(size for n, size in enumerate(SHAPE) if n not in axes), *free)
    last = list(range(len(axes)))
    text = f"""%k = stablehlo.constant() <{{value = dense<{weights.tolist()}> : {tensor(shape, "i8")}}}> : () -> {tensor(shape)}
    %s = stablehlo.dot_general %0, %k, contracting_dims = {axes} x {last} : ({tensor(SHAPE)}, {tensor(shape)}) -> {tensor(made, SUMS)}
    %1 = stablehlo.uniform_quantize %s : ({tensor(made, SUMS)}) -> {tensor(made)}"""  # noqa: E501
    return text, lambda x: quantized(np.tensordot(x, weights * 0.5, (axes, last)))


def pooled(rng: np.random.Generator) -> Drawn:
    windows, steps = rng.integers(1, 3, (2, 4)).tolist() if rng.random() < 0.5 else ([1, 2, 2, 1], [1, 1, 2, 1])
    four = (*SHAPE, 1)
    made = tuple((size - window) // step + 1 for size, window, step in zip(four, windows, steps, strict=True))
    windows[3] = steps[3] = 1
    made = (*made[:3], 1)
    one = tensor((), PLAIN)
    text = f"""%r = stablehlo.reshape %0 : ({tensor(SHAPE)}) -> {tensor(four)}
    %i = stablehlo.constant() <{{value = dense<-128> : tensor<i8>}}> : () -> {one}
    %1 = "stablehlo.reduce_window"(%r, %i) <{{window_dimensions = array<i64: {str(windows)[1:-1]}>, window_strides = array<i64: {str(steps)[1:-1]}>}}> ({{
    ^bb0(%a: {one}, %b: {one}):
      %m = stablehlo.maximum %a, %b : {one}
      stablehlo.return %m : {one}
    }}) : ({tensor(four)}, {one}) -> {tensor(made)}"""  # noqa: E501

    def pool(x: np.ndarray) -> np.ndarray:
        views = np.lib.stride_tricks.sliding_window_view(x[..., None], windows)
        return views[tuple(slice(None, None, step) for step in steps)].max((-4, -3, -2, -1))

    return text, pool


def reduced(rng: np.random.Generator) -> Drawn:
    axis = int(rng.integers(3))
    made = tuple(size for n, size in enumerate(SHAPE) if n != axis)
    text = f"""%i = stablehlo.constant() <{{value = dense<-128> : tensor<i8>}}> : () -> {tensor(())}
    %1 = stablehlo.reduce(%0 init: %i) applies stablehlo.maximum across dimensions = [{axis}] : ({tensor(SHAPE)}, {tensor(())}) -> {tensor(made)}"""  # noqa: E501
    return text, lambda x: x.max(axis)


def added(rng: np.random.Generator) -> Drawn:
    """Constants added to numbers of 8 bits, or to sums of 32 bits, that differ along some of the axes."""
    weights = rng.integers(-3, 4, (4, 4))
    more = rng.integers(-9, 10, [size if rng.random() < 0.4 else 1 for size in SHAPE])
    more = np.broadcast_to(more, SHAPE)
    if rng.random() < 0.5:
        text = f"""%k = stablehlo.constant() <{{value = dense<{more.tolist()}> : {tensor(SHAPE, "i8")}}}> : () -> {tensor(SHAPE)}
    %1 = stablehlo.add %0, %k : {tensor(SHAPE)}"""  # noqa: E501
        return text, lambda x: quantized(x + more * 0.5)
    kernel = tensor((4, 4))
    text = f"""%k = stablehlo.constant() <{{value = dense<{weights.tolist()}> : tensor<4x4xi8>}}> : () -> {kernel}
    %b = stablehlo.constant() <{{value = dense<{more.tolist()}> : {tensor(SHAPE, "i32")}}}> : () -> {tensor(SHAPE, SUMS)}
    %s = stablehlo.dot_general %0, %k, contracting_dims = [2] x [0] : ({tensor(SHAPE)}, {kernel}) -> {tensor(SHAPE, SUMS)}
    %t = stablehlo.add %s, %b : {tensor(SHAPE, SUMS)}
    %1 = stablehlo.uniform_quantize %t : ({tensor(SHAPE, SUMS)}) -> {tensor(SHAPE)}"""  # noqa: E501
    return text, lambda x: quantized(x @ (weights * 0.5) + more * 0.25)


DRAWS: dict[str, Callable[[np.random.Generator], Drawn]] = {
    "slice": sliced,
    "gather": gathered,
    "transpose": transposed,
    "reshape": reshaped,
    "concatenate": joined,
    "dot_general": contracted,
    "reduce_window": pooled,
    "reduce": reduced,
    "add": added,
}


def program_of(lines: str, made: tuple[int, ...]) -> str:
    first = lines if lines.startswith("%") else f"%1 = {lines}"
    result = "".join(f"{size}x" for size in made)
    return (
        f"module {{ func.func @main(%arg0: tensor<4x3x4xf32>) -> tensor<{result}f32> {{\n"
        f"    %0 = stablehlo.uniform_quantize %arg0 : (tensor<4x3x4xf32>) -> {tensor(SHAPE)}\n    {first}\n"
        f"    %n = stablehlo.negate %1 : {tensor(made)}\n"
        f"    %y = stablehlo.uniform_dequantize %n : ({tensor(made)}) -> tensor<{result}f32>\n"
        f"    return %y : tensor<{result}f32>\n  }}\n}}\n"
    )


@pytest.mark.parametrize("kind", DRAWS)
def test_drawn_programs_compute_each_example_by_itself_or_are_refused(kind: str, tmp_path: Path):
    rng, path, read = np.random.default_rng(0), tmp_path / "mine.mlir", 0
    for _ in range(40):
        lines, expected = DRAWS[kind](rng)
        x = rng.integers(-60, 60, (8, *SHAPE[1:])) / 2
        parts = [quantized(-expected(rows)) for rows in (x[:4], x[4:], x[:4][::-1])]
        path.write_text(program_of(lines, parts[0].shape))
        try:
            program = tpu.chip.compile(path)
        except QuantizationError as error:
            assert "mine.mlir: the operation" in str(error), lines
            continue
        read += 1
        assert len(parts[0]) == 4 and np.array_equal(parts[2][::-1], parts[0]), lines
        wanted = np.concatenate(parts[:2])
        assert np.array_equal(np.reshape(program.run(x.astype(np.float32)), wanted.shape), wanted), lines
    assert read or kind == "reduce"


def spelled_gather(sizes: str, made: tuple[int, ...]) -> str:
    numbers = "offset_dims = [0, 2], collapsed_slice_dims = [1], start_index_map = [1], index_vector_dim = 1"
    return f"""%c = stablehlo.constant dense<[[2], [0]]> : tensor<2x1xi32>
    %1 = "stablehlo.gather"(%0, %c) <{{dimension_numbers = #stablehlo.gather<{numbers}>, slice_sizes = array<i64: {sizes}>}}> : ({tensor(SHAPE)}, tensor<2x1xi32>) -> {tensor(made)}"""  # noqa: E501


def bias_of(values: list[int]) -> str:
    whole = [[[value] * 4] * 3 for value in values]
    return f"""%k = stablehlo.constant() <{{value = dense<1> : tensor<4x4xi8>}}> : () -> {tensor((4, 4))}
    %b = stablehlo.constant() <{{value = dense<{whole}> : {tensor(SHAPE, "i32")}}}> : () -> {tensor(SHAPE, SUMS)}
    %s = stablehlo.dot_general %0, %k, contracting_dims = [2] x [0] : ({tensor(SHAPE)}, {tensor((4, 4))}) -> {tensor(SHAPE, SUMS)}
    %t = stablehlo.add %s, %b : {tensor(SHAPE, SUMS)}
    %1 = stablehlo.uniform_quantize %t : ({tensor(SHAPE, SUMS)}) -> {tensor(SHAPE)}"""  # noqa: E501


AGAIN = " Compile the model that the file was made of, with calibration=."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            program_of(spelled_gather("2, 1, 4", (2, 2, 4)), (2, 2, 4)),
            "the operation 'gather' takes other parts than those of each example at constant indices along one axis."
            + AGAIN,
        ),
        (
            program_of(f"stablehlo.uniform_quantize %0 : ({tensor(SHAPE)}) -> {tensor((2, 24))}", (2, 24)),
            "the operation 'uniform_quantize' makes [2, 24] of 4 examples, and the chip computes each example by itself"
            f".{AGAIN}",
        ),
        (
            program_of(bias_of([1, 2, 3, 4]), SHAPE),
            "the operation 'add' adds more to sums of 32 bits than one constant for each channel." + AGAIN,
        ),
    ],
    ids=["gather", "shape", "bias"],
)
def test_another_batch_is_refused(text: str, expected: str, tmp_path: Path):
    path = tmp_path / "mine.mlir"
    path.write_text(text)
    assert refusal(QuantizationError, tpu.chip.compile, path) == f"mine.mlir: {expected}"
