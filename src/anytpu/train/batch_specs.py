"""The specs of a batch of a Keras model that is known by its number of rows alone: no data is looked at.

Idea: a built model knows the shapes of its inputs, and what it was compiled with says what its labels look like: those
of a sparse loss are whole numbers, one less in rank than the output; those of any other are like the output.

Rule: nothing is guessed of the shapes of inputs. Where the labels are guessed (a loss of the user's own, or none), the
step is traced with the guess, and an error of ours asks for the specs if it does not go. There are no sample weights.
"""

from __future__ import annotations

from typing import Any

import jax
import keras

from anytpu.errors import ProgramError
from anytpu.program.program import Tree, spec_of

_SPARSE = (
    keras.losses.SparseCategoricalCrossentropy,
    keras.losses.sparse_categorical_crossentropy,
    keras.losses.Circle,
    keras.losses.circle,
)
"""The losses of Keras whose labels are class numbers, one for each vector of the output."""

_NO_RULE = (keras.losses.CTC, keras.losses.ctc)
"""The losses of Keras whose labels have a length of their own."""


def input_specs_of(model: Any, batch_size: int) -> Tree:
    """Return the specs of the inputs of a model, nested as the model takes them.

    Args:
        model: a Sequential or functional model, or one written as a class that was built.
        batch_size: the rows.

    Raises:
        ProgramError: the model does not know the shapes of its inputs, or leaves more open than the batch.
    """
    return keras.tree.map_structure(lambda one: _input_spec(model, one, batch_size), _inputs(model))


def label_specs_of(model: Any, inputs: Tree) -> Tree:
    """Return the specs of the labels of a compiled and built model, nested like its outputs.

    Args:
        model: the model.
        inputs: the specs of its inputs.
    """
    outputs = outputs_of(model, inputs)
    losses = _losses(model, outputs)
    labels = [_label_spec(spec, loss) for spec, loss in zip(jax.tree.leaves(outputs), losses, strict=True)]
    return jax.tree.unflatten(jax.tree.structure(outputs), labels)


def outputs_of(model: Any, inputs: Tree) -> Tree:
    """Return the specs of the outputs of a built model. Nothing is computed."""
    specs = [
        [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in variables]
        for variables in (model.trainable_variables, model.non_trainable_variables)
    ]
    return jax.eval_shape(lambda *given: model.stateless_call(*given)[0], *specs, inputs)


