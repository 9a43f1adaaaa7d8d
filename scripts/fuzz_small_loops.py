"""Compile random loops marked as small calls, and compare their results with unmarked ones.

    python scripts/fuzz_small_loops.py [--cases=-2:3000] [--every] [--show 17]

XLA may end the process on a loop that it cannot compile as one kernel. So batches of cases run in child processes. If
one ends, its case is recorded and the next process continues after it. A case is a seed: it always draws the same loop.
`--every` marks every loop, even against the rule of `engine/small_loops.py`, and so shows the failures that the rule
avoids. Recorded: benchmarks/results/small_loops.txt.
"""

from __future__ import annotations

import argparse
import collections
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from anytpu.engine import small_loops, trial
from anytpu.engine.kernels import fast_kernels

BATCH = 250
TURNS = 3
FLOATS = ["float32"] * 12 + ["bfloat16", "float16"]
DTYPES = [*FLOATS, "int32", "int32", "uint8", "bool", "complex64"]
SIZES = [0, 1, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 33, 64, 100, 256, 512, 2048]
MOST_ELEMENTS = 4096

Draw = np.random.Generator
Op = Callable[[Draw, list[Any]], Any]


def shape_of(draw: Draw, ranks: list[int]) -> tuple[int, ...]:
    """Draw a shape that is not large; an axis of no size is rare."""
    shape: tuple[int, ...] = ()
    for _ in range(draw.choice(ranks)):
        size = SIZES[draw.integers(0 if draw.random() < 0.05 else 1, len(SIZES))]
        shape += (int(size if np.prod(shape) * size <= MOST_ELEMENTS else draw.integers(1, 3)),)
    return shape


def one_of(draw: Draw, values: list[Any]) -> Any:
    return values[draw.integers(len(values))]


def real(value: Any) -> Any:
    """Return a value as floating-point numbers."""
    return value if jnp.issubdtype(value.dtype, jnp.inexact) else value.astype("float32")


def ordered(value: Any) -> Any:
    """Return a value in numbers that have an order and a sign."""
    value = value.real if jnp.issubdtype(value.dtype, jnp.complexfloating) else value
    return value.astype("int32") if value.dtype in (jnp.bool_, jnp.uint8) else value


def axis_of(draw: Draw, value: Any) -> Any:
    """Draw an axis that has elements; None where there is none."""
    axes = [axis for axis, size in enumerate(value.shape) if size]
    return int(draw.choice(axes)) if axes else None


def unary(draw: Draw, values: list[Any]) -> Any:
    value = one_of(draw, values)
    on_real = [jnp.tanh, jax.nn.sigmoid, jnp.exp, jnp.sin, jnp.expm1, lax.rsqrt, jnp.sqrt, jnp.log1p, jax.nn.softplus]
    on_ordered = [jnp.abs, jnp.negative, jnp.sign, jnp.square, jax.nn.relu, jnp.floor, lambda x: lax.integer_pow(x, 3)]
    if draw.random() < 0.5:
        return on_real[draw.integers(len(on_real))](real(value))
    return on_ordered[draw.integers(len(on_ordered))](ordered(value))


def binary(draw: Draw, values: list[Any]) -> Any:
    left = one_of(draw, values)
    alike = [value for value in values if value.shape in (left.shape, ())]
    right = one_of(draw, alike).astype(left.dtype)
    functions = [jnp.add, jnp.multiply, jnp.subtract, jnp.minimum, jnp.maximum, jnp.divide, jnp.greater, jnp.equal]
    function = functions[draw.integers(len(functions))]
    return function(left, right) if left.dtype != jnp.bool_ else function(left.astype("int32"), right.astype("int32"))


def select(draw: Draw, values: list[Any]) -> Any:
    left = one_of(draw, values)
    right = one_of(draw, [value for value in values if value.shape in (left.shape, ())])
    return jnp.where(ordered(left) > 0, left, right.astype(left.dtype))


def reduction(draw: Draw, values: list[Any]) -> Any:
    value = ordered(one_of(draw, values))
    axes = tuple(axis for axis in range(value.ndim) if value.shape[axis] and draw.random() < 0.6)
    function = [jnp.sum, jnp.sum, jnp.mean, jnp.max, jnp.min, jnp.any, jnp.all][draw.integers(7)]
    return function(value, axis=axes) if axes else value


def position(draw: Draw, values: list[Any]) -> Any:
    value = ordered(one_of(draw, values))
    axis = axis_of(draw, value)
    return value if axis is None else (jnp.argmax if draw.random() < 0.5 else jnp.cumsum)(value, axis=axis)


