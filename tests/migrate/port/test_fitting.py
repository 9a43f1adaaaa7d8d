"""Arguments of Keras 2 keep their meaning: positions, names and defaults follow from the record of its signatures."""

from __future__ import annotations

import ast

import pytest

from anytpu.migrate.port import known, old_api, ported
from anytpu.migrate.port.fitting import names_by_position
from anytpu.migrate.port.rules import keras_name

GIVEN = """\
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import backend as K, layers
model = keras.Sequential([layers.Dense(3, input_shape=(4,))])
deep = keras.Model(inputs, outputs)
"""


def last_line(old: str) -> str:
    outcome = ported(f"{GIVEN}{old}\n")
    assert outcome.by_hand == (), outcome.by_hand
    return outcome.new.splitlines()[-1]


def listed(old: str) -> list[str]:
    return [finding.advice for finding in ported(f"{GIVEN}{old}\n").by_hand]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("model.compile('adam', 'mse', ['mae'], [1.0])",
         "model.compile('adam', 'mse', metrics=['mae'], loss_weights=[1.0])"),
        ("unknown().compile('adam', 'mse', [own])", "unknown().compile('adam', 'mse', metrics=[own])"),
        ("h = model.fit(x, y, 16, 3, 0)", "h = model.fit(x, y, 16, 3, 0)"),
        ("s = model.evaluate(x, y, 16, 0, None, None, None, 10, 1, False, True)",
         "s = model.evaluate(x, y, 16, 0, None, None, None, return_dict=True)"),
        ("r = keras.regularizers.l1_l2(0.1)", "r = keras.regularizers.l1_l2(0.1, l2=0.01)"),
        ("i = K.argmax(x)", "i = keras.ops.argmax(x, axis=-1)"),
        ("i = K.concatenate([a, b])", "i = keras.ops.concatenate([a, b], axis=-1)"),
        ("i = keras.Input((3,), None, 'x')", "i = keras.Input((3,), None, name='x')"),
        ("r = layers.LeakyReLU(alpha=0.2)", "r = layers.LeakyReLU(negative_slope=0.2)"),
        ("p = layers.AveragePooling2D()", "p = layers.AveragePooling2D(pool_size=(2, 2))"),
        ("c = keras.losses.sparse_categorical_crossentropy(y, p, True, -1)",
         "c = keras.losses.sparse_categorical_crossentropy(y, p, True, axis=-1)"),
        ("o = keras.optimizers.legacy.Adam(0.1, 0.9, 0.99, 1e-7, False, 'a')",
         "o = keras.optimizers.Adam(0.1, 0.9, 0.99, 1e-7, False, name='a')"),
        ("y = layers.MultiHeadAttention(2, 2)(q, v, k, mask)",
         "y = layers.MultiHeadAttention(2, 2)(q, v, k, attention_mask=mask)"),
        ("o = keras.optimizers.Adam(*rates, lr=0.1)", "o = keras.optimizers.Adam(*rates, learning_rate=0.1)"),
        ("r = keras.regularizers.l1_l2(**factors)", "r = keras.regularizers.l1_l2(**factors)"),
        ("y = model(x, True)", "y = model(x, training=True)"),
    ],
)  # fmt: skip
def test_an_argument_keeps_its_meaning(old: str, new: str):
    assert last_line(old) == new


@pytest.mark.parametrize(
    ("base", "old", "new"),
    [
        ("losses.Loss", "'none'", "reduction='none'"),
        ("metrics.Metric", "name", "name=name"),
        ("layers.Layer", "True, 'd'", "trainable=True, name='d'"),
    ],
)
def test_a_constructor_that_a_class_calls_is_one(base: str, old: str, new: str):
    text = f"class Own(keras.{base}):\n    def __init__(self, name='own'):\n        super().__init__({old})"
    assert last_line(text).strip() == f"super().__init__({new})"


def test_a_layer_of_the_programs_own_takes_training_by_keyword():
    layer = "class Own(layers.Layer):\n    def call(self, x, mask=None, training=None):\n        return x\n"
    assert last_line(f"{layer}y = Own()(x, m, True)") == "y = Own()(x, m, training=True)"


def test_an_argument_that_is_gone_is_listed_unless_it_asks_for_nothing():
    assert last_line("model.train_on_batch(x, y, None, None, True)") == "model.train_on_batch(x, y, None, None)"
    (advice,) = listed("model.train_on_batch(x, y, None, None, False)")
    assert advice == (
        "Sequential.train_on_batch has no argument 'reset_metrics': leave it out, or use one of its own: "
        "class_weight, return_dict, sample_weight, x, y"
    )


@pytest.mark.parametrize("argument", ["period=5", "'val_loss', 0, True, False, 'auto', 5"])
def test_a_period_of_epochs_is_listed(argument: str):
    assert last_line("c = keras.callbacks.ModelCheckpoint(p, 'loss', 0, True, False, 'auto', 1)").endswith(
        "False, 'auto')"
    )
    assert listed(f"c = keras.callbacks.ModelCheckpoint(p, {argument})") == [
        "Keras 3 counts batches, not epochs: write save_freq=, the number of epochs times the batches of one"
    ]


