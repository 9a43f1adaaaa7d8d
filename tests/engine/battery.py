"""What every backend must do: one function a case, each given a backend. Run by `test_backends.py`, here and elsewhere.

As a program it runs all cases on the local backend and prints what became of each: `battery.py 8 1` on 8 devices, then
on 1.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anytpu.engine import Backend, Executable, Loop, StepResults, backend_of
from anytpu.engine.shards import feed_layouts
from anytpu.errors import BackendError, ProgramError, ReplicaError
from anytpu.program import REPLICATED, ROWS, Layout, Placement, Program, spec_of
from anytpu.program.lowering import one_device_step
from anytpu.program.program import array_layouts
from anytpu.system.cores import Address
from anytpu.system.lifecycle import running_system
from engine import samples
from program_samples import Sample, assert_same_bits

Case = Callable[[Backend], None]
CASES: dict[str, Case] = {}
UNEVEN = (1, 7, 9, 20)
"""Row counts that 8 cores do not divide."""

DTYPES = (
    *("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32"),
    *("float8_e4m3fn", "bfloat16", "float16", "float32", "complex64"),
)

_COMPILED: list[str] = []


def _note_compilation(event: str, duration_s: float, **_: Any) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        _COMPILED.append(event)


jax.monitoring.register_event_duration_secs_listener(_note_compilation)


def _rounding(backend: Backend) -> Backend:
    make: Any = type(backend)
    return make(backend.cores, numerics="tpu")


ROUNDING: list[Callable[[Backend], Backend]] = [_rounding]
"""Opens the same cores with products rounded as on a TPU."""


def case(function: Case) -> Case:
    """Add a case to the battery."""
    CASES[function.__name__] = function
    return function


def fetched(backend: Backend, tree: Any) -> Any:
    """Open handles, and copy, so that a later call may consume them."""
    return jax.tree.map(np.array, backend.get(tree))


def put_batch(backend: Backend, program: Program, batch: Any, stacked: bool = False) -> Any:
    """Put a batch, or a stack of batches, by the layout of its program."""
    layouts = array_layouts(program)[1]
    if stacked:
        layouts = jax.tree.map(Layout.stacked, layouts)
    return jax.tree.map(backend.put, batch, layouts)


def put_state(backend: Backend, sample: Sample) -> Any:
    """Put the state of a sample by the layout of its program."""
    return jax.tree.map(backend.put, sample.state, array_layouts(sample.program)[0])


def one_step(backend: Backend, sample: Sample) -> Any:
    """Compile and run one step; return (state, outputs) as NumPy arrays."""
    executable = backend.compile(sample.program)
    state = put_state(backend, sample)
    return fetched(backend, executable.step(state, put_batch(backend, sample.program, sample.batch)))


def on_one_device(sample: Sample) -> Any:
    """Return what a plain JAX function of one device makes of a sample."""
    return jax.jit(one_device_step(sample.program))(sample.state, sample.batch)


def assert_close(got: Any, expected: Any, steps: int = 1) -> None:
    """Assert the same structure, shapes and dtypes, and values but for the order of a sum in each of some steps."""
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        off = 16 * steps * float(jnp.finfo(one.dtype).eps) if jnp.issubdtype(one.dtype, jnp.floating) else 0
        np.testing.assert_allclose(np.asarray(one, "float64"), np.asarray(other, "float64"), rtol=off, atol=off)


def stacked_batches(sample: Sample, capacity: int) -> Any:
    """Return `capacity` batches, each a little larger than the one before, stacked."""

    def stack(leaf: np.ndarray) -> np.ndarray:
        steps = [leaf * (1 + 0.01 * step) if leaf.dtype == np.float32 else leaf for step in range(capacity)]
        return np.stack(steps).astype(leaf.dtype)

    return jax.tree.map(stack, sample.batch)


def plain_loop(sample: Sample, batches: Any, steps: range) -> tuple[Any, list[Any]]:
    """Return the state after some steps in a Python loop on one device, and the outputs of each."""
    step, state, every = jax.jit(one_device_step(sample.program)), sample.state, []
    for number in steps:
        state, outputs = step(state, jax.tree.map(lambda leaf, number=number: leaf[number], batches))
        every.append(outputs)
    return state, every


def loop_of(backend: Backend, sample: Sample, capacity: int, **guarded: Any) -> Executable:
    """Compile a loop over stacked batches."""
    return backend.compile(sample.program, Loop(capacity, "batches", **guarded))


def run_loop(backend: Backend, sample: Sample, batches: Any, calls: list[tuple[int, int]]) -> StepResults:
    """Run calls of (start, count) one after the other; return what the last one returned."""
    executable = loop_of(backend, sample, len(jax.tree.leaves(batches)[0]))
    feed = put_batch(backend, sample.program, batches, stacked=True)
    state, done = put_state(backend, sample), None
    for start, count in calls:
        done = executable.steps(state, feed, start, count)
        state = done.state
    assert done is not None
    return done


def error_of(kind: type[Exception], function: Callable, *args: Any) -> str:
    """Return the text of the error that a call raises."""
    try:
        function(*args)
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__} was raised")


# Arrays there and back.


@case
def put_and_get_every_dtype(backend: Backend) -> None:
    for name in DTYPES:
        array = np.asarray(jnp.arange(6).reshape(2, 3).astype(name))
        assert_same_bits(backend.get(backend.put(array, REPLICATED)), array)
        split = np.asarray(jnp.arange(2 * len(backend.cores)).astype(name))
        assert_same_bits(backend.get(backend.put(split, ROWS)), split)


@case
def put_computes_with_what_jax_computes(backend: Backend) -> None:
    wide = {"whole": np.arange(3), "real": np.linspace(0, 1, 3), "scalar": 2.5, "truth": True}
    assert_same_bits(backend.get(backend.put(wide, REPLICATED)), jax.tree.map(jnp.asarray, wide))


@case
def put_takes_arrays_of_jax(backend: Backend) -> None:
    for size in (*UNEVEN, 8):
        array = jnp.arange(size)
        got = np.asarray(backend.get(backend.put(array, ROWS)))
        assert got[:size].tolist() == list(range(size))
        assert set(got[size:].tolist()) <= {size - 1}


@case
def put_random_keys(backend: Backend) -> None:
    keys = jax.random.split(jax.random.key(3), 3)
    got = backend.get(backend.put(keys, REPLICATED))
    assert_same_bits(got, keys)
    assert np.array_equal(jax.random.key_data(backend.get(backend.put(keys, ROWS)))[:3], jax.random.key_data(keys))


@case
def put_an_uneven_axis(backend: Backend) -> None:
    for size in UNEVEN:
        rows, columns = samples.rows_of(size, 2), samples.rows_of(2, size)
        assert np.array_equal(np.asarray(backend.get(backend.put(rows, ROWS)))[:size], rows)
        assert np.array_equal(np.asarray(backend.get(backend.put(columns, Layout(1))))[:, :size], columns)


@case
def put_passes_handles_through(backend: Backend) -> None:
    for layout, value in ((REPLICATED, np.arange(3)), (ROWS, np.arange(2 * len(backend.cores)))):
        handle = backend.put(value, layout)
        tree = backend.put({"old": handle, "new": [value, None]}, layout)
        got = backend.get(tree)
        assert np.array_equal(got["old"], value)
        assert np.array_equal(got["new"][0], value)
        assert got["new"][1] is None


@case
def put_again_under_another_layout(backend: Backend) -> None:
    sample = samples.counting(7)
    _, outputs = backend.compile(sample.program).step(
        put_state(backend, sample), put_batch(backend, sample.program, sample.batch)
    )
    batch = {"x": backend.put(outputs["twice"], ROWS), "y": backend.put(sample.batch["y"], ROWS)}
    _, outputs = backend.compile(sample.program).step(put_state(backend, sample), batch)
    assert_same_bits(backend.get(outputs["twice"]), 4 * sample.batch["x"])


@case
def arrays_of_the_user_are_left_alone(backend: Backend) -> None:
    state = np.zeros(4096, "float32")
    program = Program("add/train", lambda s, x: (s + jnp.sum(x), {}), spec_of(state), spec_of(np.ones(8, "f4")), ROWS)
    executable, handle = backend.compile(program), backend.put(state, REPLICATED)
    for _ in range(3):
        handle, _ = executable.step(handle, backend.put(np.ones(8, "float32"), ROWS))
    assert not state.any()
    assert np.all(np.asarray(backend.get(handle)) == 24)


# One step.


@case
def whole_batch_steps(backend: Backend) -> None:
    for make in samples.WHOLE_BATCH.values():
        assert_close(one_step(backend, make()), on_one_device(make()))


@case
def per_replica_steps(backend: Backend) -> None:
    sample = samples.together(len(backend.cores))
    state, outputs = one_step(backend, sample)
    mine = sample.batch[0].sum(axis=(1, 2)) * 0.5
    assert state["sum"].shape == state["most"].shape == ()
    np.testing.assert_allclose(state["sum"], 1 + mine.sum(), rtol=1e-6)
    np.testing.assert_allclose(state["most"], mine.max(), rtol=1e-6)
    np.testing.assert_allclose(outputs["mine"], mine, rtol=1e-6)
    assert outputs["index"].tolist() == list(range(len(backend.cores)))
    assert_same_bits(outputs["all"], np.tile(outputs["mine"], (len(backend.cores), 1)))
    assert outputs["fixed"].tolist() == [1.0] * len(backend.cores)


@case
def the_sum_of_gradients_is_the_gradient_of_the_sum(backend: Backend) -> None:
    """With shard_map's check_vma it would be as many times too large as there are cores."""
    sample = samples.gradients(len(backend.cores))
    state, outputs = one_step(backend, sample)
    assert_close((state, outputs), on_one_device(sample))
    x, w = sample.batch.reshape(-1, 3), sample.state
    np.testing.assert_allclose(state, w - 0.01 * (2 * x.T @ (x @ w)), rtol=1e-5)
    np.testing.assert_allclose(outputs["own"].sum(0), 2 * x.T @ (x @ w), rtol=1e-5)