def product(draw: Draw, values: list[Any]) -> Any:
    """Multiply two values over axes of the same length, or over none."""
    left, right = (real(one_of(draw, values)) for _ in range(2))
    right = right.astype(left.dtype)
    pairs = [(i, j) for i, m in enumerate(left.shape) for j, n in enumerate(right.shape) if m == n]
    contracted = [pairs[draw.integers(len(pairs))]] if pairs and draw.random() < 0.8 else []
    axes = tuple(pair[0] for pair in contracted), tuple(pair[1] for pair in contracted)
    size = left.size * right.size
    return left if size > 2**22 or left.ndim + right.ndim > 4 else lax.dot_general(left, right, (axes, ((), ()))) * 0.1


def row(draw: Draw, values: list[Any]) -> Any:
    """Take or put a row at a number that only the loop knows."""
    value, number = one_of(draw, values), values[0]
    axis = axis_of(draw, value)
    if axis is None:
        return value
    taken = lax.dynamic_index_in_dim(value, number, axis, keepdims=draw.random() < 0.3)
    if draw.random() < 0.7:
        return taken
    return lax.dynamic_update_index_in_dim(value, (taken * 2).astype(value.dtype), number + 1, axis)


def gather(draw: Draw, values: list[Any]) -> Any:
    value = one_of(draw, values)
    if not value.ndim or not value.shape[0]:
        return value
    number = jnp.asarray(draw.integers(0, value.shape[0], shape_of(draw, [1])[:1]), "int32") + values[0]
    return value.at[number].get(mode="promise_in_bounds" if draw.random() < 0.2 else "fill") * 0.5


def moved(draw: Draw, values: list[Any]) -> Any:
    """Change the order or the form of the elements."""
    value = one_of(draw, values)
    kinds = [jnp.transpose, jnp.ravel, lambda x: x[..., None], lambda x: x[None], lambda x: x[::2] if x.ndim else x]
    kinds += [lambda x: jnp.broadcast_to(x, (2, *x.shape)), lambda x: jnp.pad(x, 1)]
    kinds += [lambda x: jnp.concatenate([x, x[:1], x]) if x.ndim else x, lambda x: x[::-1] if x.ndim else x]
    return kinds[draw.integers(len(kinds))](value)


def nested(draw: Draw, values: list[Any]) -> Any:
    value = real(one_of(draw, values))
    return lax.fori_loop(0, 2 if draw.random() < 0.5 else values[0] + 1, lambda i, x: jnp.tanh(x + i), value)


def gradient(draw: Draw, values: list[Any]) -> Any:
    """Differentiate the loss of a layer, or a sum."""
    value = real(ordered(one_of(draw, values)))
    others = [
        real(ordered(other))
        for other in values
        if other.ndim == 1 and value.ndim == 2 and other.shape == value.shape[:1]
    ]
    if others:
        return jax.grad(lambda w: jax.nn.log_softmax(jax.nn.sigmoid(others[0].astype(w.dtype) @ w)).sum())(value)
    return jax.grad(lambda x: (jnp.tanh(x) * x).sum())(value)


CALM: list[Op] = [unary, unary, unary, binary, binary, select, reduction, product, product, row, gradient, moved]
WILD: list[Op] = [*CALM, position, gather, gather, nested, moved, reduction]


def like(value: Any, spec: Any) -> Any:
    """Return a value in the shape and type that a loop carries, kept small."""
    value = value if value.shape == spec.shape else spec * 0.5 + real(value).mean() if value.size else spec
    if jnp.issubdtype(spec.dtype, jnp.inexact):
        real_type = "complex64" if jnp.issubdtype(value.dtype, jnp.complexfloating) else "float32"
        value = value.astype(real_type)
        value = jnp.where(jnp.isfinite(value), value, 0.25)
        value = value / (1 + jnp.abs(value))
        value = value if jnp.issubdtype(spec.dtype, jnp.complexfloating) else value.real
    return value.astype(spec.dtype)


def unneeded(x: Any, y: Any) -> Any:
    """Loop over a value that XLA finds out not to need."""
    return lax.fori_loop(0, TURNS, lambda _, x: lax.select(jnp.zeros(x.shape, bool), y, x * 2), x)


def constant(x: Any, y: Any) -> Any:
    """Start a loop, inside of one that is not small, from numbers that XLA knows."""

    def turn(i: Any, x: Any) -> Any:
        inner = lax.fori_loop(0, 2, lambda j, pair: (pair[0] + j, pair[1] + j), (y, 0))
        return jnp.sort(x) + inner[0].sum() + inner[1] + i

    return lax.fori_loop(0, TURNS, turn, x)


EIGHTHS = np.arange(40, dtype="float32").reshape(8, 5) / 8
ABORTED = [(constant, [EIGHTHS[0], EIGHTHS]), (unneeded, [EIGHTHS, EIGHTHS[::-1]])]


