"""Each private name of Keras that anytpu touches: a Keras that moves one fails here, and the test says what broke."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from typing import Any

import jax
import keras
import numpy as np
import pytest

from anytpu import _keras, _keras_layers
from source_tree import ROOT

# (module, name in it, what anytpu does with it)
NAMES = [
    ("keras.src.distribution.distribution_lib", "list_devices", "in a scope a DeviceMesh is over the cores"),
    ("keras.src.distribution.distribution_lib", "set_distribution", "in a scope a distribution is a layout"),
    ("keras.src.backend.jax.trainer", "JAXTrainer.fit", "fit keeps its loop and is run on the strategy"),
    ("keras.src.backend.jax.trainer", "JAXTrainer.evaluate", "evaluate keeps its loop and is run on the strategy"),
    ("keras.src.backend.jax.trainer", "JAXTrainer.predict", "predict keeps its loop and is run on the strategy"),
    ("keras.src.backend.jax.trainer", "JAXTrainer.train_on_batch", "one batch is run on the strategy"),
    ("keras.src.backend.jax.trainer", "JAXTrainer.test_on_batch", "one batch is run on the strategy"),
    ("keras.src.backend.jax.trainer", "JAXTrainer.predict_on_batch", "one batch is run on the strategy"),
    (
        "keras.src.backend.jax.trainer",
        "JAXTrainer.make_train_function",
        "the compiled loop takes the place of its step",
    ),
    ("keras.src.backend.jax.trainer", "JAXTrainer.make_test_function", "the compiled loop takes the place of its step"),
    (
        "keras.src.backend.jax.trainer",
        "JAXTrainer.make_predict_function",
        "the compiled loop takes the place of its step",
    ),
    ("keras.src.backend.jax.trainer", "JAXTrainer._get_jax_state", "the state that fit carries is ours"),
    ("keras.src.backend.jax.trainer", "JAXTrainer.jax_state_sync", "the variables get their newest values"),
    ("keras.src.trainers.trainer", "Trainer._get_metrics_result_or_logs", "a log that no metric has is the step's"),
    ("keras.src.backend.jax.trainer", "JAXEpochIterator", "fit walks over our epochs in its place"),
    ("keras.src.trainers.trainer", "Trainer.compile", "a model compiled in a scope gets its trainer"),
    ("keras.src.trainers.trainer", "Trainer.compile_from_config", "a loaded model chooses its steps by the clock"),
    (
        "keras.src.trainers.trainer",
        "model_supports_jit",
        "a model in a scope is compiled if its layers can be",
    ),
    ("keras.src.callbacks.tensorboard", "TensorBoard.summary", "event files are written without TensorFlow"),
    ("keras.src.backend.common.name_scope", "current_path", "a summary's tag begins with the scopes of names"),
    ("keras.src.callbacks.tensorboard", "keras_model_summary", "the layers are written without TensorFlow"),
    ("keras.src.backend.jax.core", "remat", "a layer that is recomputed is traced in each step"),
    ("keras.src.trainers.trainer", "Trainer._symbolic_build", "a Program of a model that is not built yet"),
    ("keras.src.backend", "compute_output_spec", "builds the layers of a model for the specs of a batch"),
    ("keras.src.trainers.epoch_iterator", "EpochIterator", "our epochs are one"),
    ("keras.src.trainers.epoch_iterator", "EpochIterator.reset", "our epochs start again where Keras's do"),
    ("keras.src.trainers.epoch_iterator", "EpochIterator.catch_stop_iteration", "fit walks inside it"),
    ("keras.src.trainers.epoch_iterator", "EpochIterator._interrupted_warning", "it says why the data ended"),
    ("keras.src.backend.jax.core", "JaxVariable._initialize_layout", "a variable is made in its shards"),
    ("keras.src.backend.common.variables", "Variable", "variables remember the scope that they were made in"),
    ("keras.src.backend.common.stateless_scope", "get_stateless_scope", "where a replica's variables are"),
    ("keras.src.trainers.data_adapters.array_data_adapter", "ArrayDataAdapter", "its arrays lie on the device"),
    ("keras.src.trainers.data_adapters.array_data_adapter", "ArrayDataAdapter._get_iterator", "the order of the rows"),
    ("keras.src.trainers.data_adapters.array_slicing", "convert_to_sliceable", "arrays are cast as Keras casts them"),
    ("keras.src.trainers.data_adapters.array_slicing", "NumpySliceable", "which arrays are rows"),
    ("keras.src.trainers.data_adapters.array_slicing", "PandasSliceable", "which arrays are rows"),
    ("keras.src.trainers.data_adapters.generator_data_adapter", "GeneratorDataAdapter", "what is walked over once"),
    ("keras.src.tree", "flatten", "trees as Keras sees them"),
    ("keras.src.tree", "map_structure", "trees as Keras sees them"),
    ("keras.src.utils", "is_default", "whether a callback wants every step"),
    ("keras.src.layers.layer", "Layer._flatten_layers", "whether a model is built"),
    ("keras.src.layers.rnn.gru", "GRU.inner_loop", "it knows what a skipped step puts out"),
    ("keras.src.layers.rnn.lstm", "LSTM.inner_loop", "it knows what a skipped step puts out"),
    ("keras.src.models.functional", "Functional", "which models Keras can clone"),
    ("keras.src.trainers.data_adapters.data_adapter", "DataAdapter", "a data set of ours in place of Keras's"),
    ("keras.src.trainers.data_adapters", "get_data_adapter", "fit takes a Dataset"),
    (
        "keras.src.trainers.data_adapters.data_adapter_utils",
        "class_weight_to_sample_weights",
        "class_weight weighs the batches of a Dataset",
    ),
    ("keras.src.random.seed_generator", "global_seed_generator", "a checkpoint has its state"),
    ("keras.src.callbacks.callback_list", "CallbackList._flush_futures", "a checkpoint waits for callbacks in threads"),
    ("keras.src.backend.common.global_state", "get_global_attribute", "the names of a model_fn are its own"),
    ("keras.src.backend.common.global_state", "set_global_attribute", "names count from the beginning in a model_fn"),
    ("keras.src.utils.naming", "reset_uids", "names count from the beginning in a model_fn"),
    ("keras.src.backend.common.masking", "get_keras_mask", "the mask of padded steps"),
    ("keras.src.backend.common.masking", "set_keras_mask", "the mask of padded steps"),
    ("keras.src.backend.jax.random", "jax_draw_seed", "dropout of padded steps draws as Keras's"),
    ("keras.src.backend.jax.random", "normal", "initial weights are drawn as vectors"),
    ("keras.src.backend.jax.random", "truncated_normal", "initial weights are drawn as vectors"),
    ("keras.src.backend.jax.random", "uniform", "initial weights are drawn as vectors"),
    ("keras.src.utils.python_utils", "pythonify_logs", "the logs of train_on_batch are Python's numbers"),
    (
        "keras.src.trainers.trainer",
        "Trainer._flatten_metrics_in_order",
        "the logs of train_on_batch come in Keras's order",
    ),
    ("keras.src.legacy.preprocessing.image", "ImageDataGenerator", "ported programs augment their images by it"),
    ("keras.src.backend", "gru", "where a backend offers a GRU of its own"),
    ("keras.src.backend", "lstm", "where a backend offers an LSTM of its own"),
    ("keras.src.backend", "nn.moments", "batch normalization takes its statistics from it"),
    ("keras.src.backend", "nn.batch_normalization", "batch normalization normalizes by it"),
]


@pytest.mark.parametrize(("module", "name", "use"), NAMES)
def test_the_name_is_there(module: str, name: str, use: str):
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
        assert found is not None, (
            f"Keras {keras.__version__} has no {module}.{name}, with which anytpu does this: {use}"
        )


def test_every_module_that_is_imported_is_named():
    trees = [ast.parse((ROOT / "src/anytpu" / name).read_text()) for name in ("_keras.py", "_keras_layers.py")]
    imported = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("keras.src"):
            imported |= {f"{node.module}.{alias.name}" for alias in node.names}
    tested = {module for module, _, _ in NAMES} | {f"{module}.{name.split('.')[0]}" for module, name, _ in NAMES}
    assert imported <= tested | OTHERS, f"name these in NAMES: {sorted(imported - tested - OTHERS)}"


# Tested where they are used: the fast kernels of the virtual backend.
OTHERS = {"keras.src.backend"}


def test_fit_looks_its_epoch_iterator_up_in_the_module():
    source = inspect.getsource(inspect.unwrap(_keras.jax_trainer_module().JAXTrainer.fit))
    assert len(re.findall(r"(?<!\.)\bJAXEpochIterator\(", source)) == 2, (
        "fit makes one for training and one for validation"
    )


@pytest.mark.parametrize("name", ["fit", "evaluate", "predict"])
def test_the_loops_carry_the_state_from_call_to_call(name: str):
    source = inspect.getsource(inspect.unwrap(getattr(_keras.jax_trainer_module().JAXTrainer, name)))
    function = {"fit": "train", "evaluate": "test", "predict": "predict"}[name]
    for text in ("self._get_jax_state(", f"self.{function}_function(state, iterator)", "self.jax_state_sync()"):
        assert text in source, f"Keras's {name} has no {text} any more"


def test_a_variable_holds_its_array_in_one_attribute():
    variable = keras.Variable(np.zeros(2, "float32"))
    array = keras.ops.ones(2)
    _keras.attach(variable, array)
    assert _keras.value_of(variable) is array
    assert np.array(variable.value).tolist() == [1, 1]


def test_a_variable_is_read_and_written_through_its_attribute():
    class Unread:
        def __init__(self) -> None:
            self.written_to = []

        def read(self, variable):
            _keras.attach(variable, keras.ops.ones(2))
            return _keras.value_of(variable)

        def written(self, variable):
            self.written_to.append(variable)

    held = keras.Variable(np.zeros(2, "float32"))
    owner = _keras.variable_class()
    before = vars(owner).get("_value")
    try:
        _keras.install_placeholders(Unread)
        _keras.attach(held, Unread())
        assert np.array(held.value).tolist() == [1, 1]
        unread = Unread()
        _keras.attach(held, unread)
        held.assign([2, 2])
        assert unread.written_to == [held]
        assert np.array(held.value).tolist() == [2, 2]
    finally:
        del owner._value
        if before is not None:
            owner._value = before


def test_no_callbacks_start_no_thread():
    callbacks = _keras.no_callbacks()
    callbacks.on_predict_begin()
    callbacks.on_predict_batch_begin(0)
    callbacks.on_predict_batch_end(0, {"outputs": np.zeros(1)})
    assert vars(callbacks)["_executor"] is None
    callbacks.on_predict_end()


def test_a_compiled_model_keeps_what_it_was_compiled_with():
    loss, model = keras.losses.MeanSquaredError(), keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", loss, metrics=["mae"])
    settings = _keras.compiled_with(model)
    assert settings["loss"] is loss
    assert settings["metrics"] == ["mae"]
    assert settings["steps_per_execution"] == 1
    with _keras.uncompiled(model):
        assert keras.models.clone_model(model).compiled is False
    assert model.compiled is True


def test_an_optimizer_keeps_the_variables_that_it_was_built_for():
    variables = [keras.Variable(np.zeros(2, "float32"))]
    for optimizer in (keras.optimizers.Adam(), keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())):
        optimizer.build(variables)
        assert [id(variable) for variable in _keras.optimized_variables(optimizer)] == [id(variables[0])]


@pytest.mark.parametrize("shuffle", [True, False, "batch"])
def test_rows_are_drawn_as_keras_draws_them(shuffle):
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

    drawn = []
    for walk in (_keras.row_indices, lambda adapter: adapter.get_numpy_iterator()):
        keras.utils.set_random_seed(5)
        adapter = ArrayDataAdapter(np.arange(23, dtype="float32"), shuffle=shuffle, batch_size=4)
        drawn.append([[int(row) for row in np.ravel(batch)] for _ in range(2) for batch in walk(adapter)])
    assert drawn[0] == drawn[1]
    assert [len(batch) for batch in drawn[0]] == 2 * [4, 4, 4, 4, 4, 3]


@pytest.mark.parametrize("name", ["normal", "truncated_normal", "uniform"])
def test_numbers_drawn_as_a_vector_are_those_of_keras(name: str):
    from keras.src.backend.jax import random

    _keras_layers.draw_flat()
    draws = getattr(random, name), inspect.unwrap(getattr(random, name))
    assert draws[0] is not draws[1]
    for dtype, shape in (("float32", (3, 3, 2, 5)), ("bfloat16", [7, 11])):
        flat, shaped = (np.asarray(draw(shape, dtype=dtype, seed=keras.random.SeedGenerator(3))) for draw in draws)
        assert (flat.dtype, flat.shape) == (shaped.dtype, shaped.shape)
        assert flat.tobytes() == shaped.tobytes()
    of_noise = [str(jax.make_jaxpr(lambda draw=draw: draw((3, 2), seed=3))()) for draw in draws]
    assert of_noise[0] == of_noise[1]


def test_names_count_from_the_beginning_in_a_block():
    first = keras.backend.get_uid("dense")
    with _keras.fresh_names():
        assert [keras.layers.Dense(1).name for _ in range(2)] == ["dense", "dense_1"]
    assert keras.backend.get_uid("dense") == first + 1


def test_a_variable_that_is_forgotten_gets_no_value():
    with keras.StatelessScope():
        kept, forgotten = (keras.Variable("ones", shape=(1,)) for _ in range(2))
        _keras_layers.forget_uninitialized(forgotten)
    assert _keras.value_of(kept) is not None
    assert _keras.value_of(forgotten) is None


def test_variables_without_a_value_are_counted():
    with keras.StatelessScope():
        before = _keras_layers.uninitialized_count()
        keras.Variable("ones", shape=(1,))
        assert _keras_layers.uninitialized_count() == before + 1
    assert _keras_layers.uninitialized_count() == 0


def test_a_scope_knows_the_one_around_it_and_who_opens_it():
    frames = []

    class Seen(keras.layers.Layer):
        def call(self, x):
            frames.append(sys._getframe(1))
            return x

    with keras.StatelessScope() as outer, keras.StatelessScope() as inner:
        Seen()(np.zeros(1))
    assert vars(inner)["original_scope"] is outer
    assert _keras_layers.is_keras(frames[0])
    assert not _keras_layers.is_keras(sys._getframe())


def test_all_variables_that_are_forgotten_get_no_value():
    with keras.StatelessScope():
        forgotten = [keras.Variable("ones", shape=(1,)) for _ in range(2)]
        _keras_layers.forget_all_uninitialized()
    assert [_keras.value_of(variable) for variable in forgotten] == [None, None]


def test_a_wrapper_is_put_on_once():
    class Owner:
        def method(self):
            return 1

    for _ in range(2):
        _keras.wrap(Owner, "method", lambda original: lambda self: original(self) + 1)
    assert Owner().method() == 2
    assert _keras.is_wrapped(Owner.method)
    assert Owner.method.__name__ == "method"