def with_batch_size(batch: Tree, batch_size: int) -> Tree:
    """Return the specs of a batch, with other rows: the leading axis of each leaf that has one.

    Example:
        >>> with_batch_size({"x": np.zeros((2, 3)), "scale": 1.0}, 64)["x"].shape
        (64, 3)
    """

    def resized(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((batch_size, *leaf.shape[1:]), leaf.dtype) if leaf.shape else leaf

    return jax.tree.map(resized, spec_of(batch))


def are_labels_guessed(model: Any) -> bool:
    """Say whether nothing of Keras's own says what the labels of a compiled model look like."""
    own_step = type(model).train_step is not keras.Model.train_step
    own_loss = type(model).compute_loss is not keras.Model.compute_loss
    return own_step or own_loss or not all(_is_known(loss) for loss in keras.tree.flatten(model.loss))


def how_to_give_specs(model: Any, batch_size: int) -> str:
    """Return what to type to give the specs of a batch, as the end of an error."""
    return (
        f"Pass the shapes of a batch: input_specs=(x, y), arrays or jax.ShapeDtypeStruct of {batch_size} rows, for "
        f"example program.of({model.name}, input_specs=(x_train[:{batch_size}], y_train[:{batch_size}])); "
        "for `anytpu plan`, a function of a file returns the pair (model, input_specs)"
    )


def _inputs(model: Any) -> Tree:
    """Return a Keras tensor, or a shape, for each input."""
    if getattr(model, "inputs", None):
        return model.input if not isinstance(model, keras.Sequential) else model.inputs[0]
    config = model.get_build_config() if model.built else None
    if not config or "input_shape" not in config:
        raise ProgramError(
            f"the model {model.name!r} does not know the shapes of its inputs. Start it with keras.Input(shape), for "
            "example keras.Sequential([keras.Input((28, 28, 1)), ...]), or pass the shapes of a batch: input_specs=(x, "
            "y), arrays or jax.ShapeDtypeStruct; for `anytpu plan`, a function of a file returns the pair (model, "
            "input_specs)"
        )
    return _shapes(config["input_shape"])


def _shapes(given: Any) -> Tree:
    """Return a build shape, or a nest of them, with each shape as a `KerasTensor` of the default type."""
    if isinstance(given, dict):
        return {name: _shapes(one) for name, one in given.items()}
    if given and isinstance(given[0], list | tuple | dict):
        return [_shapes(one) for one in given]
    return keras.KerasTensor(tuple(given), keras.config.floatx())


def _input_spec(model: Any, one: Any, batch_size: int) -> jax.ShapeDtypeStruct:
    shape = tuple(one.shape)
    what = f"the input {one.name!r} of the model {model.name!r} has the shape {shape}"
    if not shape:
        raise ProgramError(f"{what}: it has no axis for the rows of a batch. {how_to_give_specs(model, batch_size)}")
    if None in shape[1:]:
        given = tuple("..." if size is None else size for size in shape[1:])
        raise ProgramError(
            f"{what}: only the size of the batch may be left open, and {_axes(shape)} open too. A TPU program has one "
            f"size for each: make the model with keras.Input(({', '.join(map(str, given))}{',' * (len(given) == 1)})), "
            f"the sizes in place of the dots. Or leave it as it is: {_lowered(how_to_give_specs(model, batch_size))}"
        )
    is_own = getattr(model, "inputs", None)
    if is_own and shape[0] not in (None, batch_size):
        raise ProgramError(
            f"{what}: its batch has {shape[0]} rows, and {batch_size} are asked for. Give batch_size={shape[0]}, or "
            "make the model with keras.Input(shape) without a batch size"
        )
    return jax.ShapeDtypeStruct((batch_size, *shape[1:]), jax.dtypes.canonicalize_dtype(one.dtype))


def _axes(shape: tuple[int | None, ...]) -> str:
    axes = [str(axis) for axis, size in enumerate(shape) if axis and size is None]
    return f"axis {axes[0]} is" if len(axes) == 1 else f"axes {' and '.join(axes)} are"


def _lowered(text: str) -> str:
    return text[0].lower() + text[1:]


def _losses(model: Any, outputs: Tree) -> list[Any]:
    """Return the loss of each output, in the order of `jax.tree.leaves(outputs)`; None where there is none."""
    loss, count = model.loss, len(jax.tree.leaves(outputs))
    names = getattr(model, "output_names", None)
    if isinstance(loss, dict) and not isinstance(outputs, dict) and names and len(names) == count:
        return [loss.get(name) for name in names]
    if isinstance(loss, dict) and isinstance(outputs, dict):
        return [loss.get(name) for name in sorted(outputs)] if len(outputs) == count else [None] * count
    if isinstance(loss, list | tuple):
        flat = keras.tree.flatten(loss)
        return flat if len(flat) == count else [None] * count
    return [loss] * count


def _label_spec(output: jax.ShapeDtypeStruct, loss: Any) -> jax.ShapeDtypeStruct:
    if _is_one_of(loss, _SPARSE):
        return jax.ShapeDtypeStruct(output.shape[:-1], "int32")
    return jax.ShapeDtypeStruct(output.shape, keras.config.floatx())


def _is_known(loss: Any) -> bool:
    given = _got(loss)
    is_keras = getattr(given, "__module__", "").startswith("keras.") or type(given).__module__.startswith("keras.")
    is_wrapper = type(given) is keras.losses.Loss or type(given).__name__ == "LossFunctionWrapper"
    return given is not None and is_keras and not is_wrapper and not _is_one_of(given, _NO_RULE)


def _is_one_of(loss: Any, known: tuple[Any, ...]) -> bool:
    given = _got(loss)
    classes = tuple(one for one in known if isinstance(one, type))
    return isinstance(given, classes) or given in known or getattr(given, "fn", None) in known


def _got(loss: Any) -> Any:
    return keras.losses.get(loss) if isinstance(loss, str | dict) else loss
