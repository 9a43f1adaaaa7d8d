"""Flax NNX and Equinox modules in steps."""

from __future__ import annotations

import functools
import gc
import types
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import anytpu as tpu  # isort: skip
from anytpu.errors import ProgramError, ReplicaError

X = np.random.default_rng(0).normal(size=(16, 2)).astype("float32")
Y = X @ np.array([[1.0], [2.0]], "float32")


@pytest.fixture(params=[("virtual", 4), ("twin", 2), ("virtual", 1)], ids=str)
def system(request):
    return tpu.connect(request.param[0], cores=request.param[1])


@pytest.fixture
def four():
    return tpu.connect("virtual", cores=4)


def data(strategy):
    return next(iter(strategy.distribute_dataset([(X, Y)])))


def loss_of(model, x, y):
    return ((model(x) - y) ** 2).mean()


def linear():
    return nnx.Linear(2, 1, rngs=nnx.Rngs(0))


def reduced(gradients):
    return tpu.get_replica_context().all_reduce("MEAN", gradients)


def nnx_step(model, optimizer, metrics, batch):
    loss, gradients = nnx.value_and_grad(loss_of)(model, *batch)
    optimizer.update(model, reduced(gradients))
    metrics.update(loss=loss)
    return loss


def trained_alone():
    model, losses = linear(), []
    optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
    for _ in range(5):
        loss, gradients = nnx.value_and_grad(loss_of)(model, X, Y)
        optimizer.update(model, gradients)
        losses.append(float(loss))
    return np.asarray(model.kernel[...]), losses


def test_an_nnx_module_and_its_optimizer_are_changed_in_place(system):
    model, metrics = linear(), nnx.MultiMetric(loss=nnx.metrics.Average("loss"))
    optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
    before = system.compilations
    for _ in range(5):
        system.run(nnx_step, args=(model, optimizer, metrics, data(system)))
    kernel, losses = trained_alone()
    assert np.allclose(model.kernel[...], kernel, atol=1e-6)
    assert int(optimizer.step[...]) == 5
    assert float(metrics.compute()["loss"]) == pytest.approx(np.mean(losses), rel=1e-6)
    assert system.compilations == before + 1


def test_what_is_assigned_between_two_runs_counts(four):
    model = linear()
    step = lambda model, x: model(x).sum()  # noqa: E731
    four.run(step, args=(model, X))
    model.kernel[...] = jnp.zeros((2, 1))
    assert float(four.run(step, kwargs={"model": model, "x": X}).values[3]) == 0.0


def test_a_metric_that_a_step_resets(four):
    metric = nnx.metrics.Average("loss")
    metric.update(loss=jnp.ones(3))

    def step(metric, x):
        metric.reset()
        metric.update(loss=x)

    four.run(step, args=(metric, tpu.PerReplica([1.0, 2.0, 3.0, 4.0])))
    assert (float(metric.compute()), int(metric.count[...])) == (2.5, 4)


def test_batch_statistics_are_the_mean_and_dropout_differs(four):
    norm, dropout = nnx.BatchNorm(2, momentum=0.5, rngs=nnx.Rngs(0)), nnx.Dropout(0.5, rngs=nnx.Rngs(0))

    def step(norm, dropout, x):
        norm(x)
        return dropout(jnp.ones(64))

    key = jax.random.key_data(dropout.rngs.key[...])
    masks = four.run(step, args=(norm, dropout, data(four)[0]))
    expected = np.mean([0.5 * rows.mean(0) for rows in np.split(X, 4)], axis=0)
    assert np.allclose(norm.mean[...], expected, atol=1e-6)
    assert len({mask.tobytes() for mask in masks.values}) == 4
    assert int(dropout.rngs.count[...]) == 1
    assert jnp.array_equal(jax.random.key_data(dropout.rngs.key[...]), key)


def test_gradients_of_one_replica_alone_are_refused(four):
    def step(model, optimizer, batch):
        _, gradients = nnx.value_and_grad(loss_of)(model, *batch)
        optimizer.update(model, gradients)

    model = linear()
    before = np.asarray(model.kernel[...])
    with pytest.raises(ReplicaError) as error:
        four.run(step, args=(model, nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param), data(four)))
    assert str(error.value) == (
        "The step of 'step' returns a state that differs between its 4 replicas: 'Linear.bias' and 'Linear.kernel'. "
        "State is the same on every core: sum it with jax.lax.psum or average it with jax.lax.pmean, over the axis "
        "'replica', or return it with the outputs, of which each replica has its own. Gradients of one replica alone "
        'are reduced before they are used: tpu.get_replica_context().all_reduce("MEAN", gradients).'
    )
    assert np.array_equal(model.kernel[...], before)