@case
def products_are_rounded_as_on_a_tpu(backend: Backend) -> None:
    """On request, forward and backward, of whole-batch and of per-replica code, in one step and in the loop."""
    rounding_one = ROUNDING[0](backend)

    def product(left: Any, right: Any) -> Any:
        return jnp.dot(left.astype("bfloat16"), right.astype("bfloat16"), preferred_element_type="float32")

    sample = samples.gradients(len(backend.cores))
    x, w = jnp.concatenate(sample.batch), jnp.asarray(sample.state)
    slope = product(x.T, 2 * product(x, w))
    state, outputs = one_step(rounding_one, sample)
    np.testing.assert_allclose(state, w - 0.01 * slope, rtol=1e-5)
    np.testing.assert_allclose(outputs["own"].sum(0), slope, rtol=1e-5)
    exact, _ = one_step(backend, sample)
    assert np.max(np.abs(state - exact)) > 1e-4

    whole = samples.descent(7)
    x, y, w = jnp.asarray(whole.batch["x"]), whole.batch["y"], whole.state["w"]
    off = product(jnp.tanh(product(x, w["in"])), w["out"]) - y
    slope = product(off * 2 / 7, jnp.tanh(product(x, w["in"])))
    batches = stacked_batches(whole, 2)
    for found in (
        one_step(rounding_one, whole)[0],
        fetched(rounding_one, run_loop(rounding_one, whole, batches, [(0, 1)]).state),
    ):
        np.testing.assert_allclose(found["w"]["out"], w["out"] - 0.1 * slope, rtol=1e-5)


