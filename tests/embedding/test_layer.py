"""`ShardedEmbedding` in fit, beside a dense `keras.layers.Embedding` and NumPy."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.embedding import ShardedEmbedding
from anytpu.errors import DataError, NaNLossError, ProgramError, ReplicaError, SettingError
from anytpu.planning.ways.changed_steps import with_narrow_slots
from error_texts import error_text
from forked import python

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]

IDS, WIDTH = 40, 3


@pytest.fixture
def float64() -> Any:
    before = keras.config.floatx()
    jax.config.update("jax_enable_x64", True)
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(before)
    keras.config.set_dtype_policy(before)
    jax.config.update("jax_enable_x64", False)


def rows(count: int = 50, size: int = 5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    # Skewed: most ids occur several times in a batch.
    return (rng.zipf(1.5, (count, size)) % IDS).astype("int32"), rng.normal(size=(count, 1))


class Bags(keras.layers.Layer):
    """A dense Embedding, combined in the reference's own words."""

    def __init__(self, combiner: str) -> None:
        super().__init__()
        self.table = keras.layers.Embedding(IDS, WIDTH)
        self.combiner = combiner

    def call(self, ids: Any) -> Any:
        total = keras.ops.sum(self.table(ids), axis=1)
        size = ids.shape[1]
        return total / {"sum": 1.0, "mean": size, "sqrtn": size**0.5}[self.combiner]


def loss() -> Any:
    # Keras divides the sum of a loss by a number of float32, so it is not divided here.
    return keras.losses.MeanSquaredError(reduction="sum")


def model_of(layer: Any, size: int = 5) -> Any:
    ids = keras.Input((size,), dtype="int32")
    model: Any = keras.Model(ids, keras.layers.Dense(1, kernel_initializer="ones")(layer(ids)))
    model.compile(keras.optimizers.SGD(0.005), loss())
    return model


def trained(layer: Any, **settings: Any) -> Any:
    with tpu.connect("virtual", cores=4).scope():
        model = model_of(layer)
    model.layers[1].embeddings = np.linspace(-1, 1, IDS * WIDTH).reshape(IDS, WIDTH)
    model.fit(*rows(), batch_size=10, shuffle=False, verbose=0, **settings)
    return model


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("make", [lambda: keras.optimizers.SGD(0.01), lambda: keras.optimizers.Adagrad(0.1)])
def test_equal_to_a_dense_embedding(make: Any, combiner: str):
    dense = model_of(Bags(combiner))
    dense.compile(make(), loss())
    dense.layers[1].table.set_weights([np.linspace(-1, 1, IDS * WIDTH).reshape(IDS, WIDTH)])
    with tpu.connect("virtual", cores=4).scope():
        ours = model_of(ShardedEmbedding(IDS, WIDTH, combiner, make()))
        ours.compile(make(), loss())
    ours.layers[1].embeddings = np.linspace(-1, 1, IDS * WIDTH).reshape(IDS, WIDTH)
    histories = [
        model.fit(*rows(), batch_size=10, epochs=2, shuffle=False, verbose=0).history for model in (ours, dense)
    ]
    np.testing.assert_allclose(histories[0]["loss"], histories[1]["loss"], rtol=1e-12)
    np.testing.assert_allclose(ours.layers[1].embeddings, dense.layers[1].table.embeddings.value, rtol=0, atol=1e-12)