def test_the_first_name_of_a_conversion_and_loops_over_generators():
    text = (
        "import tensorflow as tf\nfrom tensorflow.contrib.tpu.python.tpu import keras_support\n"
        "model = keras_support.tpu_model(small)\nh = model.fit_generator(rows, 9, 3, 1, None, others)\n"
        "s = unknown.evaluate_generator(others, 5, workers=4)\n"
    )
    outcome = ported(text)
    assert (outcome.by_hand, outcome.new.splitlines()) == (
        (),
        [
            "import anytpu as tpu",
            "model = tpu.keras_to_tpu_model(small)",
            "h = model.fit(rows, steps_per_epoch=9, epochs=3, verbose=1, callbacks=None, validation_data=others)",
            "s = unknown.evaluate(others, steps=5)",
        ],
    )


def test_other_compilers_keep_their_arguments():
    assert last_line("import re\nb = re.compile(p, f)") == "b = re.compile(p, f)"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("l2 = [w for w in deep.trainable_variables if 'decay' in w.name]",
         "l2 = [w for w in deep.trainable_variables if 'decay' in (w.path + \":0\")]"),
        ("for g, w in zip(gradients, deep.weights): print(w.name)",
         "for g, w in zip(gradients, deep.weights): print((w.path + \":0\"))"),
        ("k = list(filter(lambda w: 'kernel' in w.name, deep.weights))[0].name",
         "k = (list(filter(lambda w: 'kernel' in (w.path + \":0\"), deep.weights))[0].path + \":0\")"),
        ("k = sorted(deep.weights[1:], key=lambda w: w.name)",
         "k = sorted(deep.weights[1:], key=lambda w: (w.path + \":0\"))"),
        ("k = f'{deep.weights[0].name}'", "k = f'{(deep.weights[0].path + \":0\")}'"),
        ("k = [w.name for w in model.get_layer('a').weights]",
         "k = [(w.path.partition(\"/\")[2] + \":0\") for w in model.get_layer('a').weights]"),
        ("s = model.get_layer('a').output_shape",
         "s = keras.tree.map_structure(lambda tensor: tensor.shape, model.get_layer('a').output)"),
        ("s = model.output_shape", "s = model.output_shape"),
        ("f = K.function([model.input], [model.layers[0].output])",
         "f = keras.Function([model.inputs[0]], [model.layers[0].output])"),
        ("e = layers.Embedding(10, 4, input_length=n)", "e = layers.Embedding(10, 4, input_shape=(n,))"),
        ("m = keras.Sequential([layers.Embedding(10, 4), layers.Dense(1)])",
         "m = keras.Sequential([layers.Embedding(10, 4, input_shape=(None,)), layers.Dense(1)])"),
        ("m = keras.Sequential(); m.add(layers.Embedding(10, 4))",
         "m = keras.Sequential(); m.add(layers.Embedding(10, 4, input_shape=(None,)))"),
        ("e = layers.Embedding(10, 4)(tokens)", "e = layers.Embedding(10, 4)(tokens)"),
    ],
)  # fmt: skip
def test_a_member_keeps_its_meaning(old: str, new: str):
    assert last_line(old) == new


def test_members_that_are_gone_are_listed_and_others_of_any_class_pass():
    text = "for layer in model.layers:\n    print(layer.units, layer.get_output_at(0))"
    assert listed(text) == ["Layer has no get_output_at; `anytpu docs migrate` has what replaces what"]
    (advice,) = listed("print([w for w in unknown if w.name == 'dense/kernel:0'])")
    assert advice == (
        "of a variable of Keras 3 this is the name within its layer, such as kernel: write variable.path for "
        "'dense/kernel', and leave ':0' out"
    )


def test_a_name_of_a_variable_of_several_models_is_listed():
    (advice,) = listed(
        "print([w.name for w in [*model.weights, *deep.weights]])\nfor w in model.weights + deep.weights: w.name"
    )
    assert advice == (
        "the path of a variable in Keras 3 starts with the name of a keras.Sequential, and not with that of another "
        "model: print variable.path, and compare with its parts"
    )


def test_no_argument_by_position_changes_its_meaning():
    """All functions and classes of the record in one program, each with all arguments by position."""
    recorded = set(old_api.names())
    names = [name for name in sorted(recorded) if name.rpartition(".")[0] not in recorded and keras_name(name)]
    calls = {f"made_{index}": name for index, name in enumerate(names) if old_api.parameters(name) is not None}
    old = {made: [part.arg for part in _parameters(name).args] for made, name in calls.items()}
    text = "".join(f"{made} = tf.{calls[made]}({', '.join(f'v_{part}' for part in old[made])})\n" for made in calls)
    wrong = []
    for line in ast.parse(ported(f"import tensorflow as tf\n{text}").new).body:
        if not isinstance(line, ast.Assign) or not isinstance(line.value, ast.Call):
            continue
        made = ast.unparse(line.targets[0])
        found = known.find(ast.unparse(line.value.func))
        after = known.declared(found) if found is not None else None
        positions = names_by_position(after)
        for value, position in zip(line.value.args, positions, strict=False):
            passed = ast.unparse(value).removeprefix("v_")
            if passed != position and (passed in positions or position in old[made]):
                wrong.append(f"{calls[made]}: {passed} became {position}")
    assert len(calls) > 400
    assert wrong == []


def _parameters(name: str) -> ast.arguments:
    parameters = old_api.parameters(name)
    assert parameters is not None
    return parameters