@case
def uneven_rows_reach_a_step_as_they_are(backend: Backend) -> None:
    for rows in UNEVEN:
        sample = samples.counting(rows)
        state, outputs = one_step(backend, sample)
        assert_close((state, outputs), on_one_device(sample))
        assert int(state["rows"]) == int(outputs["rows"]) == rows
        assert_same_bits(outputs["twice"], 2 * sample.batch["x"])


@case
def uneven_columns_reach_a_step_as_they_are(backend: Backend) -> None:
    for size in UNEVEN:
        sample = samples.columns(size)
        state, outputs = one_step(backend, sample)
        assert_close((state, outputs), on_one_device(sample))
        assert int(outputs["columns"]) == size


@case
def pad_rows_never_reach_a_program(backend: Backend) -> None:
    """Where rows travel padded, NaN in the padding changes nothing."""
    for rows in UNEVEN:
        sample = samples.watched(rows)
        travelling = np.asarray(backend.get(backend.put(sample.batch, ROWS))).copy()
        travelling[rows:] = np.nan
        state = put_state(backend, sample)
        result = backend.compile(sample.program).step(state, backend.put(travelling, ROWS))
        assert_close(fetched(backend, result), on_one_device(sample))
        feed = backend.put(np.stack([travelling, travelling]), Layout(1))
        done = loop_of(backend, sample, 2).steps(put_state(backend, sample), feed, 0, 2)
        np.testing.assert_allclose(fetched(backend, done.state)["sum"], 2 * sample.batch.sum(), rtol=1e-6)


