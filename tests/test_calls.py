"""Calls of public functions: misspelt arguments, and the line that a warning points to."""

from __future__ import annotations

import enum
import inspect

import pytest

import anytpu as tpu
from anytpu._calls import explain_arguments, users_stacklevel
from anytpu.bench import compare
from anytpu.pipeline import Dataset

READ_ONLY = {
    "Dataset",
    "DeviceAttributes",
    "Layout",
    "Placement",
    "Program",
    "RecordSource",
    "RecordStream",
}
"""Classes whose objects a user gets, and does not make."""

# pyright: reportCallIssue=false


def test_a_misspelt_argument_names_the_nearest():
    with pytest.raises(TypeError) as error:
        tpu.connect(core=4)
    assert str(error.value) == "connect() has no argument 'core'; did you mean 'cores'?"
    with pytest.raises(TypeError) as error:
        compare(lambda strategy: strategy, round=1)
    assert str(error.value) == "compare() has no argument 'round'; did you mean 'rounds'?"


def test_an_argument_like_no_other_lists_them():
    with pytest.raises(TypeError) as error:
        tpu.connect(x=1)
    assert (
        str(error.value)
        == "connect() has no argument 'x'; its arguments are tpu, cores, layout, mesh, strict, numerics"
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tpu.plan(None, tpus="v2-8"), "plan() has no argument 'tpus'; did you mean 'tpu'?"),
        (lambda: tpu.scaling(None, "v3", core=[8]), "scaling() has no argument 'core'; did you mean 'cores'?"),
        (
            lambda: tpu.scaling(None, "v3", [8], batchsize=8),
            "scaling() has no argument 'batchsize'; did you mean 'batch_size'?",
        ),
        (lambda: tpu.max_batch_size(None, mod="infer"), "max_batch_size() has no argument 'mod'; did you mean 'mode'?"),
        (lambda: tpu.check(None, core=8), "check() has no argument 'core'; did you mean 'cores'?"),
        (
            lambda: tpu.chip.compile(None, calibrate=None),
            "compile() has no argument 'calibrate'; did you mean 'calibration'?",
        ),
        (
            lambda: tpu.TPUEstimator(model_func=len),
            "TPUEstimator() has no argument 'model_func'; did you mean 'model_fn'?",
        ),
        (lambda: tpu.RunConfig(modeldir="."), "RunConfig() has no argument 'modeldir'; did you mean 'model_dir'?"),
        (lambda: tpu.TPUStrategy(strikt=True), "TPUStrategy() has no argument 'strikt'; did you mean 'strict'?"),
        (lambda: tpu.get_strategy().run(len, arg=()), "run() has no argument 'arg'; did you mean 'args'?"),
        (
            lambda: Dataset.range(3).batch(batchsize=2),
            "batch() has no argument 'batchsize'; did you mean 'batch_size'?",
        ),
        (lambda: Dataset.range(3).shuffle(2, sed=1), "shuffle() has no argument 'sed'; did you mean 'seed'?"),
        (
            lambda: Dataset.range(3).repeat(times=2),
            "repeat() has no argument 'times'; its arguments are count, name",
        ),
    ],
)
def test_misspelt_arguments_of_the_public_names(call, message):
    with pytest.raises(TypeError) as error:
        call()
    assert str(error.value) == message


@pytest.mark.parametrize("module", [tpu, tpu.pipeline, tpu.chip, tpu.program], ids=lambda module: module.__name__)
def test_every_public_name_with_optional_arguments_refuses_unknown_ones(module):
    without = []
    for name in sorted({*module.__all__} - READ_ONLY):
        value = getattr(module, name)
        if callable(value) and not isinstance(value, enum.EnumType) and has_defaults(value):
            with pytest.raises(TypeError) as error:
                value(*required(value), unknown=1)
            if "has no argument 'unknown'" not in str(error.value):
                without.append(name)
    assert without == [], "decorate with explain_arguments or explain_methods"


def required(value) -> list[None]:
    parameters = inspect.signature(value).parameters.values()
    positional = [
        parameter
        for parameter in parameters
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and parameter.default is parameter.empty
    ]
    return [None for _ in positional]


def has_defaults(value) -> bool:
    return any(parameter.default is not parameter.empty for parameter in inspect.signature(value).parameters.values())


def test_a_type_error_inside_the_function_is_kept():
    @explain_arguments
    def add(first, second):
        return first + second

    assert add(1, second=2) == 3
    with pytest.raises(TypeError, match="unsupported operand"):
        add(1, second="2")
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'second'"):
        add(1)


def test_the_stack_level_of_a_user():
    assert users_stacklevel() == 1
