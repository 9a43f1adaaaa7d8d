"""Steps and models of Flax NNX and Equinox as Programs, beside the frameworks' own results."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import anytpu as tpu
from anytpu.errors import ProgramError

X, Y = jax.ShapeDtypeStruct((16, 8), "float32"), jax.ShapeDtypeStruct((16,), "int32")


class Net(nnx.Module):
    """Two layers, dropout and batch statistics."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([nnx.Linear(8, 8, rngs=rngs), nnx.Linear(8, 4, rngs=rngs)])
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.layers[1](self.drop(jax.nn.relu(self.norm(self.layers[0](x)))))


def loss_of(model: Any, x: Any, y: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()


@nnx.jit
def train_step(model: Net, optimizer: nnx.Optimizer, x: Any, y: Any) -> Any:
    loss, gradients = nnx.value_and_grad(loss_of)(model, x, y)
    optimizer.update(model, gradients)
    return loss


def made() -> tuple[Any, Any]:
    model = Net(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)


def arrays() -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    return random.random((16, 8), dtype="float32"), random.integers(0, 4, 16).astype("int32")


def test_a_step_of_nnx_is_that_of_the_program():
    model, optimizer = made()
    program = tpu.program.of(train_step, (model, optimizer, *arrays()), tensors=True)
    assert program.name == "train_step/train" and program.rows == 16
    x, y = arrays()
    state, losses = program.tensors, []
    for _ in range(3):
        state, loss = jax.jit(program.step)(state, {"x": x, "y": y})
        losses.append(float(loss))
    wanted = [float(train_step(model, optimizer, x, y)) for _ in range(3)]
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    np.testing.assert_allclose(state["model/layers/0/kernel"], model.layers[0].kernel.get_value(), rtol=1e-4, atol=1e-6)


def test_arrays_and_layers_have_the_names_of_nnx():
    model, optimizer = nnx.eval_shape(made)
    program = tpu.program.of(train_step, (model, optimizer, X, Y))
    kinds = dict(zip(program.state_names, program.state_kinds, strict=True))
    assert kinds["model/layers/1/kernel"] == "weights"
    assert kinds["model/norm/mean"] == kinds["model/drop/rngs/key"] == "frozen"
    assert kinds["optimizer/opt_state/0/mu/layers/1/kernel"] == kinds["optimizer/step"] == "slots"
    prediction = tpu.plan(train_step, tpu="v5e-1", input_specs=(model, optimizer, X, Y))["v5e-1"]
    assert {"layers/0", "layers/1", "norm"} <= {op.layer for op in prediction.time.ops}
    assert not hasattr(model.layers[0], "_anytpu_path") and "named" not in nnx.Linear.__call__.__qualname__


def test_a_model_a_loss_and_an_optimizer():
    model, optimizer = nnx.eval_shape(made)
    trained = tpu.program.of((model, optimizer, loss_of), (X, Y), batch_size=32)
    assert trained.name == "Net/train" and trained.rows == 32
    by_step = tpu.program.of(train_step, (model, optimizer, X, Y), batch_size=32)
    assert trained.state == by_step.state

    def with_outputs(model: Any, x: Any, y: Any) -> Any:
        return loss_of(model, x, y), model(x)

    tpu.program.of((model, optimizer, with_outputs), (X, Y))
    inferred = tpu.program.of(model, X, mode="infer")
    assert inferred.mode == "infer" and "optimizer/step" not in inferred.state_names
    _, outputs = jax.eval_shape(inferred.step, inferred.state, inferred.batch)
    assert outputs.shape == (16, 4)


@nnx.jit
def growing(model: Net, x: Any) -> Any:
    model.seen = nnx.Param(x.sum())
    return model(x).sum()


def plain(model: Net, x: Any) -> Any:
    return model(x).sum()


NO_SPECS = (
    "'train_step' needs input_specs: the arguments of the step, such as (model, optimizer, x, y); for a model or "
    "(model, optimizer, loss) those of the batch, such as (x, y)"
)
NO_OBJECT = (
    "'train_step' gets no NNX object. Give the arguments of the step as input_specs, the model and the optimizer "
    "included: input_specs=(model, optimizer, x, y)"
)
GROWS = (
    "'growing' changes the structure of its modules: it adds 'seen'. Make every array in the module's __init__, and "
    "return other results from the step"
)
NO_STEP = (
    "'Net' cannot be planned with mode='train'. A model alone has no training step: give mode=\"infer\", or the triple "
    "(model, optimizer, loss)"
)
NO_INFERENCE = (
    "'Net' cannot be planned with mode='infer'. A triple (model, optimizer, loss) is a training step: leave "
    'mode="infer" out, or give the model'
)
NO_SCALAR = "the loss of 'Net' must return a scalar, or a pair (scalar, other outputs)"
PLAIN = (
    "The function of 'plain/train' gets modules of Flax NNX or Equinox. Compile it as they do, with nnx.jit or "
    "eqx.filter_jit: @nnx.jit above it."
)
FEW = "the step takes 2 arguments, model, x, and input_specs has 3. Give one for each"


@pytest.mark.parametrize(
    ("job", "specs", "settings", "text"),
    [
        (train_step, None, {}, NO_SPECS),
        (train_step, (X, Y, X, Y), {}, NO_OBJECT),
        (growing, "model", {}, GROWS),
        (growing, "too many", {}, FEW),
        (plain, "model", {}, PLAIN),
        ("model", X, {}, NO_STEP),
        ("triple", (X, Y), {"mode": "infer"}, NO_INFERENCE),
        ("vector", (X, Y), {}, NO_SCALAR),
    ],
)
def test_what_is_refused(job: Any, specs: Any, settings: dict[str, Any], text: str):
    model, optimizer = nnx.eval_shape(made)
    triples = {"triple": (model, optimizer, loss_of), "vector": (model, optimizer, lambda model, x, y: model(x))}
    job = {"model": model, **triples}[job] if isinstance(job, str) else job
    specs = {"model": (model, X), "too many": (model, X, Y)}[specs] if isinstance(specs, str) else specs
    with pytest.raises(ProgramError) as error:
        tpu.program.of(job, specs, **settings)
    assert str(error.value) == text


class Mlp(eqx.Module):
    """Two layers, for one example."""

    layers: list[Any]

    def __init__(self, key: Any) -> None:
        first, second = jax.random.split(key)
        self.layers = [eqx.nn.Linear(8, 8, key=first), jax.nn.relu, eqx.nn.Linear(8, 4, key=second)]

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


ADAM = optax.adam(1e-2)


@eqx.filter_jit
def make_step(model: Mlp, opt_state: Any, x: Any, y: Any) -> Any:
    def loss_of(model: Mlp) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(x), y).mean()

    loss, gradients = eqx.filter_value_and_grad(loss_of)(model)
    updates, opt_state = ADAM.update(gradients, opt_state)
    return loss, eqx.apply_updates(model, updates), opt_state