MODEL = None


class Trainer:
    def __init__(self):
        self.count = nnx.Param(jnp.zeros(()))

    def step(self):
        self.count[...] = self.count[...] + 1


@pytest.mark.parametrize("how", ["global", "closure", "attribute"])
def test_a_module_that_is_no_argument_is_refused(four, how):
    global MODEL
    MODEL = model = linear()

    def reads_global(x):
        return MODEL(x)

    def closes_over(x):
        return model(x)

    steps = {"global": reads_global, "closure": closes_over, "attribute": Trainer().step}
    step, what = steps[how], "an NNX object" if how == "attribute" else "the NNX object Linear"
    with pytest.raises(ReplicaError) as error:
        four.run(step, args=() if how == "attribute" else (X,))
    name = step.__name__
    assert str(error.value) == (
        f"{name} uses {what} that is not among its arguments, so that strategy.run can neither pass its values nor "
        f"write new ones back. Pass it: strategy.run({name}, args=(model, optimizer, batch))"
    )


GLOBAL = linear()


class Evaluator:
    """Reaches its modules in every way that an object can."""

    shared = linear()

    def __init__(self):
        self.model, self.other, self.count = linear(), linear(), nnx.Param(jnp.ones(()))
        self.parts = {"models": [linear()]}
        self.inner = types.SimpleNamespace(model=linear(), evaluate=functools.partial(loss_of, linear()))

    def of_an_attribute(self, x):
        return self.model(x).sum()

    def of_a_class(self, x):
        return self.shared(x).sum()

    def of_a_container(self, x):
        return self.parts["models"][0](x).sum()

    def of_an_object(self, x):
        return self.inner.model(x).sum()

    def of_a_partial(self, x):
        return self.inner.evaluate(x, 0.0)

    def of_a_compiled_function(self, x):
        return jax.jit(lambda x: getattr(self, "mo" + "del")(x).sum())(x)

    def of_a_global(self, x):
        return self.called(x)

    def called(self, x):
        return GLOBAL(x).sum()

    def of_a_scalar(self, x):
        return x.sum() * self.count

    def with_an_argument(self, model, x):
        return model(x).sum() * self.other.out_features


@pytest.mark.parametrize("name", [name for name in vars(Evaluator) if name.startswith("of_")])
def test_a_module_that_is_read_through_an_object_is_refused(four, name):
    with pytest.raises(ReplicaError) as error:
        four.run(getattr(Evaluator(), name), args=(X,))
    what = "Param" if name == "of_a_scalar" else "Linear"
    assert str(error.value) == (
        f"{name} uses the NNX object {what} that is not among its arguments, so that strategy.run can neither pass its "
        f"values nor write new ones back. Pass it: strategy.run({name}, args=(model, optimizer, batch))"
    )


def test_a_module_that_is_read_through_a_python_module_is_refused(four):
    settings = types.ModuleType("settings")
    settings.MODEL = linear()
    with pytest.raises(ReplicaError, match="uses the NNX object Linear that is not among its arguments"):
        four.run(lambda x: settings.MODEL(x), args=(X,))


def test_an_object_that_holds_itself_and_an_empty_cell_is_searched(four):
    def refers():
        return later

    one = Evaluator()
    one.itself, one.refers = one, refers
    with pytest.raises(ReplicaError, match="uses the NNX object Linear"):
        four.run(one.of_an_attribute, args=(X,))
    later = None


def test_an_object_may_hold_modules_that_the_step_does_not_read(four):
    one = Evaluator()
    total = four.run(one.with_an_argument, args=(one.model, X)).values[0]
    assert float(total) == pytest.approx(float(one.model(X).sum()), rel=1e-5)
    batches = iter(four.distribute_dataset([X] * 2))
    step = types.MethodType(lambda self, state, x: (state + 1, self.other.out_features), one)
    assert float(four.run_steps(step, batches, 2, state=0.0)[0]) == 2.0


def test_a_module_that_a_step_rebuilds_is_refused(four):
    def step(model):
        model.extra = nnx.Param(jnp.zeros(2))

    with pytest.raises(ReplicaError) as error:
        four.run(step, args=(linear(),))
    assert str(error.value) == (
        "step changes the structure of an NNX module that strategy.run was given: it adds, removes or replaces a part "
        "of it, or changes a non-array attribute. Do that outside of the step, for example model.eval() before "
        "strategy.run"
    )