def by_numpy(optimizer: str, settings: dict[str, float], steps: int) -> np.ndarray:
    """Train the table of `trained` with a lazy optimizer, the dense layer fixed at ones by a rate of 0."""
    table = np.linspace(-1, 1, IDS * WIDTH).reshape(IDS, WIDTH)
    start = 0.1 if optimizer == "Ftrl" else 0.0
    first, second = np.full_like(table, start), np.zeros_like(table)
    x, y = rows()
    for step in range(1, steps + 1):
        part = slice((step - 1) % 5 * 10, (step - 1) % 5 * 10 + 10)
        ids, target = x[part], y[part]
        error = table[ids].sum(1).sum(1, keepdims=True) - target
        gradient = np.zeros_like(table)
        np.add.at(gradient, ids, np.repeat(2 * error, ids.shape[1], 1)[..., None] * np.ones(WIDTH))
        used = np.unique(ids)
        g, rate = gradient[used], settings["learning_rate"]
        if optimizer == "SGD":
            first[used] = settings["momentum"] * first[used] - rate * g
            nesterov = settings["momentum"] * first[used] - rate * g
            table[used] += nesterov if settings.get("nesterov") else first[used]
        elif optimizer == "Adam":
            first[used] += 0.1 * (g - first[used])
            second[used] += 0.001 * (g * g - second[used])
            scaled = rate * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
            table[used] -= scaled * first[used] / (np.sqrt(second[used]) + 1e-7)
        else:
            total = first[used] + g * g
            second[used] += g - (np.sqrt(total) - np.sqrt(first[used])) / rate * table[used]
            shrunk = np.clip(second[used], -settings["l1"], settings["l1"]) - second[used]
            table[used] = shrunk / (np.sqrt(total) / rate + 2 * settings["l2"])
            first[used] = total
    return table


LAZY = [
    ("SGD", {"learning_rate": 0.005, "momentum": 0.9}, {}),
    ("SGD", {"learning_rate": 0.005, "momentum": 0.9, "nesterov": True}, {}),
    ("Adam", {"learning_rate": 0.05}, {}),
    (
        "Ftrl",
        {"learning_rate": 0.05, "l1_regularization_strength": 0.01, "l2_regularization_strength": 0.02},
        {"l1": 0.01, "l2": 0.02},
    ),
]


@pytest.mark.parametrize(("name", "settings", "also"), LAZY, ids=["momentum", "nesterov", "Adam", "Ftrl"])
def test_lazy_optimizers_beside_numpy(name: str, settings: dict, also: dict):
    with tpu.connect("virtual", cores=4).scope():
        model = model_of(ShardedEmbedding(IDS, WIDTH, "sum", getattr(keras.optimizers, name)(**settings)))
        model.layers[2].trainable = False
        model.compile("sgd", loss())
    model.layers[1].embeddings = np.linspace(-1, 1, IDS * WIDTH).reshape(IDS, WIDTH)
    model.fit(*rows(), batch_size=10, epochs=3, shuffle=False, verbose=0)
    expected = by_numpy(name, {**settings, **also}, 15)
    np.testing.assert_allclose(model.layers[1].embeddings, expected, rtol=0, atol=1e-12)


def test_clipping_and_a_schedule():
    # All ids in each batch, so that a dense optimizer sees the same rows.
    x = np.stack([np.arange(IDS, dtype="int32").reshape(8, 5)] * 3).reshape(24, 5)
    y = np.random.default_rng(1).normal(size=(24, 1)) * 5
    results = []
    for is_ours in (True, False):
        rate = keras.optimizers.schedules.ExponentialDecay(0.3, 2, 0.5)
        optimizer = keras.optimizers.Adam(rate, clipnorm=0.2)
        with tpu.connect("virtual", cores=2).scope():
            model = model_of(ShardedEmbedding(IDS, WIDTH, "sum", optimizer) if is_ours else Bags("sum"))
            model.layers[2].trainable = False
            model.compile("sgd" if is_ours else optimizer, loss())
        start = np.linspace(-1, 1, IDS * WIDTH).reshape(IDS, WIDTH)
        if is_ours:
            model.layers[1].embeddings = start
        else:
            model.layers[1].table.set_weights([start])
        model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
        results.append(np.array(model.layers[1].embeddings if is_ours else model.layers[1].table.embeddings.value))
    np.testing.assert_allclose(*results, rtol=0, atol=1e-10)


