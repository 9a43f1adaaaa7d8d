"""oneDNN's convolutions against float64's: forward, both gradients, every kind of window, groups and order of axes."""

import functools
import itertools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

pytest.importorskip("anytpu_kernels", reason="the kernels are not installed: scripts/venv builds them where g++ is")
from anytpu_kernels import convolution, takes_convolution

SPACE = "DHW"
EPSILON = float(np.finfo("float32").eps)
"""A sum of n random terms, one after the other, is off by about a tenth of this times the root of n, relatively."""

# features, filters, kernel, strides, padding, dilation, groups: of one axis of space and of all.
KINDS = {
    "same": (8, 16, 3, 1, "SAME", 1, 1),
    "valid": (8, 16, 3, 1, "VALID", 1, 1),
    "one feature": (1, 16, 3, 1, "VALID", 1, 1),
    "odd features": (3, 5, 3, 1, "SAME", 1, 1),
    "even kernel": (4, 6, 2, 1, "SAME", 1, 1),
    "pointwise": (16, 24, 1, 1, "VALID", 1, 1),
    "strided": (8, 16, 3, 2, "SAME", 1, 1),
    "strided pointwise": (8, 16, 1, 2, "SAME", 1, 1),
    "wide steps": (4, 8, 2, 3, "VALID", 1, 1),
    "dilated": (8, 16, 3, 1, "SAME", 2, 1),
    "strided and dilated": (8, 16, 3, 2, "VALID", 2, 1),
    "grouped": (8, 16, 3, 1, "SAME", 1, 4),
    "strided groups": (8, 8, 3, 2, "SAME", 1, 2),
    "depthwise": (16, 16, 3, 1, "SAME", 1, 16),
    "strided depthwise": (16, 16, 3, 2, "SAME", 1, 16),
    "two filters a feature": (8, 16, 3, 1, "SAME", 1, 8),
}