@case
def a_state_is_consumed(backend: Backend) -> None:
    sample = samples.counting()
    old, batch = put_state(backend, sample), put_batch(backend, sample.program, sample.batch)
    new, _ = backend.compile(sample.program).step(old, batch)
    for handle in jax.tree.leaves(old):
        error_of(RuntimeError, lambda handle=handle: np.asarray(backend.get(handle)))
    loop = loop_of(backend, sample, 2)
    done = loop.steps(new, put_batch(backend, sample.program, stacked_batches(sample, 2), stacked=True), 0, 2)
    for handle in jax.tree.leaves(new):
        error_of(RuntimeError, lambda handle=handle: np.asarray(backend.get(handle)))
    assert int(backend.get(done.state)["rows"]) == 24
    assert np.array_equal(np.asarray(backend.get(batch)["x"]), sample.batch["x"])


@case
def carried_values_keep_their_types(backend: Backend) -> None:
    sample = samples.promoting()
    expected = {"half": np.asarray(jnp.bfloat16(3)), "weak": np.float32(1.5), "number": np.int32(7)}
    executable, state = backend.compile(sample.program), put_state(backend, sample)
    for _ in range(2):
        state, outputs = executable.step(state, backend.put(sample.batch, ROWS))
    assert_same_bits(backend.get(state), expected)
    assert float(backend.get(outputs)["weak"]) == 3
    done = run_loop(backend, sample, stacked_batches(sample, 4), [(0, 1), (1, 1)])
    assert_same_bits(backend.get(done.state), expected)
    assert np.asarray(backend.get(done.every)["weak"])[:1].tolist() == [3]


@case
def specs_of_the_outputs(backend: Backend) -> None:
    cores = len(backend.cores)
    whole, replica = samples.counting(7).program, samples.together(cores).program
    spec = jax.ShapeDtypeStruct
    expected = {"loss": spec((), "float32"), "most": spec((), "uint8"), "rows": spec((), "int32")}
    expected["twice"] = spec((7, 3), "float32")
    assert backend.compile(whole).outputs == expected
    assert backend.compile(whole, Loop(5, "batches")).outputs == expected
    outputs = backend.compile(replica).outputs
    assert outputs["all"] == spec((cores, cores), "float32")
    assert outputs["index"] == spec((cores,), "int32")
    assert backend.compile(samples.silent().program).outputs == {}


# Waiting.


