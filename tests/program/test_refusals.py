"""Steps that are refused: wrong results, Python callbacks, large constants."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify

from anytpu.errors import ProgramError
from anytpu.program import ROWS, Program, lower
from anytpu.program.refusals import CONSTANT_BYTES, check_pair, check_result, refuse_callbacks

SCALAR = jax.ShapeDtypeStruct((), "float32")
ROW = jax.ShapeDtypeStruct((600,), "float32")


def refusal(step) -> str:
    with pytest.raises(ProgramError) as caught:
        lower(Program("step/train", step, SCALAR, ROW, ROWS))
    return str(caught.value)


def line_of(function, text: str) -> str:
    """Return "file:line" of the first line of a function that holds some text."""
    lines, start = inspect.getsourcelines(function)
    number = start + next(index for index, line in enumerate(lines) if text in line)
    return f"{__file__}:{number}"


def test_debug_print_is_refused_with_its_line():
    def step(state, batch):
        with jax.named_scope("dense"):
            jax.debug.print("{}", state)
        return state, {}

    text = refusal(step)
    place = line_of(step, "debug.print")
    assert text.startswith(f"The step of 'step/train' calls back into Python (debug_print inside 'dense', at {place}:")
    assert text.endswith(
        "(test_debug_print_is_refused_with_its_line.<locals>.step)). A program that leaves this process cannot take "
        "Python code along: remove the jax.debug.print, or run the program in this process only."
    )


def print_state(state):
    jax.debug.print("{}", state)
    return state


def call_python(state):
    return jax.pure_callback(lambda x: x, SCALAR, state)


def call_python_for_its_effect(state):
    return jax.experimental.io_callback(lambda x: x, SCALAR, state)


def print_in_a_branch(state):
    return jax.lax.cond(state > 0, print_state, lambda x: x, state)


def print_in_a_loop(state):
    return jax.lax.scan(lambda carry, _: (print_state(carry), None), state, length=3)[0]


@pytest.mark.parametrize(
    ("function", "primitive"),
    [
        (print_state, "debug_print"),
        (jax.jit(print_state), "debug_print"),
        (jax.checkpoint(print_state), "debug_print"),
        (print_in_a_branch, "debug_print"),
        (print_in_a_loop, "debug_print"),
        (call_python, "pure_callback"),
        (call_python_for_its_effect, "io_callback"),
        (lambda x: jax.debug.callback(print, x) or x, "debug_callback"),
    ],
)
def test_every_callback_is_refused_however_deep(function, primitive: str):
    assert f"calls back into Python ({primitive}" in refusal(lambda state, batch: (function(state), {}))


@pytest.mark.parametrize(
    ("function", "primitive", "instead"),
    [
        (
            call_python,
            "pure_callback",
            "write it with jax.numpy, or compute it before the step and pass it in through the batch",
        ),
        (
            call_python_for_its_effect,
            "io_callback",
            "return the value with the outputs of the step, and use it between the steps",
        ),
    ],
)
def test_each_callback_is_told_what_to_do_instead(function, primitive: str, instead: str):
    place = line_of(function, "callback(")
    assert refusal(lambda state, batch: (function(state), {})) == (
        f"The step of 'step/train' calls back into Python ({primitive}, at {place}:11 ({function.__name__})). A "
        f"program that leaves this process cannot take Python code along: {instead}, or run the program in this "
        "process only."
    )


def check_sign(state):
    checkify.check(state > 0, "negative")
    return state


def test_a_check_that_stops_the_program_is_refused():
    place = line_of(check_sign, "checkify.check(")
    assert refusal(lambda state, batch: (check_sign(state), {})) == (
        "The step of 'step/train' raises an error from inside the program (checkify.check, at "
        f"{place}:4 (check_sign)). Return it with the outputs: error, result = checkify.checkify(step)(state, batch). "
        "Or remove the check."
    )


def test_a_check_that_is_returned_as_a_value_passes():
    def step(state, batch):
        error, state = checkify.checkify(check_sign)(state)
        return state, {"error": error}

    assert lower(Program("step/train", step, SCALAR, ROW, ROWS)).platforms == ("cpu",)


def test_callback_in_per_replica_code():
    program = Program("step/train", lambda state, batch: (print_state(state), {}), SCALAR, ROW, ROWS, replicas=600)
    with pytest.raises(ProgramError, match=r"calls back into Python \(debug_print, at"):
        lower(program)


def test_no_callback_is_let_through():
    refuse_callbacks("step", jax.make_jaxpr(lambda x: jax.lax.cond(x > 0, jnp.sin, jnp.cos, x))(1.0))


def large(kind):
    return kind(np.ones((600, 600), "float32"))


@pytest.mark.parametrize("kind", [jnp.asarray, np.asarray], ids=["jax", "numpy"])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["plain", "jit"])
def test_large_constant_is_refused_with_its_line(kind, wrap):
    weights = large(kind)

    @wrap
    def predict(batch):
        return weights @ batch

    text = refusal(lambda state, batch: (state, predict(batch)))
    assert text.startswith("The step of 'step/train' holds the constant float32[600,600] (1.4 MiB, used at ")
    assert f"{line_of(inspect.unwrap(predict), 'return weights')}:" in text
    assert text.endswith(
        "A program takes its arrays as inputs: pass this one in through the state or the batch. "
        "A constant may have up to 1 MiB."
    )


@pytest.mark.parametrize(
    "around", [jax.checkpoint, jax.vmap, lambda f: lambda x: jax.lax.fori_loop(0, 3, lambda _, y: f(y), x)]
)
def test_large_constant_is_refused_however_deep(around):
    weights = large(jnp.asarray)
    step = around(lambda x: weights.sum() + x)
    assert "holds the constant float32[600,600]" in refusal(lambda state, batch: (state, step(batch)))


def test_a_constant_of_the_limit_is_let_through():
    limit = jnp.ones(CONSTANT_BYTES // 4, "float32")
    lower(Program("step/train", lambda state, batch: (state + limit.sum(), {}), SCALAR, ROW, ROWS))


def test_what_is_computed_inside_is_no_constant():
    lower(Program("step/train", lambda state, batch: (state, jnp.ones((600, 600)) @ batch), SCALAR, ROW, ROWS))


STATE = {"w": jax.ShapeDtypeStruct((3, 2), "float32"), "n": jax.ShapeDtypeStruct((), "int32")}


def fault(result, names: tuple[str, ...] = ()) -> str:
    with pytest.raises(ProgramError) as caught:
        check_result("mlp/train", STATE, result, names)
    return str(caught.value)


def test_the_same_state_is_right():
    check_result("mlp/train", STATE, (dict(STATE), {"loss": STATE["n"]}))
    assert check_pair("mlp/train", (1, 2)) == (1, 2)


@pytest.mark.parametrize(
    ("result", "what"),
    [
        ((), "a tuple of 0"),
        ((STATE, {}, {}), "a tuple of 3"),
        ([STATE, {}], "a list"),
        ({"state": STATE}, "a dict"),
        (STATE["w"], "an array"),
        (None, "None"),
    ],
)
def test_not_a_pair(result, what: str):
    assert fault(result) == (
        f"The step of 'mlp/train' must return a pair (state, outputs), not {what}. "
        "Where there is nothing to report, return (state, {})."
    )


def test_another_structure():
    assert fault(([STATE["w"]], {})) == (
        "The step of 'mlp/train' must return a state of the same structure as the one that it was given: it was given "
        "PyTreeDef({'n': *, 'w': *}) and returned PyTreeDef([*])."
    )


@pytest.mark.parametrize(
    ("shape", "dtype", "text"), [((3, 2), "bfloat16", "bfloat16[3,2]"), ((2, 3), "float32", "float32[2,3]")]
)
def test_another_leaf(shape, dtype: str, text: str):
    assert fault((STATE | {"w": jax.ShapeDtypeStruct(shape, dtype)}, {})) == (
        f"The step of 'mlp/train' must return each state as it was given: 'w' was given as float32[3,2] and returned "
        f"as {text}. Cast it back with .astype, or start with a state of the type that comes back."
    )


def test_the_program_names_its_states():
    changed = STATE | {"w": STATE["n"]}
    assert "'dense/kernel' was given as" in fault((changed, {}), ("steps", "dense/kernel"))