def test_nnx_modules_as_the_state_of_many_steps(system):
    def step(state, batch):
        model, optimizer = state
        loss, gradients = nnx.value_and_grad(loss_of)(model, *batch)
        optimizer.update(model, reduced(gradients))
        return (model, optimizer), loss

    model = linear()
    given = (model, nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param))
    batches = iter(system.distribute_dataset([(X, Y)] * 5))
    (new, _), _ = system.run_steps(step, batches, 5, state=given)
    assert np.allclose(new.kernel[...], trained_alone()[0], atol=1e-6)
    with pytest.raises(ReplicaError) as error:
        system.run_steps(step, batches, 5, state=(model, model))
    assert str(error.value) == (
        "the state holds an NNX variable of shape (1,) twice, which run_steps would make two variables of. Hold each "
        "module once, for example with nnx.Optimizer(model, tx, wrt=nnx.Param) beside the model, or type "
        "strategy.run(step, args=(model, optimizer, batch))"
    )


class Noisy(nnx.Module):
    """A model with everything that a replica has for itself."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.norm, self.dropout = nnx.BatchNorm(2, momentum=0.5, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)
        self.linear = nnx.Linear(2, 1, rngs=rngs)

    def __call__(self, x):
        return self.linear(self.norm(x)), self.dropout(jnp.ones(64))


def noisy_step(model, optimizer, metric, batch):
    def loss_fn(model):
        predicted, mask = model(batch[0])
        return ((predicted - batch[1]) ** 2).mean(), mask

    (loss, mask), gradients = nnx.value_and_grad(loss_fn, has_aux=True)(model)
    optimizer.update(model, reduced(gradients))
    metric.update(loss=loss)
    return mask


def noisy():
    model = Noisy()
    return model, nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param), nnx.metrics.Average("loss")


def test_random_streams_statistics_and_sums_in_the_state_are_as_in_run(system):
    def step(state, batch):
        return state, noisy_step(*state, batch)

    expected, given = noisy(), noisy()
    # The last batch does not fill all replicas.
    arrays = [(X, Y), (X, Y), (X[:13], Y[:13])]
    masks = [system.run(noisy_step, args=(*expected, batch)) for batch in system.distribute_dataset(arrays)]
    batches = iter(system.distribute_dataset(arrays))
    new, last = system.run_steps(step, batches, 3, state=given)
    assert int(new[0].dropout.rngs.count[...]) == 3
    for mine, theirs in zip(jax.tree.leaves(nnx.state(new)), jax.tree.leaves(nnx.state(expected)), strict=True):
        if jnp.issubdtype(mine.dtype, jax.dtypes.prng_key):
            mine, theirs = jax.random.key_data(mine), jax.random.key_data(theirs)
        assert np.allclose(mine, theirs, atol=1e-6)
    if system.num_replicas_in_sync == 1:
        assert np.array_equal(last, masks[2])
        return
    assert len({mask.tobytes() for mask in last.values}) == system.num_replicas_in_sync
    assert np.array_equal(last.stacked(), masks[2].stacked())
    assert int(given[0].dropout.rngs.count[...]) == 0


def test_a_module_in_the_state_that_comes_back_as_another_is_refused(four):
    batches = iter(four.distribute_dataset([X]))
    with pytest.raises(
        ProgramError, match=r"^The step of '<lambda>' must return a state of the same structure as the one"
    ):
        four.run_steps(lambda state, batch: ((state, 0.0), None), batches, 1, state=linear())


OPTIMIZER = optax.adam(0.1)


def eqx_loss(model, x, y):
    return ((jax.vmap(model)(x) - y) ** 2).mean()


def eqx_start():
    model = eqx.nn.MLP(2, 1, 8, 1, key=jax.random.key(0))
    return model, OPTIMIZER.init(eqx.filter(model, eqx.is_array))


def eqx_update(model, state, gradients):
    updates, state = OPTIMIZER.update(gradients, state, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), state


def eqx_step(model, state, batch):
    loss, gradients = eqx.filter_value_and_grad(eqx_loss)(model, *batch)
    return *eqx_update(model, state, reduced(gradients)), loss


def eqx_alone():
    model, state = eqx_start()
    for _ in range(5):
        _, gradients = eqx.filter_value_and_grad(eqx_loss)(model, X, Y)
        model, state = eqx_update(model, state, gradients)
    return model


def near(model, other):
    for mine, theirs in zip(jax.tree.leaves(model), jax.tree.leaves(other), strict=True):
        assert np.allclose(mine, theirs, atol=1e-6) if isinstance(theirs, jax.Array) else mine is theirs


def test_equinox_modules_go_in_and_come_out(system):
    model, state = eqx_start()
    for _ in range(5):
        model, state, _ = system.run(eqx_step, args=(model, state, data(system)))
    first = jax.tree.map(
        lambda one: one.values[0] if isinstance(one, tpu.PerReplica) else one,
        model,
        is_leaf=lambda one: isinstance(one, tpu.PerReplica),
    )
    near(first, eqx_alone())


def test_an_equinox_module_as_the_state_of_many_steps(system):
    def step(state, batch):
        model, state, loss = eqx_step(*state, batch)
        return (model, state), loss

    batches = iter(system.distribute_dataset([(X, Y)] * 5))
    (model, _), _ = system.run_steps(step, batches, 5, state=eqx_start())
    near(model, eqx_alone())
    assert float(eqx_loss(model, X, Y)) > 0


def test_what_is_no_array_in_an_equinox_module_is_part_of_the_step(four):
    class Scaled(eqx.Module):
        layer: eqx.nn.Linear
        times: int

    def step(model, x):
        assert type(model.times) is int
        return model, sum(model.layer(row).sum() for row in x[: model.times])

    layer = eqx.nn.Linear(2, 1, key=jax.random.key(0))
    before = four.compilations
    for times in (2, 2, 3):
        model, _ = four.run(step, args=(Scaled(layer, times), X))
        assert model.times == times
    assert four.compilations == before + 2


class Scaled:
    """An object that is neither a module nor an array, and holds arrays."""

    def __init__(self):
        self.factor = jnp.ones(3)

    def __call__(self, x):
        return x * self.factor.sum()


def nnx_module(scaled):
    model = linear()
    model.scaled = scaled
    return model


def run_nnx(strategy):
    scaled = Scaled()
    model = nnx_module(lambda x: scaled(x))
    strategy.run(lambda model, x: model.scaled(model(x)), args=(model, X))
    return [model, scaled]


def run_nnx_with_an_object(strategy):
    model = nnx_module(Scaled())
    strategy.run(lambda model, x: model.scaled(model(x)), args=(model, X))
    return [model, model.scaled]


def run_nnx_with_an_optimizer(strategy):
    model, scaled, metrics = linear(), Scaled(), nnx.MultiMetric(loss=nnx.metrics.Average("loss"))
    optimizer = nnx.Optimizer(model, optax.sgd(lambda step: 0.1 * scaled(1.0)), wrt=nnx.Param)
    strategy.run(nnx_step, args=(model, optimizer, metrics, data(strategy)))
    return [model, optimizer, scaled]


class EquinoxScaled(eqx.Module):
    layer: eqx.nn.Linear
    scaled: object


def run_equinox(strategy):
    model = EquinoxScaled(eqx.nn.Linear(2, 1, key=jax.random.key(0)), Scaled())
    new = strategy.run(lambda model, x: (model, model.scaled(x)), args=(model, X))[0]
    assert new.scaled is model.scaled
    return [model, model.scaled, new]


@pytest.mark.parametrize("use", [run_nnx, run_nnx_with_an_object, run_nnx_with_an_optimizer, run_equinox])
def test_a_module_that_is_dropped_is_freed(four, use):
    use(four)
    gc.collect()
    arrays, steps = len(jax.live_arrays()), len(four._steps)
    gone = [weakref.ref(owner) for _ in range(3) for owner in use(four)]
    gc.collect()
    assert [reference() for reference in gone] == [None] * len(gone)
    assert (len(jax.live_arrays()), len(four._steps)) == (arrays, steps)


def test_modules_of_equal_parts_are_one_step(four):
    def step(model, x):
        return model(x).sum()

    before = four.compilations
    for _ in range(3):
        four.run(step, args=(linear(), X))
    assert four.compilations == before + 1


@pytest.mark.parametrize("is_loop", [False, True], ids=["run", "run_steps"])
def test_synchronised_statistics_of_a_batch_that_does_not_fill_all_replicas(is_loop):
    strategy = tpu.connect("virtual", cores=4)
    norm = nnx.BatchNorm(2, momentum=0.0, axis_name="replica", rngs=nnx.Rngs(0))

    def step(norm, x):
        return (norm, norm(x).sum()) if is_loop else norm(x).sum()

    def train(rows):
        batches = strategy.distribute_dataset([X[:rows]])
        if not is_loop:
            strategy.run(step, args=(norm, next(iter(batches))))
            return norm
        return strategy.run_steps(step, iter(batches), 1, state=norm)[0]

    np.testing.assert_allclose(train(16).mean[...], X.mean(0), rtol=1e-5, atol=1e-6)
    with pytest.raises(ReplicaError) as caught:
        train(14)
    assert str(caught.value) == (
        "an nnx.BatchNorm with axis_name='replica' was given a batch that does not fill all replicas, and takes the "
        "mean of the replicas' statistics, whatever their rows. Leave such a batch out, with batch(rows, "
        "drop_remainder=True), or leave axis_name out: each replica normalises its own rows then"
    )