def test_features_that_share_a_table_and_weights():
    ids = {
        "liked": keras.Input((3,), dtype="int32", name="liked"),
        "seen": keras.Input((4,), dtype="int32", name="seen"),
    }
    weights = {name: keras.Input(ids[name].shape[1:], name=f"{name}_weights") for name in ids}
    with tpu.connect("virtual", cores=2).scope():
        layer = ShardedEmbedding(IDS, WIDTH, "mean", keras.optimizers.Adagrad(0.1))
        out = layer(ids, weights=weights)
        model = keras.Model([*ids.values(), *weights.values()], keras.ops.concatenate([out["liked"], out["seen"]], 1))
        model.compile("sgd", loss())
    start = np.linspace(-1, 1, IDS * WIDTH).reshape(IDS, WIDTH)
    layer.embeddings = start
    rng = np.random.default_rng(3)
    x = {"liked": rng.integers(0, IDS, (8, 3)), "seen": rng.integers(0, IDS, (8, 4))}
    w = {name: rng.random(array.shape) for name, array in x.items()}
    y = rng.normal(size=(8, 2 * WIDTH))
    x["seen"][0] = -1  # An empty bag.
    x["liked"][1, 2] = -1

    def squares(table: Any) -> Any:
        parts = []
        for name in ("liked", "seen"):
            real = (x[name] >= 0) * w[name]
            total = jnp.einsum("bs,bsw->bw", real, table[x[name]])
            parts.append(total / np.maximum(real.sum(1, keepdims=True), 1e-300))
        return jnp.sum((jnp.concatenate(parts, 1) - y) ** 2) / (2 * WIDTH)

    value, gradient = jax.value_and_grad(squares)(jnp.asarray(start))
    expected = start - 0.1 * gradient / np.sqrt(0.1 + gradient**2 + 1e-7)
    fed = {**x, **{f"{name}_weights": array for name, array in w.items()}}
    history = model.fit(fed, y, batch_size=8, verbose=0).history
    np.testing.assert_allclose(history["loss"][0], value, rtol=1e-6)  # Keras adds losses up in float32.
    np.testing.assert_allclose(layer.embeddings, expected, rtol=0, atol=1e-8)  # Keras divides by float32.


def test_sequences_are_not_combined_and_masked():
    layer = ShardedEmbedding(IDS, WIDTH, mask_padding=True)
    ids = np.array([[3, 5, -1], [7, -1, -1]])
    result = np.array(layer(ids))
    assert result.shape == (2, 3, WIDTH)
    np.testing.assert_array_equal(result[0, 1], layer.embeddings[5])
    assert not result[ids == -1].any()
    assert np.array(layer.compute_mask(jnp.asarray(ids))).tolist() == [[True, True, False], [True, False, False]]
    assert ShardedEmbedding(IDS, WIDTH)(np.array([1, 2])).shape == (2, WIDTH)


def test_no_ids():
    for combiner, shape in (("sum", (2, WIDTH)), ("mean", (2, WIDTH)), (None, (2, 0, WIDTH))):
        layer = ShardedEmbedding(IDS, WIDTH, combiner)
        result = np.asarray(layer(np.zeros((2, 0), "int32")))
        assert result.shape == shape
        assert not result.any()
        assert np.asarray(layer(np.zeros((2, 0), "int32"), weights=np.zeros((2, 0)))).shape == shape
        assert layer(np.zeros((0, 3), "int32")).shape == ((0, WIDTH) if combiner else (0, 3, WIDTH))
    with tpu.connect("virtual", cores=2).scope():
        model = model_of(ShardedEmbedding(IDS, WIDTH, "sum"), None)  # pyright: ignore[reportArgumentType]
    before = np.asarray(model.layers[1].embeddings)
    model.fit(np.zeros((4, 0), "int32"), np.ones((4, 1)), verbose=0)
    np.testing.assert_array_equal(model.layers[1].embeddings, before)


def test_a_bad_id_that_the_model_computes_makes_its_bag_nan():
    layer = ShardedEmbedding(IDS, WIDTH, "sum")
    result = np.array(layer(np.array([[1, IDS], [2, 3], [-2, 0]])))
    assert np.isnan(result).all(axis=1).tolist() == [True, False, True]
    dropping = ShardedEmbedding(IDS, WIDTH, "sum", on_bad_id="drop")
    dropping.build(None)
    np.testing.assert_array_equal(dropping(np.array([[1, IDS]]))[0], dropping.embeddings[1])