@case
def a_call_is_awaited_without_its_values(backend: Backend) -> None:
    program = samples.counting(8).program
    state = backend.put({"w": np.eye(400, dtype="float32"), "rows": np.int32(0)}, REPLICATED)
    step = lambda s, x: ({"w": jax.lax.fori_loop(0, 50, lambda _, y: s["w"] @ y, s["w"]), "rows": s["rows"] + 1}, {})  # noqa: E731
    specs = {"w": jax.ShapeDtypeStruct((400, 400), "float32"), "rows": jax.ShapeDtypeStruct((), "int32")}
    slow = Program("slow/train", step, specs, program.batch, program.layout)
    state, outputs = backend.compile(slow).step(state, put_batch(backend, slow, samples.counting(8).batch))
    assert outputs == {}
    backend.wait(state)
    assert backend.is_ready(state)
    assert fetched(backend, state["rows"]) == 1


@case
def nothing_is_ready(backend: Backend) -> None:
    backend.wait({})
    assert backend.is_ready({})


@case
def it_knows_its_memory(backend: Backend) -> None:
    sizes = [core.memory_bytes for core in backend.cores if core.memory_bytes and not core.virtual]
    assert 0 < backend.memory_bytes <= min(sizes, default=2**60)


# What a step may not do.


@case
def a_state_that_differs_between_replicas_is_named(backend: Backend) -> None:
    cores = len(backend.cores)
    program = samples.differing(cores).program
    for loop in (None, Loop(3, "batches")):
        assert error_of(ReplicaError, backend.compile, program, loop) == (
            f"The step of 'differing/train' returns a state that differs between its {cores} replicas: 'layer/bias'. "
            "State is the same on every core: sum it with jax.lax.psum or average it with jax.lax.pmean, over the axis "
            "'replica', or return it with the outputs, of which each replica has its own. Gradients of one replica "
            'alone are reduced before they are used: tpu.get_replica_context().all_reduce("MEAN", gradients).'
        )


@case
def a_state_of_another_shape_is_named(backend: Backend) -> None:
    state, batch = {"w": np.float32(0)}, np.ones(8, "float32")
    program = Program("grow/train", lambda s, x: ({"w": s["w"] + x}, {}), spec_of(state), spec_of(batch), ROWS)
    for loop in (None, Loop(3, "batches")):
        assert error_of(ProgramError, backend.compile, program, loop) == (
            "The step of 'grow/train' must return each state as it was given: 'w' was given as float32[] and returned "
            "as float32[8]. Cast it back with .astype, or start with a state of the type that comes back."
        )


@case
def a_step_that_returns_no_pair(backend: Backend) -> None:
    for replicas in (None, len(backend.cores)):
        shape = (len(backend.cores), 2)
        program = Program("bare", lambda s, x: s, spec_of(np.float32(0)), spec_of(np.ones(shape)), ROWS, replicas)
        assert error_of(ProgramError, backend.compile, program, None) == (
            "The step of 'bare' must return a pair (state, outputs), not an array. Where there is nothing to report, "
            "return (state, {})."
        )


# The loop.


@case
def loops_over_batches(backend: Backend) -> None:
    for make in samples.WHOLE_BATCH.values():
        sample = make()
        batches = stacked_batches(sample, 4)
        done = run_loop(backend, sample, batches, [(0, 4)])
        state, every = plain_loop(sample, batches, range(4))
        assert done.count == 4
        assert done.bad_steps is None
        assert_close(fetched(backend, (done.state, done.last)), (state, every[-1]))


@case
def loops_of_per_replica_code(backend: Backend) -> None:
    for make in samples.PER_REPLICA.values():
        sample = make(len(backend.cores))
        batches = stacked_batches(sample, 4)
        done = run_loop(backend, sample, batches, [(1, 3)])
        state, every = plain_loop(sample, batches, range(1, 4))
        assert_close(fetched(backend, (done.state, done.last)), (state, every[-1]))


