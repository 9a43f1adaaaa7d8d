"""Operations number by number, where NumPy and XLA might differ: XLA itself is the judge."""

from __future__ import annotations

import anytpu  # noqa: F401  # isort: skip
import jax
import numpy as np
import pytest

from anytpu.chip.network import elementwise, foreign

# XLA without its fusion emitters has other powers of -1.
pytestmark = pytest.mark.optimized

WHOLE = [np.int8, np.int16, np.int32, np.uint8, np.uint16, np.uint32]


def computed(name: str, dtype: np.dtype, *operands: np.ndarray) -> np.ndarray:
    return elementwise.compute(name, list(operands), {}, operands[0].shape, dtype)


@pytest.mark.parametrize("dtype", WHOLE)
@pytest.mark.parametrize(("name", "of_xla"), [("divide", jax.lax.div), ("remainder", jax.lax.rem)])
def test_whole_numbers_are_divided_as_xla_does(name: str, of_xla: object, dtype: type):
    ends = np.iinfo(dtype)
    some = np.array([ends.min, ends.min + 1, -7 if ends.min else 249, -1 if ends.min else 1, 0, 1, 3, 7, ends.max])
    x, y = (one.reshape(-1).astype(dtype) for one in np.meshgrid(some, some))
    made = computed(name, np.dtype(dtype), x, y)
    assert made.dtype == dtype
    np.testing.assert_array_equal(made, jax.jit(of_xla)(x, y))  # pyright: ignore[reportArgumentType, reportCallIssue]


@pytest.mark.parametrize("dtype", [*WHOLE, np.bool_])
def test_real_numbers_become_whole_ones_as_xla_does(dtype: type):
    beyond = [np.nan, np.inf, -np.inf, 1e20, -1e20, 2.0**31, -(2.0**31), 2.0**32, 2.0**31 - 128]
    x = np.array([*beyond, 300, -300, 127.5, 128, 255.7, -128.5, 1.9, -1.9, -0.5, 0], np.float32)
    made = computed("convert", np.dtype(dtype), x)
    assert made.dtype == dtype
    np.testing.assert_array_equal(made, jax.jit(lambda x: jax.lax.convert_element_type(x, dtype))(x))


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_powers_of_integers_are_those_of_xla(bits: int):
    x, y = (each.reshape(-1).astype(f"int{bits}") for each in np.meshgrid(np.arange(-4, 5), np.arange(-3, 7)))
    kind = f"tensor<{len(x)}xi{bits}>"
    text = (
        f"module {{ func.func public @main(%x: {kind}, %y: {kind}) -> {kind} {{\n"
        f"%0 = stablehlo.power %x, %y : {kind}\nreturn %0 : {kind} }} }}"
    )
    (wanted,) = foreign.call(text, [x, y])
    np.testing.assert_array_equal(computed("power", x.dtype, x, y), wanted)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_halves_are_rounded_away_from_zero_and_nothing_else(dtype: type):
    below = np.nextafter(dtype(0.5), dtype(0))
    x = np.array([below, -below, 0.5, -0.5, 1.5, -2.5, 0, -0.0, np.inf, 2**20 if dtype is np.float32 else 2048], dtype)
    away = jax.jit(lambda x: jax.lax.round(x, jax.lax.RoundingMethod.AWAY_FROM_ZERO))
    np.testing.assert_array_equal(computed("round_nearest_afz", np.dtype(dtype), x), away(x))
