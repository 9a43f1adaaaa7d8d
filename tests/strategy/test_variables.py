"""Keras variables on a backend: who owns which array, and whose value counts."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from anytpu.engine import Backend
from anytpu.engine.twin import TwinBackend
from anytpu.engine.virtual import VirtualBackend
from anytpu.program import REPLICATED, ROWS, Program, spec_of
from anytpu.strategy import variables as homes
from anytpu.system.topologies import row_of_cores

BACKENDS = {"virtual": VirtualBackend, "twin": TwinBackend}
BATCH = np.ones(8, "float32")


def opened(kind: str) -> Backend:
    return BACKENDS[kind](row_of_cores(2, kind=kind).cores)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    return opened(request.param)


def variables(*values: Any) -> list[keras.Variable]:
    return [keras.Variable(np.asarray(value, "float32")) for value in values]


def add_one(backend: Backend, held: list[Any]) -> list[Any]:
    """Run a step that adds 1 to each variable; return the handles that it was given."""
    handles = homes.take(backend, held)
    state = spec_of([np.zeros(v.shape, "float32") for v in held])
    program = Program("add", lambda s, _: ([value + 1 for value in s], {}), state, spec_of(BATCH), ROWS)
    new, _ = backend.compile(program).step(handles, backend.put(BATCH, ROWS))
    homes.give(held, new)
    return handles


def values_of(held: list[Any]) -> list[Any]:
    return [np.asarray(variable.value).tolist() for variable in held]


def test_take_give_attach(backend: Backend):
    held = variables(1, [2, 3])
    add_one(backend, held)
    homes.release(held)
    assert values_of(held) == [2, [3, 4]]
    add_one(backend, held)
    add_one(backend, held)
    homes.release(held)
    homes.release(held)
    assert values_of(held) == [4, [5, 6]]


def test_what_lies_there_does_not_travel_again(backend: Backend):
    held = variables(1, [2, 3])
    handles = homes.take(backend, held)
    assert all(a is b for a, b in zip(homes.take(backend, held), handles, strict=True))
    add_one(backend, held)
    newer = homes.take(backend, held)
    assert all(a is not b for a, b in zip(newer, handles, strict=True))
    assert values_of(held) == [2, [3, 4]]
    assert all(a is b for a, b in zip(homes.take(backend, held), newer, strict=True))


def test_a_value_is_fetched_when_it_is_read(backend: Backend, monkeypatch: pytest.MonkeyPatch):
    held, gets = variables(1, [2, 3]), []
    get = type(backend).get
    monkeypatch.setattr(type(backend), "get", lambda self, tree: gets.append(tree) or get(self, tree))
    add_one(backend, held)
    homes.release(held)
    assert gets == []
    assert [float(held[0].value) for _ in range(2)] == [2, 2]
    assert len(gets) == 1


def held_for_many_calls(backend: Backend, held: list[Any]) -> tuple[list[Any], homes.Holder]:
    """Take variables for many calls; return the list that has the newest handles, and the holder."""
    newest: list[Any] = []
    holder = homes.Holder("the test", lambda: None, newest.__getitem__)
    newest[:] = homes.take(backend, held, holder)
    return newest, holder


def test_a_variable_that_is_held_has_its_newest_value(backend: Backend):
    held = variables(1, 10)
    newest, holder = held_for_many_calls(backend, held)
    assert values_of(held) == [1, 10]
    assert homes.renewed(backend, holder) == []
    newest[:] = backend.put([jnp.float32(2), jnp.float32(20)], REPLICATED)
    assert values_of(held) == [2, 20]
    homes.give(held, newest)
    homes.release(held)
    assert values_of(held) == [2, 20]


def test_what_is_assigned_to_a_variable_that_is_held_is_for_the_next_call(backend: Backend):
    held = variables(1, 10)
    newest, holder = held_for_many_calls(backend, held)
    held[1].assign(7)
    ((index, handle),) = homes.renewed(backend, holder)
    assert (index, float(backend.get(handle))) == (1, 7)
    newest[index] = handle
    assert values_of(held) == [1, 7]
    held[0].assign(5)
    homes.give(held, newest)
    homes.release(held)
    assert values_of(held) == [5, 7]


def test_a_value_is_first_read_in_a_function_that_is_traced(backend: Backend):
    held = variables([1, 2])
    add_one(backend, held)
    homes.release(held)
    assert jax.jit(lambda x: x + held[0].value)(1).tolist() == [3, 4]
    assert values_of(held) == [[2, 3]]


def test_an_unread_value_is_copied_and_pickled(backend: Backend):
    held = variables([1, 2])
    add_one(backend, held)
    homes.release(held)
    unread = vars(held[0])["_value"]
    copies = copy.deepcopy(unread), pickle.loads(pickle.dumps(unread))
    add_one(backend, held)
    assert [copy.tolist() for copy in copies] == [[2, 3], [2, 3]]


def test_an_assignment_between_calls_wins(backend: Backend):
    held = variables(1, 2)
    add_one(backend, held)
    homes.release(held)
    held[0].assign(10)
    add_one(backend, held)
    homes.release(held)
    assert values_of(held) == [11, 4]


def test_an_assignment_before_the_values_are_shown_wins(backend: Backend):
    held = variables(1, 2)
    add_one(backend, held)
    held[0].assign(10)
    homes.release(held)
    assert values_of(held) == [10, 3]
    add_one(backend, held)
    homes.release(held)
    assert values_of(held) == [11, 4]


def test_settle_shows_the_values_at_once(backend: Backend):
    held = variables(1, 2)
    handles = homes.take(backend, held)
    new = backend.put([jnp.float32(5), jnp.float32(6)], REPLICATED)
    homes.settle(held, new)
    assert values_of(held) == [5, 6]
    assert all(a is b for a, b in zip(homes.take(backend, held), new, strict=True))
    assert all(a is not b for a, b in zip(handles, new, strict=True))


def test_arrays_of_the_user_are_never_consumed(backend: Backend):
    (variable,) = held = variables([1, 2])
    mine, host = jnp.asarray([5.0, 6.0]), np.asarray([7.0, 8.0], "float32")
    for array in (mine, host):
        variable.assign(array)
        add_one(backend, held)
        homes.release(held)
        assert values_of(held) == [(np.asarray(array) + 1).tolist()]
    assert mine.tolist() == [5, 6]
    assert host.tolist() == [7, 8]


def test_what_was_read_as_numpy_stays_as_it_was(backend: Backend):
    held = variables(np.arange(4096))
    before = np.asarray(held[0].value)
    for _ in range(3):
        add_one(backend, held)
        homes.release(held)
    assert before.tolist() == list(range(4096))
    after = np.asarray(held[0].value)
    add_one(backend, held)
    assert after.tolist() == list(range(3, 4099))


def test_one_array_in_two_variables(backend: Backend):
    held = variables(0, 0)
    array = jnp.float32(3)
    for variable in held:
        variable.assign(array)
    add_one(backend, held)
    homes.release(held)
    assert values_of(held) == [4, 4]


def test_two_models_do_not_meet(backend: Backend):
    first, second = variables(1), variables(10)
    add_one(backend, first)
    add_one(backend, second)
    add_one(backend, first)
    homes.release(second)
    assert values_of(second) == [11]
    homes.release(first)
    assert values_of(first) == [3]


def test_a_variable_in_two_models(backend: Backend):
    shared, own = variables(1, 10)
    add_one(backend, [shared, own])
    add_one(backend, [shared])
    homes.release([shared, own])
    assert values_of([shared, own]) == [3, 11]


@pytest.mark.parametrize("kinds", [("virtual", "twin"), ("twin", "virtual"), ("virtual", "virtual")])
@pytest.mark.parametrize("attaches", [True, False])
def test_from_one_backend_to_another(kinds: tuple[str, str], attaches: bool):
    one, other = map(opened, kinds)
    held = variables(1, [2, 3])
    for backend in (one, other, one):
        add_one(backend, held)
        if attaches:
            homes.release(held)
    homes.release(held)
    assert values_of(held) == [4, [5, 6]]


def test_a_value_is_an_array_of_jax_that_a_plain_step_can_use(backend: Backend):
    held = variables([1, 2])
    add_one(backend, held)
    homes.release(held)
    assert isinstance(held[0].value, jax.Array)
    assert keras.ops.sum(held[0] * 2) == 10


def test_a_variable_that_never_travelled_is_left_alone():
    held = variables(1)
    value = held[0].value
    homes.release(held)
    assert held[0].value is value


def test_a_copy_of_a_variable_goes_its_own_way(backend: Backend):
    held = variables(1)
    add_one(backend, held)
    homes.release(held)
    copied = copy.deepcopy(held)
    add_one(backend, held)
    homes.release([*held, *copied])
    assert values_of([*held, *copied]) == [3, 2]
    add_one(backend, copied)
    homes.release(copied)
    assert values_of([*held, *copied]) == [3, 3]


def test_a_large_value_that_nobody_else_has_is_moved_and_not_copied(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(homes, "_LARGE_BYTES", 1000)
    copied = []
    put = homes._put
    monkeypatch.setattr(
        homes, "_put", lambda backend, value, layout: copied.append(value) or put(backend, value, layout)
    )
    held = [keras.Variable(np.ones(1000, "float32")), keras.Variable(np.ones(1000, "float32"))]
    users = held[1].value
    holder = homes.Holder("fit", newest=lambda index: None)
    homes.take(opened("virtual"), held, holder)
    homes.release(held)
    assert [value is users for value in copied] == [True]