@case
def loops_over_rows(backend: Backend) -> None:
    for rows in (*UNEVEN, 8):
        sample = samples.counting(rows)
        resident = {"x": samples.rows_of(23, 3, seed=5), "y": np.arange(23, dtype="uint8")}
        numbers = np.random.default_rng(1).permutation(23 * 3)[: 3 * rows].reshape(3, rows).astype("int32") % 23
        executable = backend.compile(sample.program, Loop(3, "rows", examples=23))
        feed = (backend.put(resident, REPLICATED), backend.put(numbers, Layout(1)))
        done = executable.steps(put_state(backend, sample), feed, 0, 3)
        state, every = plain_loop(sample, jax.tree.map(lambda leaf, n=numbers: leaf[n], resident), range(3))
        assert_close(fetched(backend, (done.state, done.last)), (state, every[-1]))
        assert int(backend.get(done.state)["rows"]) == 3 * rows


@case
def remainders_are_bitwise(backend: Backend) -> None:
    for rows in (8, 7):
        sample = samples.descent(rows)
        batches = stacked_batches(sample, 50)
        once = run_loop(backend, sample, batches, [(0, 50)])
        parts = run_loop(backend, sample, batches, [(0, 13), (13, 24), (37, 13)])
        assert int(backend.get(once.state)["step"]) == 50
        assert_same_bits(backend.get((parts.state, parts.last)), backend.get((once.state, once.last)))


@case
def remainders_over_rows_are_bitwise(backend: Backend) -> None:
    sample = samples.descent(7)
    resident = {"x": samples.rows_of(30, 3, seed=5), "y": samples.rows_of(30, seed=6)}
    numbers = np.random.default_rng(1).integers(0, 30, size=(50, 7)).astype("int32")
    executable = backend.compile(sample.program, Loop(50, "rows", examples=30))
    feed = (backend.put(resident, REPLICATED), backend.put(numbers, Layout(1)))
    once = executable.steps(put_state(backend, sample), feed, 0, 50)
    state = put_state(backend, sample)
    for start, count in ((0, 13), (13, 24), (37, 13)):
        state = executable.steps(state, feed, start, count).state
    assert_same_bits(backend.get(state), backend.get(once.state))


@case
def another_count_does_not_compile_again(backend: Backend) -> None:
    sample = samples.descent()
    executable = loop_of(backend, sample, 6)
    feed = put_batch(backend, sample.program, stacked_batches(sample, 6), stacked=True)
    state = executable.steps(put_state(backend, sample), feed, 0, 6).state
    before = len(_COMPILED)
    assert before > 0
    for start, count in ((0, 1), (1, 4), (5, 1), (2, 3), (0, 6)):
        state = executable.steps(state, feed, start, count).state
    jax.block_until_ready(jax.tree.leaves(backend.get(state)))
    assert len(_COMPILED) == before


@case
def every_step_is_reported(backend: Backend) -> None:
    sample = samples.counting(7)
    batches = stacked_batches(sample, 6)
    done = run_loop(backend, sample, batches, [(2, 3)])
    _, expected = plain_loop(sample, batches, range(2, 5))
    every = fetched(backend, done.every)
    assert {name: leaf.shape[0] for name, leaf in every.items()} == dict.fromkeys(every, 6)
    for number, outputs in enumerate(expected):
        assert_close({name: leaf[number] for name, leaf in every.items()}, outputs)
    assert_same_bits(backend.get(done.last), {name: leaf[2] for name, leaf in every.items()})


@case
def every_replica_of_every_step_is_reported(backend: Backend) -> None:
    sample = samples.together(len(backend.cores))
    batches = stacked_batches(sample, 3)
    every = fetched(backend, run_loop(backend, sample, batches, [(0, 2)]).every)
    assert every["index"].shape == (3, len(backend.cores))
    np.testing.assert_allclose(every["mine"][:2], batches[0][:2].sum((2, 3)) * batches[1][:2, None], rtol=1e-6)


@case
def no_steps_change_nothing(backend: Backend) -> None:
    sample = samples.counting()
    done = run_loop(backend, sample, stacked_batches(sample, 3), [(0, 0)])
    assert done.count == 0
    assert_same_bits(backend.get(done.state), sample.state)


