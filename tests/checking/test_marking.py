"""Values inside of a step come out of it by name, whatever is done to the step."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from anytpu.checking.marking import Marking, marked, tapped


def values(step: Any, state: Any, batch: Any) -> dict[str, Any]:
    (new_state, (outputs, found)), plain = jax.jit(tapped(step))(state, batch), step(state, batch)
    for one, other in zip(jax.tree.leaves((new_state, outputs)), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    return found


def loss(w: Any, x: Any) -> Any:
    return jnp.sum(marked(jnp.tanh(marked(x @ w, "product")), "tangent") ** 2)


W, X = jnp.linspace(-1.0, 1.0, 6).reshape(3, 2), jnp.linspace(0.0, 1.0, 12).reshape(4, 3)


def test_through_a_gradient():
    found = values(lambda w, x: (w - jax.grad(loss)(w, x), {}), W, X)
    assert list(found) == ["product", "tangent"]
    np.testing.assert_allclose(found["product"], X @ W, rtol=1e-6)
    np.testing.assert_allclose(found["tangent"], jnp.tanh(X @ W), rtol=1e-6)


def test_through_calls_that_run_once():
    for wrap in (jax.jit, jax.checkpoint, lambda function: jax.jit(jax.checkpoint(function))):
        found = values(lambda w, x, wrap=wrap: (w - jax.grad(wrap(loss))(w, x), {}), W, X)
        np.testing.assert_allclose(found["tangent"], jnp.tanh(X @ W), rtol=1e-6)


def test_for_each_replica():
    step = tapped(lambda w, x: (w, jax.lax.pmean(loss(w, x), "replica")))
    _, (_, found) = jax.vmap(step, in_axes=(None, 0), axis_name="replica")(W, X.reshape(2, 2, 3))
    np.testing.assert_allclose(found["product"].reshape(4, 2), X @ W, rtol=1e-6)


def test_what_has_many_values_stays_inside():
    def step(w: Any, x: Any) -> Any:
        y, _ = jax.lax.scan(lambda y, _: (marked(jnp.sin(y), "many"), None), x @ w, None, length=3)
        return w, marked(y, "last")

    assert list(values(step, W, X)) == ["last"]


def test_names_of_others_stay_theirs():
    assert values(lambda w, x: (w, jax.ad_checkpoint.checkpoint_name(x, "theirs")), W, X) == {}


def test_a_layer_without_variables_has_no_path_but_its_name():
    layers = keras.layers
    inside = keras.Sequential(
        [keras.Input((2,)), layers.Dense(1, name="dense"), layers.ReLU(name="relu")], name="inside"
    )
    model = keras.Sequential([keras.Input((2,)), inside], name="net")
    model.build((None, 2))
    found = [Marking("net").name_of(layer) for layer in (*inside.layers, inside)]
    assert found == ["inside/dense", "relu", "inside"]
