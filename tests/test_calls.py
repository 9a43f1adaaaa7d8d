"""Calls of public functions: misspelt arguments, and the line that a warning points to."""

from __future__ import annotations

import pytest

import anytpu as tpu
from anytpu._calls import explain_arguments, users_stacklevel
from anytpu.bench import compare


def test_a_misspelt_argument_names_the_nearest():
    with pytest.raises(TypeError) as error:
        tpu.connect(core=4)  # pyright: ignore[reportCallIssue]
    assert str(error.value) == "connect() has no argument 'core'; did you mean 'cores'?"
    with pytest.raises(TypeError) as error:
        compare(lambda strategy: strategy, round=1)  # pyright: ignore[reportCallIssue]
    assert str(error.value) == "compare() has no argument 'round'; did you mean 'rounds'?"


def test_an_argument_like_no_other_lists_them():
    with pytest.raises(TypeError) as error:
        tpu.connect(x=1)  # pyright: ignore[reportCallIssue]
    assert str(error.value) == "connect() has no argument 'x'; its arguments are tpu, cores, strict, numerics"


def test_a_type_error_inside_the_function_is_kept():
    @explain_arguments
    def add(first, second):
        return first + second

    assert add(1, second=2) == 3
    with pytest.raises(TypeError, match="unsupported operand"):
        add(1, second="2")
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'second'"):
        add(1)  # pyright: ignore[reportCallIssue]


def test_the_stack_level_of_a_user():
    assert users_stacklevel() == 1