def case(number: int) -> tuple[Callable[..., Any], list[np.ndarray]]:
    """Return the loop of a number, and what it starts from. Those below 0 once made XLA abort."""
    if number < 0:
        return ABORTED[number]
    draw = np.random.default_rng(number)
    is_calm = number % 2 == 0
    ranks = [0, 1, 1, 2, 2, 2] if is_calm else [0, 1, 2, 3, 3, 4]
    kinds = FLOATS if is_calm and draw.random() < 0.8 else DTYPES
    many, carries = int(draw.integers(2, 5)), int(draw.integers(1, 4))
    shapes = [shape_of(draw, ranks) for _ in range(many)]
    starts = [np.asarray(draw.integers(-8, 9, shape) / 8) for shape in shapes]
    starts = [np.asarray(jnp.asarray(start).astype(str(draw.choice(kinds)))) for start in starts]
    seed, count, names = int(draw.integers(2**31)), int(draw.integers(1, 12)), CALM if is_calm else WILD

    def loop(*starts: Any) -> Any:
        def turn(i: Any, carry: Any) -> Any:
            draw = np.random.default_rng(seed)  # JAX may trace a turn twice: it must be the same.
            values = [i, *carry, *starts[carries:]]
            for _ in range(count):
                values.append(names[draw.integers(len(names))](draw, values))
            made = values[::-1]
            return [like(value, spec) for value, spec in zip(made, carry, strict=False)] + list(carry[len(made) :])

        return lax.fori_loop(0, TURNS, turn, list(starts[:carries]))

    return loop, starts


def outcome(number: int) -> str:
    """Compile and run a case with and without the mark, and say how it went in a word."""
    loop, starts = case(number)
    with fast_kernels(layers=False), trial.skip_trial():
        lowered = jax.jit(lambda *starts: loop(*starts)).lower(*starts)
    if small_loops.MARK not in lowered.as_text():
        return "unmarked"
    fast = lowered.compile()
    plain = jax.jit(lambda *starts: loop(*starts))(*starts)
    return "same" if all(map(is_near, *map(jax.tree.leaves, (fast(*starts), plain)))) else "different"


def is_near(one: Any, other: Any) -> bool:
    one, other = (np.asarray(x) for x in (one, other))
    tolerance = {"bfloat16": 0.05, "float16": 5e-3}.get(str(one.dtype), 2e-4)
    one, other = (x.astype("complex64") for x in (one, other))
    return np.allclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)


def run_cases(first: int, last: int) -> None:
    """Run cases in this process, and print each before and after it runs."""
    for number in range(first, last):
        print(number, end=" ", flush=True)
        try:
            print(outcome(number), flush=True)
        except jax.errors.JaxRuntimeError as error:
            print("refused", str(error).strip().splitlines()[0][:160], flush=True)


def run_batch(first: int, last: int, options: list[str]) -> tuple[list[str], int]:
    """Run cases in a process of their own. Return its lines, and the case to go on with."""
    command = [sys.executable, __file__, "--here", f"--cases={first}:{last}", *options]
    with tempfile.TemporaryFile("w+") as errors:
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, text=True, check=False)
        errors.seek(0)
        said = errors.read()
    lines = result.stdout.splitlines()
    if result.returncode == 0:
        return lines, last
    if not lines or len(lines[-1].split()) > 1:
        raise SystemExit(f"no case ran: {said[-2000:]}")
    reason = next((line for line in said.splitlines() if line.startswith("F")), said.strip()[-300:].replace("\n", " "))
    return [*lines[:-1], f"{lines[-1].strip()} died ({result.returncode}) {reason[:300]}"], int(lines[-1]) + 1


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--cases", default="-2:3000", help="from:to")
    parser.add_argument("--every", action="store_true", help="mark every loop, whatever the rule says")
    parser.add_argument("--show", type=int, help="print the loop of a case")
    parser.add_argument("--here", action="store_true", help="run the cases in this process")
    given = parser.parse_args()
    first, last = map(int, given.cases.split(":"))
    if given.every:
        small_loops.is_small_loop = lambda parameters: True
    if given.show is not None:
        loop, starts = case(given.show)
        print(jax.make_jaxpr(loop)(*starts))
        return 0
    if given.here:
        run_cases(first, last)
        return 0
    return report(first, last, ["--every"] if given.every else [])


def report(first: int, last: int, options: list[str]) -> int:
    """Run all cases, print how often each outcome was, and each case that did not go well. Return the exit code."""
    begun = time.monotonic()
    counts: collections.Counter[str] = collections.Counter()
    while first < last:
        lines, first = run_batch(first, min(first + BATCH, last), options)
        counts.update(line.split()[1] for line in lines)
        print(
            *[f"{line}\n" for line in lines if line.split()[1] not in ("same", "unmarked")], sep="", end="", flush=True
        )
    print(f"jax {jax.__version__}, {os.cpu_count()} processors, {time.monotonic() - begun:.0f} s, options {options}:")
    print(", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    return 0 if set(counts) <= {"same", "unmarked"} else 1


if __name__ == "__main__":
    sys.exit(main())