@pytest.mark.parametrize("on_bad_id", ["raise", "drop"])
def test_bad_ids_of_inputs(on_bad_id: str):
    with tpu.connect("virtual", cores=2).scope():
        model = model_of(ShardedEmbedding(IDS, WIDTH, "sum", on_bad_id=on_bad_id, name="movies"))
    x, y = rows()
    x = x.astype("int64")
    x[7, 2], x[9, 0] = 2**32 + 3, -5
    name = model.inputs[0].name
    if on_bad_id == "drop":
        before = np.array(model.layers[1].embeddings)
        model.fit(np.where((x < 0) | (x >= IDS), -1, x), y, batch_size=10, shuffle=False, verbose=0)
        expected = np.array(model.layers[1].embeddings)
        with tpu.connect("virtual", cores=2).scope():
            model = model_of(ShardedEmbedding(IDS, WIDTH, "sum", on_bad_id="drop"))
        model.layers[1].embeddings = before
        model.fit(x, y, batch_size=10, shuffle=False, verbose=0)
        np.testing.assert_array_equal(model.layers[1].embeddings, expected)
        return
    message = (
        f"x[{name!r}], row 7, has the id 4,294,967,299 (2 such ids), and the table 'movies' has the ids 0 to 39; -1 "
        'stands for no id. Enlarge input_dim, or pass on_bad_id="drop" to leave such ids out'
    )
    for call in (
        lambda: model.fit(x, y, verbose=0),
        lambda: model.predict(x, verbose=0),
        lambda: model.train_on_batch(x, y),
    ):
        assert error_text(call, kind=DataError) == message


def test_weights_that_are_nan():
    ids, weights = keras.Input((2,), dtype="int32", name="ids"), keras.Input((2,), name="seconds")
    with tpu.connect("virtual", cores=2).scope():
        model = keras.Model([ids, weights], ShardedEmbedding(IDS, WIDTH, "sum")(ids, weights))
        model.compile("sgd", "mse")
    assert error_text(
        lambda: model.predict([np.ones((3, 2), int), np.array([[1.0, 1], [np.nan, 2], [1, 1]])], verbose=0),
        kind=DataError,
    ) == (
        "x['seconds'], row 1, has the weight nan: the weight of an id must be a finite number, and 0 leaves the id out"
    )


def two_inputs(result: Any, layer: Any, **settings: Any) -> Any:
    """Return a model `result(layer, first, second)` of two inputs of ids, compiled in a scope."""
    first, second = keras.Input((2,), dtype="int32"), keras.Input((2,), dtype="int32")
    with tpu.connect("virtual", cores=2).scope():
        model: Any = keras.Model([first, second], result(layer, first, second))
        model.compile(**{"optimizer": "sgd", "loss": "mse", **settings})
    return model


IDS_OF_TWO = [np.arange(8).reshape(4, 2), np.arange(8, 16).reshape(4, 2)]


def test_two_calls_in_a_training_step_are_refused():
    layer = ShardedEmbedding(IDS, WIDTH, "sum", name="movies")
    model = two_inputs(lambda layer, a, b: layer(a) + layer(b), layer)
    assert model.predict(IDS_OF_TWO, verbose=0).shape == (4, WIDTH)
    assert error_text(lambda: model.fit(IDS_OF_TWO, np.ones((4, WIDTH)), verbose=0), kind=ProgramError) == (
        "'movies' has 2 backward passes in one step, and each makes a table of its own. Call it once with all ids that "
        'use this table: liked, seen = layer({"liked": a, "seen": b}).values()'
    )


def test_a_table_that_the_loss_does_not_reach_stays():
    layer, dense = ShardedEmbedding(IDS, WIDTH, "sum", "adagrad"), keras.layers.Embedding(IDS, WIDTH)
    model = two_inputs(lambda layer, a, b: [keras.ops.sum(dense(a), 1), layer(b)], layer, loss=["mse", None])
    before = np.array(layer.embeddings)
    model.fit(IDS_OF_TWO, [np.ones((4, WIDTH)), np.ones((4, WIDTH))], epochs=2, verbose=0)
    np.testing.assert_array_equal(layer.embeddings, before)
    assert float(np.asarray(layer.steps.value)) == 0


