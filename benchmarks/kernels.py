"""The CPU's own kernels against JAX's and Keras's: `python benchmarks/kernels.py [convolutions] [pooling] [models]`.

Everything runs inside a `fori_loop`, as the engine runs it. Contenders take turns in one process; what is compared is
the ratio of the medians, and of the minimums where others share the machine. CPU seconds of all threads are given
beside them.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax import lax

from anytpu.engine.convolution import needs_rewriting, rewrite_convolution
from anytpu.engine.kernels import fast_kernels
from anytpu.engine.pooling import pool_gradient
from machine import cpu_name

ROUNDS = 9
CALL_S = 0.1
# batch, height and width, input features, filters, kernel, strides, padding, groups
SHAPES = [
    (64, 8, 1, 32, 3, 1, "SAME", 1),
    (64, 8, 32, 32, 3, 1, "SAME", 1),
    (64, 4, 32, 64, 3, 1, "SAME", 1),
    (64, 8, 64, 64, 1, 1, "SAME", 1),
    (32, 28, 1, 32, 3, 1, "SAME", 1),
    (32, 26, 32, 64, 3, 1, "VALID", 1),
    (16, 28, 16, 16, 5, 1, "SAME", 1),
    (32, 32, 16, 32, 3, 2, "SAME", 1),
    (64, 16, 64, 64, 3, 1, "SAME", 1),
    (16, 16, 128, 128, 3, 1, "SAME", 1),
    (20, 28, 1, 256, 3, 1, "VALID", 1),
    (20, 26, 256, 256, 3, 1, "VALID", 1),
    (16, 16, 64, 64, 3, 1, "SAME", 64),
]
# batch, height and width, features, window, strides, padding
POOLS = [
    (64, 8, 32, 2, 2, "VALID"),
    (64, 32, 32, 2, 2, "VALID"),
    (128, 24, 64, 2, 2, "VALID"),
    (128, 16, 32, 3, 2, "SAME"),
    (64, 16, 32, 5, 3, "VALID"),
    (16, 112, 64, 3, 2, "SAME"),
]


def convolutions(shape: tuple) -> Iterator[tuple[str, dict[str, Any], list[Any]]]:
    """Yield the convolutions that training one layer takes: name, parameters, operands."""
    batch, side, features, filters, kernel, strides, padding, groups = shape

    def layer(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(
            x, w, (strides,) * 2, padding, dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups
        )

    def train(x: Any, w: Any) -> Any:
        y, pull = jax.vjp(layer, x, w)
        return pull(y)

    x = jax.ShapeDtypeStruct((batch, side, side, features), "float32")
    w = jax.ShapeDtypeStruct((kernel, kernel, features // groups, filters), "float32")
    equations = [e for e in jax.make_jaxpr(train)(x, w).eqns if e.primitive is lax.conv_general_dilated_p]
    random = np.random.default_rng(0)
    for name, equation in zip(("forward", "kernel gradient", "image gradient"), equations, strict=True):
        arrays = [jnp.asarray(random.normal(size=v.aval.shape), "float32") for v in equation.invars]
        yield name, equation.params, arrays


def looped(function: Callable, arrays: list[Any]) -> Any:
    """Compile n runs of a function of two arrays in a loop; each run depends on the one before."""

    def run(n: Any, a: Any, b: Any) -> Any:
        def body(_: Any, carry: Any) -> Any:
            y, b = carry
            b = b + 1e-20 * y.reshape(-1)[0]
            return function(a, b), b

        out = jax.eval_shape(function, a, b)
        return lax.fori_loop(0, n, body, (jnp.zeros(out.shape, out.dtype), b))[0]

    return jax.jit(run).lower(1, *arrays).compile()


def race(runs: dict[str, Callable[[int], Any]]) -> dict[str, dict[str, float]]:
    """Let contenders take turns. Each gets as many iterations a call as fit in CALL_S."""
    counts, walls, cpus = {}, {name: [] for name in runs}, {name: [] for name in runs}
    for name, run in runs.items():
        jax.block_until_ready(run(1))
        counts[name] = max(1, int(CALL_S / _seconds(run, 1)[0]))
    for _ in range(ROUNDS):
        for name, run in runs.items():
            wall, cpu = _seconds(run, counts[name])
            walls[name].append(wall)
            cpus[name].append(cpu)
    return {
        name: {
            "median_ms": 1e3 * statistics.median(walls[name]),
            "min_ms": 1e3 * min(walls[name]),
            "cpu_ms": 1e3 * min(cpus[name]),
        }
        for name in runs
    }


def _seconds(run: Callable[[int], Any], n: int) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    jax.block_until_ready(run(n))
    return (time.perf_counter() - wall) / n, (time.process_time() - cpu) / n


def race_convolutions() -> Iterator[dict[str, Any]]:
    """Race the forms of each convolution of each layer."""
    for shape in SHAPES:
        for name, parameters, arrays in convolutions(shape):
            contenders = {
                "channels last": functools.partial(rewrite_convolution, form="channels last", **parameters),
                "ours": functools.partial(_ours, parameters),
            }
            other = "shifted products" if shape[-1] > 1 else _columns(name)
            contenders[other] = functools.partial(rewrite_convolution, form=other, **parameters)
            runs = {key: functools.partial(_call, looped(f, arrays), arrays) for key, f in contenders.items()}
            yield {"layer": shape, "convolution": name, "contenders": race(runs)}


def race_pooling() -> Iterator[dict[str, Any]]:
    """Race the forms of the gradient of max pooling."""
    for shape in POOLS:
        parameters, arrays = pooling(shape)
        contenders = {"XLA": lax.select_and_scatter_add_p.bind, "ours": pool_gradient}
        forms = {name: functools.partial(form, **parameters) for name, form in contenders.items()}
        runs = {name: functools.partial(_call, looped(form, arrays), arrays) for name, form in forms.items()}
        yield {"pooling": shape, "contenders": race(runs)}


def pooling(shape: tuple) -> tuple[dict[str, Any], list[Any]]:
    """Return the parameters and operands of the gradient of a max pooling."""
    batch, side, features, window, strides, padding = shape

    def pool(x: Any) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, window, window, 1), (1, strides, strides, 1), padding)

    image = jnp.asarray(np.random.default_rng(0).normal(size=(batch, side, side, features)), "float32")
    gradient = pool(image)
    equations = jax.make_jaxpr(lambda x: jax.vjp(pool, x)[1](gradient))(image).eqns
    (parameters,) = [e.params for e in equations if e.primitive is lax.select_and_scatter_add_p]
    return parameters, [gradient, image]


def _columns(name: str) -> Any:
    return "im2col by position" if name == "kernel gradient" else "im2col"


def _ours(parameters: dict[str, Any], image: Any, kernel: Any) -> Any:
    if needs_rewriting(image, kernel, parameters):
        return rewrite_convolution(image, kernel, **parameters)
    return lax.conv_general_dilated_p.bind(image, kernel, **parameters)


def _call(compiled: Any, arrays: list[Any], n: int) -> Any:
    return compiled(n, *arrays)


def digits() -> tuple[keras.Model, Any, Any]:
    """Return the small network of the demo, batch 64."""
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )
    return model, np.ones((64, 8, 8, 1), "float32"), np.zeros(64, "int32")


def wide() -> tuple[keras.Model, Any, Any]:
    """Return two convolutions of 256 filters on 28 x 28 images, batch 20."""
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((28, 28, 1)),
            layers.Conv2D(256, 3, activation="relu"),
            layers.Conv2D(256, 3, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10),
        ]
    )
    return model, np.random.default_rng(0).normal(size=(20, 28, 28, 1)).astype("float32"), np.zeros(20, "int32")


def text() -> tuple[keras.Model, Any, Any]:
    """Return the LSTM over 250 words, batch 64."""
    layers = keras.layers
    model = keras.Sequential([layers.Embedding(15000, 32), layers.LSTM(100), layers.Dense(2)])
    model.build((None, 250))
    return model, np.random.default_rng(0).integers(0, 15000, (64, 250)).astype("int32"), np.zeros(64, "int32")


def race_models() -> Iterator[dict[str, Any]]:
    """Race training steps of whole models: as they are, with our kernels, and as they are outside a loop."""
    for make in (text, digits, wide):
        model, x, y = make()
        weights = [v.value for v in model.trainable_variables]
        runs = {"plain": _training(model, weights, x, y)}
        with fast_kernels():
            runs["ours"] = _training(model, weights, x, y)
        runs["plain, no loop"] = _training(model, weights, x, y, loop=False)
        with fast_kernels():
            runs["ours, no loop"] = _training(model, weights, x, y, loop=False)
        if make is wide:
            del runs["plain"]  # half a minute a step
        yield {"model": make.__name__, "contenders": race(runs)}


def _training(model: keras.Model, weights: list[Any], x: Any, y: Any, loop: bool = True) -> Callable[[int], Any]:
    others = [v.value for v in model.non_trainable_variables]

    def loss(weights: list[Any], x: Any, y: Any) -> Any:
        logits, _ = model.stateless_call(weights, others, x, training=True)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], -1).mean()

    def step(weights: list[Any], x: Any, y: Any) -> list[Any]:
        return jax.tree.map(lambda w, g: w - 0.01 * g, weights, jax.grad(loss)(weights, x, y))

    if not loop:
        one = jax.jit(lambda *args: step(*args)).lower(weights, x, y).compile()

        def several(n: int) -> Any:
            now = weights
            for _ in range(n):
                now = one(now, x, y)
            return now

        return several
    many = jax.jit(lambda n, w, x, y: lax.fori_loop(0, n, lambda _, w: step(w, x, y), w))
    compiled = many.lower(1, weights, x, y).compile()
    return lambda n: compiled(n, weights, x, y)


def machine() -> dict[str, Any]:
    """Say where this ran."""
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "keras": keras.__version__,
        "note": "a virtual machine whose two cores others use as well",
    }


def main() -> None:
    wanted = sys.argv[1:] or ["convolutions", "pooling", "models"]
    print(json.dumps({"machine": machine()}), flush=True)
    races_of = {"convolutions": race_convolutions, "pooling": race_pooling, "models": race_models}
    for name, races in races_of.items():
        if name in wanted:
            for result in races():
                print(json.dumps({**result, "load": round(os.getloadavg()[0], 1)}), flush=True)


if __name__ == "__main__":
    main()
