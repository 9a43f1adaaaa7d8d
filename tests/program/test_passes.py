"""The passes of small traced steps."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun

from anytpu.program.passes import bytes_of, inlined, passes_of

ROWS, WIDTH = 8, 16


def traced():
    @jax.jit
    def block(w, x):
        return jnp.tanh(x @ w)

    def step(w, x):
        gradient = jax.grad(lambda w: block(w, block(w, x)).sum())(w)
        return w - gradient, ()

    return jax.make_jaxpr(step)(jnp.zeros((WIDTH, WIDTH)), jnp.zeros((ROWS, WIDTH))).jaxpr


def test_functions_that_are_called_twice_make_different_values():
    flat = inlined(traced())
    assert not any(equation.primitive.name == "jit" for equation in flat.eqns)
    made = [variable for equation in flat.eqns for variable in equation.outvars]
    assert len(made) == len(set(made))
    assert sum(equation.primitive.name == "tanh" for equation in flat.eqns) == 2


def test_a_function_that_captured_an_array_stays_a_call():
    captured = np.arange(4.0, dtype=np.float32)
    scaled = jax.jit(lambda x: jnp.sin(x) * captured)
    trace = jax.make_jaxpr(lambda w, x: w - jax.grad(lambda w: scaled(w * x).sum())(w))(jnp.ones(4), jnp.ones(4))
    flat = inlined(trace.jaxpr)
    arguments = [np.float32([1, 2, 3, 4]), np.float32([4, 3, 2, 1])]
    (made,), (wanted,) = (jaxpr_as_fun(trace.replace(jaxpr=level))(*arguments) for level in (flat, trace.jaxpr))
    np.testing.assert_array_equal(made, wanted)


def test_the_forward_pass_keeps_what_the_backward_pass_reads():
    found = passes_of(inlined(traced()), 1)
    kept = [variable for equation in found.forward for variable in found.kept(equation)]
    assert {bytes_of(variable) for variable in kept} == {4 * ROWS * WIDTH}
    assert any(equation.primitive.name == "tanh" for equation in found.forward)
    assert not any(equation.primitive.name == "tanh" for equation in found.backward)