def test_a_loss_of_the_array_is_refused():
    layer = ShardedEmbedding(IDS, WIDTH, "sum", name="movies")

    class Scores(keras.layers.Layer):
        def call(self, vectors: Any) -> Any:
            return vectors @ layer.embeddings.T

        def compute_output_shape(self, shape: Any) -> Any:
            return (shape[0], IDS)

    model = two_inputs(lambda layer, a, b: Scores()(layer(a)), layer)
    with pytest.raises(ProgramError, match="the loss depends on the embeddings of 'movies' as an array"):
        model.fit(IDS_OF_TWO, np.ones((4, IDS)), verbose=0)


@pytest.mark.parametrize(
    ("optimizer", "named"),
    [
        (lambda: keras.optimizers.SGD(gradient_accumulation_steps=2), "gradient_accumulation_steps=2"),
        (lambda: keras.optimizers.SGD(loss_scale_factor=8.0), "loss_scale_factor=8.0"),
        (lambda: keras.optimizers.SGD(use_ema=True, ema_overwrite_frequency=3), "ema_overwrite_frequency=3"),
        (
            lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()),
            "LossScaleOptimizer, which mixed_float16 adds by itself",
        ),
    ],
)
def test_optimizers_that_would_change_an_assigned_table_are_refused(optimizer: Any, named: str):
    with tpu.connect("virtual", cores=2).scope():
        model = model_of(ShardedEmbedding(IDS, WIDTH, "sum", name="movies"))
        model.compile(optimizer(), loss())
    assert error_text(lambda: model.fit(*rows(), verbose=0), kind=SettingError) == (
        f"the table of 'movies' is assigned by the optimizer of the model, and {named} would change that table. Leave "
        'it out; for half precision use keras.config.set_dtype_policy("mixed_bfloat16")'
    )


def test_passes_that_jax_hides_become_nan():
    layer = ShardedEmbedding(IDS, WIDTH, "sum", "sgd")
    layer.build(None)
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(layer.trainable_variables)
    fixed = [variable.value for variable in layer.non_trainable_variables]

    def summed(values: Any) -> Any:
        def body(total: Any, ids: Any) -> Any:
            return total + layer.stateless_call(values, fixed, ids)[0].sum(), None

        return jax.lax.scan(body, jnp.zeros(()), jnp.arange(6).reshape(3, 1, 2))[0]

    values = [variable.value for variable in layer.trainable_variables]
    gradients = jax.grad(summed)(values)
    new, _ = optimizer.stateless_apply([v.value for v in optimizer.variables], gradients, values)
    # The step count, from which the next update is computed.
    (count,) = [v for v, variable in zip(new, layer.trainable_variables, strict=True) if variable is layer.steps]
    assert np.isnan(count)  # pyright: ignore


def test_float_ids_that_cannot_hold_all():
    layer = ShardedEmbedding(2**24 + 8, 1, "sum", "sgd", name="users")
    assert error_text(lambda: layer._check_dtype("float32"), kind=SettingError) == (
        "ids of 'users' are float32, which does not hold every integer below 16,777,224: give the input a type, "
        'keras.Input(..., dtype="int32")'
    )