@case
def the_guard_stops_at_the_first_bad_step(backend: Backend) -> None:
    sample = samples.watched()
    batches = stacked_batches(sample, 6)
    batches[4, 0], batches[5, 0] = np.inf, np.nan
    executable = loop_of(backend, sample, 6, guard="loss")
    feed = backend.put(batches, Layout(1))
    good = executable.steps(put_state(backend, sample), feed, 0, 4)
    assert int(backend.get(good.bad_steps)) == 0
    whole = fetched(backend, good.state)
    done = executable.steps(put_state(backend, sample), feed, 1, 5)
    assert int(backend.get(done.bad_steps)) == 2
    state, _ = plain_loop(sample, batches, range(1, 4))
    assert_close(fetched(backend, done.state), state)
    losses = np.asarray(backend.get(done.every)["loss"])
    assert np.isfinite(losses[:5]).tolist() == [True, True, True, False, False]
    on = executable.steps(backend.put(whole, REPLICATED), feed, 4, 2)
    assert int(backend.get(on.bad_steps)) == 2
    assert_same_bits(backend.get(on.state), whole)


@case
def bad_steps_are_skipped(backend: Backend) -> None:
    sample = samples.watched()
    batches = stacked_batches(sample, 6)
    batches[1, 0], batches[4, 0] = np.inf, np.nan
    for capacity in (6, 1):
        executable = loop_of(backend, sample, capacity, guard="loss", skips=True)
        state, bad = put_state(backend, sample), 0
        for start in range(0, 6, capacity):
            feed = backend.put(batches[start : start + capacity], Layout(1))
            done = executable.steps(state, feed, 0, capacity)
            state, bad = done.state, bad + int(backend.get(done.bad_steps))
        assert bad == 2
        expected, _ = plain_loop(sample, batches, [0, 2, 3, 5])
        assert_close(fetched(backend, state), expected)


@case
def without_a_guard_nothing_is_watched(backend: Backend) -> None:
    sample = samples.watched()
    batches = stacked_batches(sample, 2)
    batches[0] = np.nan
    done = run_loop(backend, sample, batches, [(0, 2)])
    assert done.bad_steps is None
    assert np.isnan(np.asarray(backend.get(done.state)["sum"]))


# Placements.


def _assert_laid(backend: Backend, program: Program, state: Any) -> None:
    """Assert that a state on a real mesh is in the shards of its program's placement."""
    for leaf, spec in zip(jax.tree.leaves(state), program.placement.specs, strict=False):
        array = backend.get(leaf)
        if isinstance(array, jax.Array) and len(array.sharding.device_set) > 1:
            parts = [part if part else None for part in spec]
            mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
            expected = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*parts))
            assert array.sharding.is_equivalent_to(expected, array.ndim), (array.sharding, expected)


@case
def placed_steps(backend: Backend) -> None:
    cores = len(backend.cores)
    for layout in ("data", "fsdp", "tensor"):
        for rows in (24, 7):
            sample, plain = samples.placed(layout, cores, rows)
            executable = backend.compile(sample.program)
            state, batch = put_state(backend, sample), put_batch(backend, sample.program, sample.batch)
            _assert_laid(backend, sample.program, state)
            state, outputs = executable.step(state, batch)
            _assert_laid(backend, sample.program, state)
            assert_close(fetched(backend, (state, outputs)), on_one_device(plain))


@case
def placed_code_for_one_device_of_a_mesh(backend: Backend) -> None:
    sample, plain = samples.mapped(len(backend.cores))
    state, outputs = one_step(backend, sample)
    expected, others = on_one_device(plain)
    np.testing.assert_allclose(state, expected, rtol=1e-5)
    assert outputs["index"].tolist() == others["index"].tolist()
    np.testing.assert_allclose(outputs["product"], others["product"], rtol=1e-5)
    np.testing.assert_allclose(outputs["total"], others["total"], rtol=1e-5)


