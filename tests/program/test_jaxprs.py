"""Debugging callbacks are removed from a traced step at any depth; nothing else is."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from anytpu.errors import ProgramError
from anytpu.program import ROWS, Program
from anytpu.program.jaxprs import without_debugging
from anytpu.program.lowering import trace_for_plan

SCALAR = jax.ShapeDtypeStruct((), "float32")


def printing(x):
    jax.debug.print("{}", x)
    return x + 1


def ordered(x):
    jax.debug.print("{}", x, ordered=True)
    return x + 1


def watching(x):
    jax.debug.callback(lambda value: None, x)
    return x + 1


def stopping(x):
    jax.debug.breakpoint()
    return x + 1


def inspecting(x):
    jax.debug.inspect_array_sharding(x, callback=print)
    return x + 1


@pytest.mark.parametrize(
    ("function", "called"),
    [
        (printing, "jax.debug.print"),
        (ordered, "jax.debug.print"),
        (watching, "jax.debug.callback"),
        (stopping, "jax.debug.breakpoint"),
        (inspecting, "jax.debug.inspect_array_sharding"),
    ],
)
def test_each_is_left_out_and_named(function, called):
    quiet, (left_out,) = without_debugging(jax.make_jaxpr(function)(1.0))
    assert [equation.primitive.name for equation in quiet.jaxpr.eqns] == ["add"]
    assert not quiet.effects
    line = function.__code__.co_firstlineno + 1
    assert left_out == f"{called} at {__file__}:{line}:4 ({function.__name__})"


@jax.custom_vjp
def with_a_rule(x):
    return printing(x)


with_a_rule.defvjp(lambda x: (printing(x), x), lambda x, y: (y * x,))

DEEP = [
    jax.jit(printing),
    jax.checkpoint(printing),
    lambda x: jax.lax.cond(x > 0, printing, lambda x: x, x),
    lambda x: jax.lax.scan(lambda carry, _: (ordered(carry), None), x, length=3)[0],
    lambda x: jax.lax.while_loop(lambda x: x < 5, jax.jit(printing), x),
    lambda x: jax.vmap(printing)(x + jnp.arange(3.0)).sum(),
    with_a_rule,
    jax.grad(with_a_rule),
    jax.grad(lambda x: jax.checkpoint(printing)(x) ** 2),
    lambda x: jax.scipy.sparse.linalg.cg(lambda v: printing(v) - 1 + v, x)[0],
]


@pytest.mark.parametrize("function", DEEP)
def test_it_is_left_out_however_deep_and_the_numbers_stay(function, capsys):
    quiet, left_out = without_debugging(jax.make_jaxpr(function)(2.0))
    assert "debug" not in str(quiet) and not quiet.effects and left_out
    assert jaxpr_as_fun(quiet)(2.0)[0] == function(2.0)


def test_in_a_shard_map():
    mesh = AbstractMesh((2,), ("x",), axis_types=(AxisType.Auto,))
    body = jax.shard_map(printing, mesh=mesh, in_specs=PartitionSpec("x"), out_specs=PartitionSpec("x"))
    quiet, left_out = without_debugging(jax.make_jaxpr(body)(jnp.zeros(4)))
    assert "debug" not in str(quiet) and not quiet.effects and len(left_out) == 1


@pytest.mark.parametrize("function", [jnp.linalg.solve, lambda m, r: jax.scipy.sparse.linalg.cg(m, r[:, 0])[0]])
def test_the_jaxprs_of_a_linear_solve_stay_in_their_namedtuple(function):
    traced = jax.make_jaxpr(function)(jnp.eye(4), jnp.ones((4, 2)))
    quiet, left_out = without_debugging(traced)
    assert "custom_linear_solve" in str(quiet) and (str(quiet), left_out) == (str(traced), ())
    np.testing.assert_array_equal(
        jaxpr_as_fun(quiet)(jnp.eye(4), jnp.ones((4, 2)))[0], function(jnp.eye(4), jnp.ones((4, 2)))
    )


def test_a_step_without_any_is_as_it_was():
    traced = jax.make_jaxpr(lambda x: jax.lax.cond(x > 0, jnp.sin, jnp.cos, x))(1.0)
    quiet, left_out = without_debugging(traced)
    assert (str(quiet), left_out) == (str(traced), ())


def test_a_program_is_traced_without_them():
    def step(state, batch):
        return printing(state), {"sum": watching(batch.sum())}

    traced, left_out = trace_for_plan(Program("step/train", step, SCALAR, jax.ShapeDtypeStruct((8,), "float32"), ROWS))
    assert [place.split(" at ")[0] for place in left_out] == ["jax.debug.print", "jax.debug.callback"]
    assert jax.tree.structure(traced.out_info) == jax.tree.structure((0, {"sum": 0}))
    assert "debug" not in str(traced.jaxpr)


def test_in_per_replica_code():
    program = Program(
        "step/train", lambda state, batch: (state, printing(batch)), SCALAR, np.zeros(600), ROWS, replicas=600
    )
    assert len(trace_for_plan(program)[1]) == 1


def test_what_returns_a_value_stays_and_is_refused():
    def step(state, batch):
        return jax.pure_callback(lambda x: x, SCALAR, printing(state)), batch

    with pytest.raises(ProgramError, match=r"calls back into Python \(pure_callback, at"):
        trace_for_plan(Program("step/train", step, SCALAR, jax.ShapeDtypeStruct((8,), "float32"), ROWS))