def test_in_a_step_of_one_replica_it_is_refused():
    strategy = tpu.connect("virtual", cores=2)
    with strategy.scope():
        layer = ShardedEmbedding(IDS, WIDTH, "sum", name="movies")
        layer.build(None)
    with pytest.raises(ReplicaError) as caught:
        strategy.run(lambda ids: layer(ids), args=(jnp.ones((4, 2), "int32"),))
    assert "the table of 'movies' is trained by whole-batch code" in str(caught.value)
    assert "tpu.embedding.TPUEmbedding" in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input_dim": 0}, "input_dim must be a positive integer, not 0"),
        ({"output_dim": 2.5}, "output_dim must be a positive integer, not 2.5"),
        (
            {"input_dim": 2**31},
            "input_dim is 2,147,483,648, and ids are of 32 bits: a table has at most 2,130,706,432 rows. Split it into "
            "tables of fewer ids, or hash the ids into fewer",
        ),
        ({"combiner": "max"}, 'combiner must be "sum", "mean", "sqrtn" or None, not \'max\''),
        ({"on_bad_id": "skip"}, 'on_bad_id must be "raise" or "drop", not \'skip\''),
        (
            {"mask_zero": True},
            "mask_zero of keras.layers.Embedding is not supported by a ShardedEmbedding: 0 is an id like any other. "
            "Fill rows up with -1 (tpu.embedding.pad_ids), and pass mask_padding=True",
        ),
        (
            {"embeddings_regularizer": "l2"},
            "embeddings_regularizer of keras.layers.Embedding is not supported by a ShardedEmbedding: it changes all "
            "rows at each step. Leave it out, or regularize the layer's result with "
            "keras.layers.ActivityRegularization",
        ),
        (
            {"optimizer": "adamm"},
            "the optimizer of a table must be SGD, Adagrad, Adam or Ftrl, one of Keras's or its name, not 'adamm'",
        ),
        (
            {"optimizer": "rmsprop"},
            "RMSprop has no update of single rows here: the optimizer of a table must be SGD, Adagrad, Adam or Ftrl. "
            "The other weights of the model may have any optimizer, in model.compile",
        ),
        (
            {"optimizer": keras.optimizers.Adam(weight_decay=0.1)},
            "Adam(weight_decay=0.1) does not fit a table: it changes all rows at each step. Leave it out of the "
            "table's optimizer",
        ),
    ],
)
def test_wrong_arguments(arguments: dict, message: str):
    assert (
        error_text(lambda: ShardedEmbedding(**{"input_dim": 4, "output_dim": 2, **arguments}), kind=SettingError)
        == message
    )


def test_a_table_that_fits_nowhere():
    with tpu.connect("virtual", cores=8).scope(), pytest.raises(SettingError) as caught:
        ShardedEmbedding(2_000_000_000, 64, "sum", name="users").build(None)
    message = str(caught.value)
    assert message.startswith("the table of 'users' takes 2.79 TiB with the slots of Adam, 2.79 TiB in this machine, ")
    assert message.endswith(
        "or hash the ids into fewer (tpu.pipeline.hash_ids). To learn which TPU slice holds it, make the model within "
        "tpu.shapes_only(), and type tpu.plan(model, batch)"
    )
    with tpu.connect("virtual", cores=8).scope(), tpu.shapes_only():
        ShardedEmbedding(2_000_000_000, 64, "sum", name="users").build(None)


def test_the_slots_of_a_table_are_slots_of_its_program_and_keep_their_type():
    keras.config.set_dtype_policy("float32")  # The fixture sets float64, and restores the policy.
    ids = keras.Input((3,), dtype="int32")
    dense = keras.layers.Dense(1)(ShardedEmbedding(100, 4, "sum", optimizer="adam", name="items")(ids))
    model: Any = keras.Model(ids, dense)
    model.compile("adam", "mse")
    program = tpu.program.of(model, (np.zeros((8, 3), "int32"), np.zeros((8, 1), "float32")))
    kinds = dict(zip(program.state_names, program.state_kinds, strict=True))
    assert kinds["items/embeddings"] == "weights"
    assert {name for name in program.tables if kinds[name] == "slots"} == set(program.tables) - {"items/embeddings"}
    narrow = with_narrow_slots(program)
    specs = dict(zip(program.state_names, jax.tree.leaves(narrow.state), strict=True))
    assert len(program.tables) == 3 and all(specs[name].dtype == "float32" for name in program.tables)
    assert sum(spec.dtype == "bfloat16" for spec in specs.values()) == 4


def test_saved_and_loaded(tmp_path: Any):
    model = trained(ShardedEmbedding(IDS, WIDTH, "mean", keras.optimizers.Adam(0.01)))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    x, y = rows()
    np.testing.assert_array_equal(model.predict(x, verbose=0), loaded.predict(x, verbose=0))
    histories = [
        trained.fit(x, y, batch_size=10, shuffle=False, verbose=0).history["loss"] for trained in (model, loaded)
    ]
    np.testing.assert_allclose(*histories, rtol=1e-12)