@case
def placed_loops(backend: Backend) -> None:
    for layout, rows in (("fsdp", 24), ("tensor", 7)):
        sample, plain = samples.placed(layout, len(backend.cores), rows)
        batches = stacked_batches(sample, 4)
        done = run_loop(backend, sample, batches, [(0, 1), (1, 3)])
        _assert_laid(backend, sample.program, done.state)
        state, every = plain_loop(plain, batches, range(4))
        assert_close(fetched(backend, (done.state, done.last)), (state, every[-1]), steps=4)


@case
def placed_loops_over_rows(backend: Backend) -> None:
    for layout, rows in (("fsdp", 24), ("tensor", 7)):
        sample, plain = samples.placed(layout, len(backend.cores), rows)
        resident = {"x": samples.rows_of(23, 48, seed=5), "y": samples.rows_of(23, seed=6)}
        numbers = np.random.default_rng(1).integers(0, 23, size=(3, rows)).astype("int32")
        loop = Loop(3, "rows", examples=23)
        layouts = feed_layouts(array_layouts(sample.program)[1], loop)
        feed = jax.tree.map(backend.put, (resident, numbers), layouts)
        done = backend.compile(sample.program, loop).steps(put_state(backend, sample), feed, 0, 3)
        _assert_laid(backend, sample.program, done.state)
        state, every = plain_loop(plain, jax.tree.map(lambda leaf, n=numbers: leaf[n], resident), range(3))
        assert_close(fetched(backend, (done.state, done.last)), (state, every[-1]), steps=4)


@case
def placements_that_do_not_fit(backend: Backend) -> None:
    cores = len(backend.cores)
    sample, _ = samples.placed("fsdp", cores)
    placement = dataclasses.replace(sample.program.placement, axes=(("data", 2 * cores), ("model", 1)))
    program = dataclasses.replace(sample.program, placement=placement)
    assert error_of(BackendError, backend.compile, program) == (
        f"the program 'network/train' is placed on a mesh of {2 * cores} devices (data={2 * cores}, model=1), and the "
        f"system has {cores} cores: give the mesh as many devices as there are cores"
    )
    placement = dataclasses.replace(sample.program.placement, explicit=("data", "model"))
    program = dataclasses.replace(sample.program, placement=placement)
    assert error_of(ProgramError, backend.compile, program) == (
        "the mesh axes 'data' and 'model' of 'network/train' have jax.sharding.AxisType.Explicit, which anytpu plans "
        "and does not run: make the mesh with axis_types=(jax.sharding.AxisType.Auto,) * 2"
    )
    if cores > 1:
        spec = spec_of(np.ones(cores + 1, "float32"))
        placement = Placement((("data", cores),), ((("data",),), ()))
        program = Program("odd/train", lambda s, x: (s, {}), spec, spec, ROWS, placement=placement)
        assert error_of(ProgramError, backend.compile, program) == (
            f"'state' of 'odd/train' has the shape ({cores + 1},), and its sharding splits axis 0 over {cores} devices "
            f"(data={cores}), which do not divide {cores + 1}. Make it a multiple of {cores}."
        )


# Cores.


@case
def cores_are_in_order(backend: Backend) -> None:
    assert [core.index for core in backend.cores] == list(range(len(backend.cores)))


@case
def close_twice(backend: Backend) -> None:
    """Last: handles are worthless afterwards."""
    backend.close()
    backend.close()


def failure_of(function: Case, backend: Backend) -> str | None:
    """Run a case; return what it raised, or None."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            function(backend)
    except Exception:
        return re.sub(r"\n\s+\^+", "", traceback.format_exc())
    return None


def main(counts: list[str]) -> None:
    """Run the battery on the first cores of this machine's devices, and print what became of each case as JSON."""
    failures = {}
    for count in counts:
        backend = backend_of(running_system(Address("local", int(count))))
        assert len(backend.cores) == int(count)
        failures[count] = {"class": type(backend).__name__}
        failures[count] |= {name: failure_of(function, backend) for name, function in CASES.items()}
    print(json.dumps(failures))


if __name__ == "__main__":
    main(sys.argv[1:])
