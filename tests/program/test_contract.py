"""What a step must return."""

from __future__ import annotations

import jax
import pytest

from anytpu.errors import ProgramError
from anytpu.program.contract import check_pair, check_result

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