def test_loaded_by_another_process(tmp_path: Path):
    path, program = tmp_path / "model.keras", tmp_path / "load.py"
    model_of(ShardedEmbedding(IDS, WIDTH, "mean")).save(path)
    program.write_text(
        "import keras\nfrom anytpu.layers import ShardedEmbedding\n"
        f"print(isinstance(keras.models.load_model({str(path)!r}).layers[1], ShardedEmbedding))\n"
    )
    done = subprocess.run([*python(), program], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_the_learning_rate_may_change():
    model = trained(ShardedEmbedding(IDS, WIDTH, "mean", keras.optimizers.SGD(0.5)))
    before = np.array(model.layers[1].embeddings)
    model.layers[1].learning_rate = 0.0
    model.fit(*rows(), batch_size=10, verbose=0)
    np.testing.assert_array_equal(model.layers[1].embeddings, before)
    unbuilt = ShardedEmbedding(4, 2, optimizer=keras.optimizers.SGD(0.5))
    assert unbuilt.learning_rate == 0.5
    unbuilt.learning_rate = 0.25
    assert unbuilt.learning_rate == 0.25
    unbuilt.build(None)
    assert float(unbuilt.learning_rate.value) == 0.25
    assert error_text(lambda: setattr(unbuilt, "learning_rate", "high"), kind=SettingError) == (
        f"the learning rate of {unbuilt.name!r} must be a number, not 'high'"
    )
    scheduled = ShardedEmbedding(4, 2, optimizer=keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 10)))
    scheduled.build(None)
    with pytest.raises(ProgramError, match="follows CosineDecay, so it cannot be assigned"):
        scheduled.learning_rate = 0.1


def test_weights_belong_to_their_features():
    layer = ShardedEmbedding(IDS, 1, "sum", name="items")
    layer.embeddings = np.ones((IDS, 1))
    ids = {"liked": np.array([[1, 2]]), "seen": np.array([[3, 4]])}
    found = layer(ids, weights={"seen": np.array([[5.0, 1.0]])})
    assert [float(found[name][0, 0]) for name in ("liked", "seen")] == [2.0, 6.0]
    for weights, message in (
        (
            {"z": np.ones((1, 2))},
            "the weights of 'items' are for 'z', and the ids for 'liked', 'seen': nest them alike, "
            'weights={"seen": w} for layer({"liked": a, "seen": b})',
        ),
        (
            {"seen": np.ones(2)},
            "weights of 'items' have the shape (2,), and the ids (1, 2): give one weight for each id",
        ),
    ):
        with pytest.raises(DataError) as caught:
            layer(ids, weights=weights)
        assert message in str(caught.value)


def test_the_advice_for_a_bad_id():
    with tpu.connect("virtual", cores=2).scope():
        seen = keras.Input((2,), name="seen")
        layer = ShardedEmbedding(IDS, WIDTH, "sum", name="movies")
        model: Any = keras.Model(seen, keras.layers.Dense(1)(layer(seen)))
        model.compile("sgd", "mse")
    drops = 'or pass on_bad_id="drop" to leave such ids out'
    for bad, shown, advice in (
        (2.5, "2.5", "Ids are integers: check that this column holds ids"),
        (np.nan, "nan", "Ids are integers: check that this column holds ids"),
        (-3.0, "-3.0", "Check how negative ids are made"),
        (float(IDS), "40.0", "Enlarge input_dim"),
    ):
        message = error_text(lambda bad=bad: model.predict(np.array([[1, 2], [3, bad]]), verbose=0), kind=DataError)
        assert message == (
            f"x['seen'], row 1, has the id {shown}, and the table 'movies' has the ids 0 to 39; -1 stands for no id. "
            f"{advice}, {drops}"
        )

    def generate() -> Any:
        yield np.array([[1, 2], [3, 4]]), np.zeros((2, 1))
        yield np.array([[1, 2], [3, -5]]), np.zeros((2, 1))

    assert error_text(lambda: model.fit(generate(), shuffle=False, verbose=0), kind=DataError) == (
        "x['seen'], row 1 of this batch, has the id -5, and the table 'movies' has the ids 0 to 39; -1 stands for no "
        f"id. Check how negative ids are made, {drops}"
    )
    for call, name in (
        (lambda: layer(np.array([["red", "blue"]])), "the input holds <U4"),
        (lambda: layer([["red", "blue"]]), "the input holds <U3"),
        (lambda: layer(keras.Input((2,), dtype="string")), "the input holds string"),
    ):
        assert error_text(call, kind=DataError) == (
            f"{name}, and the table 'movies' takes integers: make ids first, tpu.pipeline."
            "Vocabulary.of(strings)(strings) or tpu.pipeline.hash_ids(strings, input_dim)"
        )