def equinox_made() -> tuple[Any, Any]:
    model = Mlp(jax.random.key(0))
    return model, ADAM.init(eqx.filter(model, eqx.is_array))


def test_a_step_of_equinox_is_that_of_the_program():
    model, opt_state = equinox_made()
    program = tpu.program.of(make_step, (model, opt_state, *arrays()), tensors=True)
    assert program.name == "make_step/train" and program.rows == 16
    x, y = arrays()
    state = program.tensors
    for _ in range(3):
        state, (loss,) = jax.jit(program.step)(state, {"x": x, "y": y})
        wanted, model, opt_state = make_step(model, opt_state, x, y)
        np.testing.assert_allclose(loss, wanted, rtol=1e-5)
    np.testing.assert_allclose(state["model/layers/0/weight"], model.layers[0].weight, rtol=1e-4, atol=1e-6)
    kinds = dict(zip(program.state_names, program.state_kinds, strict=True))
    assert kinds["model/layers/2/bias"] == "weights" and kinds["opt_state/0/mu/layers/2/bias"] == "slots"


def test_an_equinox_model_of_shapes_is_planned():
    model, opt_state = eqx.filter_eval_shape(equinox_made)
    assert tpu.plan(make_step, tpu="v5e-1", input_specs=(model, opt_state, X, Y), batch_size=64)["v5e-1"].fits
    inferred = tpu.program.of(model, X, mode="infer")
    _, (outputs,) = jax.eval_shape(inferred.step, inferred.state, inferred.batch)
    assert outputs.shape == (16, 4)


def test_a_step_that_returns_no_state():
    model, _ = eqx.filter_eval_shape(equinox_made)

    @eqx.filter_jit
    def evaluate(model: Mlp, x: Any) -> Any:
        return jnp.square(jax.vmap(model)(x)).mean()

    with pytest.raises(ProgramError) as error:
        tpu.program.of(evaluate, (model, X))
    assert str(error.value) == (
        "'evaluate' returns none of its arguments anew. Return the new model and optimizer state from the step: return "
        "model, opt_state, loss"
    )