def layer(kind, rank, order="last"):
    """Return a convolution with its shapes of image and kernel."""
    features, filters, kernel, strides, padding, dilation, groups = KINDS[kind]
    space = SPACE[-rank:]
    numbers = ("N" + space + "C", space + "IO", "N" + space + "C")
    if order == "first":
        numbers = ("NC" + space, "OI" + space, "NC" + space)
    sizes = dict(zip(space, (9, 12, 10)[-rank:], strict=True)) | {"N": 6, "C": features}
    taps = dict.fromkeys(space, kernel) | {"I": features // groups, "O": filters}
    apply = functools.partial(
        lax.conv_general_dilated,
        window_strides=(strides,) * rank,
        padding=padding,
        rhs_dilation=(dilation,) * rank,
        dimension_numbers=numbers,
        feature_group_count=groups,
    )
    return apply, tuple(sizes[axis] for axis in numbers[0]), tuple(taps[axis] for axis in numbers[1])


def equations(function, *arrays):
    """Return the convolutions of a function: parameters and what they are given."""
    closed = jax.make_jaxpr(function)(*arrays)
    return [one for one in closed.eqns if one.primitive is lax.conv_general_dilated_p]


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def float64(parameters, image, kernel):
    """Compute a convolution in float64, by a sum over the taps and places."""
    numbers = parameters["dimension_numbers"]
    x, w = np.transpose(image, numbers.lhs_spec), np.transpose(kernel, numbers.rhs_spec)
    groups, batch_groups = parameters["feature_group_count"], parameters["batch_group_count"]
    rank = x.ndim - 2
    spread = np.zeros(
        x.shape[:2] + tuple((n - 1) * s + 1 for n, s in zip(x.shape[2:], parameters["lhs_dilation"], strict=True))
    )
    spread[(slice(None),) * 2 + tuple(slice(None, None, s) for s in parameters["lhs_dilation"])] = x
    for axis, (low, high) in enumerate(parameters["padding"], 2):
        pads = [(0, 0)] * spread.ndim
        pads[axis] = max(low, 0), max(high, 0)
        spread = np.pad(spread, pads)
        spread = np.take(spread, range(max(-low, 0), spread.shape[axis] - max(-high, 0)), axis)
    out_space = tuple(
        (n - ((k - 1) * d + 1)) // s + 1
        for n, k, d, s in zip(
            spread.shape[2:], w.shape[2:], parameters["rhs_dilation"], parameters["window_strides"], strict=True
        )
    )
    batch, filters = x.shape[0] // batch_groups, w.shape[0]
    out = np.zeros((batch, filters, *out_space))
    parts = groups * batch_groups
    for part in range(parts):
        rows = slice(part * batch, (part + 1) * batch) if batch_groups > 1 else slice(None)
        features = slice(part * w.shape[1], (part + 1) * w.shape[1]) if groups > 1 else slice(None)
        made = slice(part * filters // parts, (part + 1) * filters // parts)
        for tap in itertools.product(*map(range, w.shape[2:])):
            window = tuple(
                slice(t * d, t * d + (m - 1) * s + 1, s)
                for t, d, m, s in zip(
                    tap, parameters["rhs_dilation"], out_space, parameters["window_strides"], strict=True
                )
            )
            out[:, made] += np.einsum(
                "ni...,oi->no...", spread[(rows, features, *window)], w[(made, slice(None), *tap)]
            )
    assert rank == len(out_space)
    return np.transpose(out, np.argsort(numbers.out_spec))


def check(equation, seed=0):
    """Compute one convolution by oneDNN, and compare it with float64's, as XLA's own is compared."""
    shapes = [v.aval.shape for v in equation.invars]
    image, kernel = (random(*shape, seed=seed + i).astype("float32") for i, shape in enumerate(shapes))
    assert takes_convolution(*(v.aval for v in equation.invars), equation.params)
    ours = jax.jit(lambda a, b: convolution(a, b, **equation.params))(image, kernel)
    xlas = jax.jit(lambda a, b: lax.conv_general_dilated_p.bind(a, b, **equation.params))(image, kernel)
    exact = float64(equation.params, image.astype("float64"), kernel.astype("float64"))
    assert ours.shape == xlas.shape == exact.shape
    scale = np.abs(exact).max()
    error, theirs = (np.abs(np.asarray(one) - exact).max() / scale for one in (ours, xlas))
    taps, numbers = equation.invars[1].aval, equation.params["dimension_numbers"]
    terms = taps.size // taps.shape[numbers.rhs_spec[0]]
    assert error <= max(2 * theirs, EPSILON * terms**0.5 / 2)


def training(apply, image, kernel):
    """Return the three convolutions of one layer."""

    def train(x, w):
        y, pull = jax.vjp(apply, x, w)
        return pull(y)

    return equations(train, jnp.zeros(image), jnp.zeros(kernel))


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_forward_and_both_gradients(kind, rank):
    ran = training(*layer(kind, rank))
    assert len(ran) == 3
    for equation in ran:
        check(equation)


@pytest.mark.parametrize("kind", ["same", "strided", "grouped", "depthwise", "dilated"])
def test_any_order_of_axes(kind):
    for equation in training(*layer(kind, 2, order="first")):
        check(equation)


@pytest.mark.parametrize("kind", ["same", "strided", "grouped", "depthwise"])
@pytest.mark.parametrize("shared", [True, False])
def test_replicas(kind, shared):
    """JAX folds replicas into the batch where they share the kernel, into groups otherwise."""
    apply, image, kernel = layer(kind, 2)
    over = jax.vmap(apply, in_axes=(0, None if shared else 0))
    kernels = kernel if shared else (4, *kernel)
    for equation in training(over, (4, *image), kernels):
        operands = [v.aval for v in equation.invars]
        if takes_convolution(*operands, equation.params):
            check(equation)
        else:
            assert not shared and kind in ("grouped", "depthwise")


@pytest.mark.parametrize("strides", [1, 2])
def test_transposed(strides):
    def apply(x, w):
        return lax.conv_transpose(x, w, (strides,) * 2, "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    for equation in training(apply, (4, 6, 5, 8), (3, 3, 8, 12)):
        check(equation)


def test_what_onednn_does_not_take():
    apply, image, kernel = layer("same", 2)
    (equation, *_) = training(apply, image, kernel)
    double, empty = jax.ShapeDtypeStruct(image, "float64"), jax.ShapeDtypeStruct((0, *image[1:]), "float32")
    kernel = equation.invars[1].aval
    assert not takes_convolution(double, kernel, equation.params)
    assert not takes_convolution(empty, kernel, equation.params)
    cropped = equation.params | {"padding": ((-1, 1), (1, 1))}
    assert not takes_convolution(equation.invars[0].aval, kernel, cropped)
    wide = equation.params | {"padding": ((1, 1), (1, 1)), "lhs_dilation": (2, 2), "window_strides": (2, 2)}
    assert not takes_convolution(equation.invars[0].aval, kernel, wide)


def test_beside_another_openmp():
    """The kernels' own threads compute, although the process has the functions of libgomp, as after `import torch`."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "grouped or valid"]
    environment = os.environ | {"LD_PRELOAD": "libgomp.so.1"}
    run = subprocess.run(command, capture_output=True, text=True, timeout=110, env=environment)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