def test_ids_of_models_in_models(caplog: Any):
    with tpu.connect("virtual", cores=2).scope():
        ids = keras.Input((2,), dtype="int32")
        layer = ShardedEmbedding(IDS, WIDTH, "sum", name="movies")
        inner = keras.Model(ids, layer(ids), name="inner")
        tower = keras.Sequential([keras.Input((2,), dtype="int32"), inner], name="tower")
        other, seen = keras.Input((2,), name="other"), keras.Input((2,), dtype="int32", name="seen")
        joined = keras.layers.Concatenate()([tower(seen), other])
        model: Any = keras.Model([other, seen], keras.layers.Dense(1)(joined))
        model.compile("sgd", "mse")
        moved: Any = keras.Model(seen, layer(keras.layers.Lambda(lambda ids: ids + 1)(seen)), name="moved")
        moved.compile("sgd", "mse")
    x = {"other": np.ones((2, 2)), "seen": np.array([[0, 1], [IDS, 2]])}
    assert error_text(lambda: model.predict(x, verbose=0), kind=DataError).startswith(
        "x['seen'], row 1, has the id 40, and the table 'movies' has the ids 0 to 39"
    )
    assert not caplog.messages
    for _ in range(2):
        moved.predict(np.array([[0, 1]]), verbose=0)
    assert caplog.messages == [
        "The ids of 'movies' are not checked before a step: no input of 'moved' goes straight there. The result for an "
        "id outside of the table is NaN."
    ]


def test_a_callback_of_the_learning_rate_and_a_loss_that_is_nan():
    with tpu.connect("virtual", cores=2).scope():
        model = model_of(ShardedEmbedding(IDS, WIDTH, "sum", name="movies"))
    x, y = rows()
    plateau = keras.callbacks.ReduceLROnPlateau(monitor="loss")
    with pytest.warns(UserWarning) as caught:
        model.fit(x, y, batch_size=10, verbose=0, callbacks=[plateau])
    assert [str(each.message) for each in caught if each.category is UserWarning] == [
        "ReduceLROnPlateau changes the learning rate of the model's optimizer, and the table 'movies' has an optimizer "
        "of its own, whose rate stays. Set layer.learning_rate in a keras.callbacks.LambdaCallback, or give the "
        "table's optimizer a schedule"
    ]
    with tpu.connect("virtual", cores=2).scope():
        ids = keras.Input((5,), dtype="int32")
        tables = [ShardedEmbedding(IDS, WIDTH, "sum", name=name) for name in ("one", "two", "three")]
        joined = keras.layers.Add()([table(ids) for table in tables])
        several: Any = keras.Model(ids, keras.layers.Dense(1)(joined))
        several.compile("sgd", loss())
    tables[2].learning_rate = 0.1
    with pytest.warns(
        UserWarning, match="and the tables 'one', 'two' have optimizers of their own, whose rates stay. S"
    ):
        several.fit(x, y, batch_size=10, verbose=0, callbacks=[plateau])
    several.fit(x, y, batch_size=10, verbose=0, callbacks=[plateau])
    y[0] = np.nan
    assert error_text(
        lambda: model.fit(x, y, batch_size=10, verbose=0, shuffle=False, on_nan="raise"), kind=NaNLossError
    ).endswith(
        "or look for NaN in the data. The model has embedding tables: the result for an id outside of a table is NaN, "
        'which on_bad_id="drop" of its layer avoids'
    )
