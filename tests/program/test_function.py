"""A JAX function as a Program."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anytpu.errors import ProgramError
from anytpu.program import REPLICATED, ROWS, of
from anytpu.program.function import FUNCTION_MAKER
from error_texts import error_text


def step(state, batch):
    return {"w": state["w"] + batch[0].sum(), "n": state["n"] + 1}, {"loss": batch[1].mean()}


STATE = {"w": np.float32(0), "n": 0}
BATCH = (np.zeros((8, 3), "uint8"), np.zeros(8), np.float64(0.1), np.zeros(3))


error_of = functools.partial(error_text, of, kind=ProgramError)


def test_program_of_a_function():
    program = of(step, (STATE, BATCH))
    spec = jax.ShapeDtypeStruct
    assert (program.name, program.mode, program.replicas, program.rows) == ("step/train", "train", None, 8)
    assert program.step is step
    assert program.state == {"w": spec((), "float32"), "n": spec((), "int32")}
    assert program.batch == (spec((8, 3), "uint8"), spec((8,), "float32"), spec((), "float32"), spec((3,), "float32"))
    assert program.layout == (ROWS, ROWS, REPLICATED, REPLICATED)
    assert program.state_names == ("n", "w")
    assert program.tensors is None


def test_shapes_instead_of_arrays():
    given = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, (STATE, BATCH)))
    assert of(step, given) == of(step, (STATE, BATCH))


def test_mode():
    program = of(step, (STATE, BATCH), mode="infer")
    assert (program.name, program.mode) == ("step/infer", "infer")


def test_tensors_are_as_jax_has_them():
    tensors = of(step, (STATE, BATCH), tensors=True).tensors
    assert tensors == {"w": 0, "n": 0}
    assert {name: leaf.dtype.name for name, leaf in tensors.items()} == {"w": "float32", "n": "int32"}


class Model:
    def __call__(self, state, batch):
        return state, batch

    def step(self, state, batch):
        return state, batch


@pytest.mark.parametrize(
    ("job", "name"),
    [
        (jax.jit(step), "step/train"),
        (functools.partial(step), "step/train"),
        (functools.partial(jax.jit(step)), "step/train"),
        (Model().step, "step/train"),
        (lambda state, batch: (state, batch), "<lambda>/train"),
    ],
)
def test_what_is_a_function(job, name: str):
    assert FUNCTION_MAKER.claims(job)
    assert of(job, (STATE, BATCH)).name == name


@pytest.mark.parametrize("job", [Model(), Model, "step.anytpu", 3, None])
def test_what_is_none(job):
    assert not FUNCTION_MAKER.claims(job)


def test_no_specs():
    assert error_of(step) == (
        "The function of 'step/train' does not define the shapes of its inputs. Pass examples of them, arrays or "
        "jax.ShapeDtypeStruct: anytpu.program.of(step, input_specs=(state, batch))."
    )


def test_a_function_that_makes_a_model_is_no_step():
    def create_model(width=4):
        raise AssertionError(f"called with {width}")

    assert error_of(create_model) == (
        "The function of 'create_model/train' can be called without arguments, so it is not a step(state, batch). If "
        "it makes a model, pass the model: create_model()."
    )


@pytest.mark.parametrize(
    ("specs", "what"),
    [((STATE, STATE, BATCH, 1), "a tuple of 4"), (3, "an object of type int"), ({"state": 1}, "a dict of 1")],
)
def test_specs_that_are_no_pair(specs, what):
    assert error_of(step, specs) == (
        f"input_specs of 'step/train' must be a pair, the tree of the state and the tree of the batch, not {what}: "
        "anytpu.program.of(step, input_specs=(state, batch)). A step takes that pair and returns one, "
        "step(state, batch) -> (state, outputs):\n"
        "    def step(weights, x):\n"
        '        return weights - 0.1 * x.mean(0), {"mean": x.mean()}'
    )


def test_specs_that_are_no_arrays():
    assert error_of(step, (STATE, {"x": [np.zeros(3), "images"]})) == (
        "'x/1' in the batch of 'step/train' must be an array or a jax.ShapeDtypeStruct, not 'images'."
    )
    assert error_of(step, (np.array(["a"]), BATCH)) == (
        "'state' in the state of 'step/train' must be an array or a jax.ShapeDtypeStruct, not "
        "array(['a'], dtype='<U1')."
    )


def test_other_rows():
    table = (*BATCH, np.zeros((32, 2), "float32"))
    program = of(step, (STATE, table), batch_size=32)
    assert [leaf.shape for leaf in program.batch] == [(32, 3), (32,), (), (3,), (32, 2)]
    assert program.layout == (ROWS, ROWS, REPLICATED, REPLICATED, REPLICATED)


def test_no_rows():
    assert error_of(lambda state, batch: (state, batch), (STATE, np.float32(1)), batch_size=32) == (
        "The batch of '<lambda>/train' has no rows to make 32 of: each of its leaves is a scalar. Leave batch_size out."
    )


def test_no_other_precision():
    assert error_of(step, (STATE, BATCH), precision="bfloat16") == (
        "The function of 'step/train' computes in the precision that it is written in, and cannot be changed to "
        "precision='bfloat16'. Cast inside it, x.astype(jnp.bfloat16), or give it state and batch of that type."
    )


def test_a_function_of_something_else():
    def predict(x):
        return x

    assert error_of(predict, (STATE, BATCH)) == (
        "The step of 'predict/train' must take two arguments, step(state, batch), and it takes (x). Fix the others "
        "with functools.partial."
    )


def test_not_a_pair():
    assert error_of(lambda state, batch: state, (STATE, BATCH)) == (
        "The step of '<lambda>/train' must return a pair (state, outputs), not a dict. "
        "Where there is nothing to report, return (state, {})."
    )


def test_another_state():
    assert error_of(lambda state, batch: (state | {"w": state["w"].astype("bfloat16")}, {}), (STATE, BATCH)) == (
        "The step of '<lambda>/train' must return each state as it was given: 'w' was given as float32[] and returned "
        "as bfloat16[]. Cast it back with .astype, or start with a state of the type that comes back."
    )


def test_tensors_of_shapes_only():
    given = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, (STATE, BATCH)))
    assert error_of(step, given, tensors=True) == (
        "The values of the state of 'step/train' were asked for (tensors=True), and input_specs gives only their "
        "shapes. Pass the arrays themselves."
    )


def test_an_error_of_the_function_is_its_own():
    with pytest.raises(KeyError, match="missing"):
        of(lambda state, batch: state["missing"], (STATE, BATCH))
