"""The specs of a Keras model's batch, derived from its number of rows alone, and their layout; no data is read.

Idea: a built model knows the shapes of its inputs, and its loss implies the labels. Labels of a sparse loss are
integers, with one axis less than the output. Labels of any other loss have the shape of the output.

Rule: input shapes are never guessed. Labels are guessed where the loss is the user's own or missing; the step is then
traced with the guess. If tracing fails, the error asks for the specs. There are no sample weights. Specs may have the
sharding that Programs of models and estimators follow, axis 0 over all devices; any other is an error.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import keras
from jax.sharding import NamedSharding, Sharding

from anytpu.errors import ProgramError
from anytpu.program.program import Tree, leaf_names, spec_of

_SPARSE = (
    keras.losses.SparseCategoricalCrossentropy,
    keras.losses.sparse_categorical_crossentropy,
    keras.losses.Circle,
    keras.losses.circle,
)
"""The losses of Keras whose labels are class indices, one for each vector of the output."""

_NO_RULE = (keras.losses.CTC, keras.losses.ctc)
"""The losses of Keras whose labels have another length than the output."""


def input_specs_of(model: Any, batch_size: int) -> Tree:
    """Return the specs of a model's inputs, nested like the inputs.

    Args:
        model: a Sequential or functional model, or a built subclass model.
        batch_size: number of rows of the batch.

    Raises:
        ProgramError: the model does not know the shapes of its inputs, or an axis other than the batch is open.
    """
    return keras.tree.map_structure(lambda tensor: _input_spec(model, tensor, batch_size), _inputs(model))


def label_specs_of(model: Any, inputs: Tree) -> Tree:
    """Return the specs of the labels of a compiled and built model, nested like its outputs.

    Args:
        model: a compiled and built model.
        inputs: the specs of the model's inputs.
    """
    outputs = outputs_of(model, inputs)
    losses = losses_of(model, outputs)
    labels = [_label_spec(spec, loss) for spec, loss in zip(jax.tree.leaves(outputs), losses, strict=True)]
    return jax.tree.unflatten(jax.tree.structure(outputs), labels)


def outputs_of(model: Any, inputs: Tree) -> Tree:
    """Return the specs of the outputs of a built model, without computing them."""
    specs = [
        [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in variables]
        for variables in (model.trainable_variables, model.non_trainable_variables)
    ]
    return jax.eval_shape(lambda *arguments: model.stateless_call(*arguments)[0], *specs, inputs)


def with_batch_size(batch: Tree, batch_size: int) -> Tree:
    """Return the specs of a batch with another number of rows, the leading axis of each leaf that has axes.

    Example:
        >>> with_batch_size({"x": np.zeros((2, 3)), "scale": 1.0}, 64)["x"].shape
        (64, 3)
    """

    def resized(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((batch_size, *leaf.shape[1:]), leaf.dtype) if leaf.shape else leaf

    return jax.tree.map(resized, spec_of(batch))


def are_labels_guessed(model: Any) -> bool:
    """Return whether the labels of a compiled model are guessed: its step, loss computation or a loss is not Keras's.

    A loss may also be missing, or imply no label shape, as CTC does.
    """
    own_step = type(model).train_step is not keras.Model.train_step
    own_loss = type(model).compute_loss is not keras.Model.compute_loss
    return own_step or own_loss or not all(_is_known(loss) for loss in keras.tree.flatten(model.loss))


def how_to_give_specs(model: Any, batch_size: int) -> str:
    """Return the end of an error text: how to pass the specs of a batch."""
    return (
        f"Pass the shapes of a batch: input_specs=(x, y), arrays or jax.ShapeDtypeStruct of {batch_size} rows, for "
        f"example program.of({model.name}, input_specs=(x_train[:{batch_size}], y_train[:{batch_size}])); "
        "for `anytpu plan`, a function of a file returns the pair (model, input_specs)"
    )


def _inputs(model: Any) -> Tree:
    """Return a `KerasTensor` for each input, nested like the inputs."""
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


def _shapes(shapes: Any) -> Tree:
    """Return a build shape, or a nest of build shapes, with a `KerasTensor` of the default dtype for each shape."""
    if isinstance(shapes, dict):
        return {name: _shapes(shape) for name, shape in shapes.items()}
    if shapes and isinstance(shapes[0], list | tuple | dict):
        return [_shapes(shape) for shape in shapes]
    return keras.KerasTensor(tuple(shapes), keras.config.floatx())


def _input_spec(model: Any, tensor: Any, batch_size: int) -> jax.ShapeDtypeStruct:
    shape = tuple(tensor.shape)
    subject = f"the input {tensor.name!r} of the model {model.name!r} has the shape {shape}"
    if not shape:
        raise ProgramError(f"{subject}: it has no axis for the rows of a batch. {how_to_give_specs(model, batch_size)}")
    if None in shape[1:]:
        dims = tuple("..." if size is None else size for size in shape[1:])
        raise ProgramError(
            f"{subject}: only the size of the batch may be left open, and {_open_axes(shape)} open too. A TPU program "
            f"has one size for each: make the model with keras.Input(({', '.join(map(str, dims))}"
            f"{',' * (len(dims) == 1)})), the sizes in place of the dots. Or leave it as it is: "
            f"{_lower_first(how_to_give_specs(model, batch_size))}"
        )
    is_own = getattr(model, "inputs", None)
    if is_own and shape[0] not in (None, batch_size):
        raise ProgramError(
            f"{subject}: its batch has {shape[0]} rows, and {batch_size} are asked for. Give batch_size={shape[0]}, or "
            "make the model with keras.Input(shape) without a batch size"
        )
    return jax.ShapeDtypeStruct((batch_size, *shape[1:]), jax.dtypes.canonicalize_dtype(tensor.dtype))


def _open_axes(shape: tuple[int | None, ...]) -> str:
    axes = [str(axis) for axis, size in enumerate(shape) if axis and size is None]
    return f"axis {axes[0]} is" if len(axes) == 1 else f"axes {' and '.join(axes)} are"


def _lower_first(text: str) -> str:
    return text[0].lower() + text[1:]


def losses_of(model: Any, outputs: Tree) -> list[Any]:
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
    if is_sparse(loss):
        return jax.ShapeDtypeStruct(output.shape[:-1], "int32")
    return jax.ShapeDtypeStruct(output.shape, keras.config.floatx())


def is_sparse(loss: Any) -> bool:
    """Return whether a loss takes the index of a class as its label."""
    return _is_member(loss, _SPARSE)


def _is_known(loss: Any) -> bool:
    known = _resolve_loss(loss)
    is_keras = getattr(known, "__module__", "").startswith("keras.") or type(known).__module__.startswith("keras.")
    is_wrapper = type(known) is keras.losses.Loss or type(known).__name__ == "LossFunctionWrapper"
    return known is not None and is_keras and not is_wrapper and not _is_member(known, _NO_RULE)


def _is_member(loss: Any, losses: tuple[Any, ...]) -> bool:
    resolved = _resolve_loss(loss)
    classes = tuple(member for member in losses if isinstance(member, type))
    return isinstance(resolved, classes) or resolved in losses or getattr(resolved, "fn", None) in losses


def _resolve_loss(loss: Any) -> Any:
    return keras.losses.get(loss) if isinstance(loss, str | dict) else loss


def refuse_other_layouts(job: str, input_specs: Tree) -> None:
    """Reject an input sharding that does not split axis 0 alone, over all devices of its mesh.

    Args:
        job: the job, as errors name it: "the model 'net'".
        input_specs: tree of arrays or `jax.ShapeDtypeStruct`.

    Raises:
        ProgramError: an input has such a sharding.
    """
    for name, leaf in zip(leaf_names(input_specs, "input_specs"), jax.tree.leaves(input_specs), strict=True):
        sharding = getattr(leaf, "sharding", None) if isinstance(leaf, jax.ShapeDtypeStruct | jax.Array) else None
        if sharding is not None and not _is_data_parallel(sharding):
            raise ProgramError(
                f"{name!r} of the input_specs of {job} has the sharding {_text(sharding)}, which its Program would not "
                "follow: it is data-parallel, axis 0 of each input split over all devices. Leave the sharding out, or "
                "plan the step as a JAX function, step(state, batch), whose shardings are followed"
            )


def _is_data_parallel(sharding: Sharding) -> bool:
    if not isinstance(sharding, NamedSharding):
        return sharding.num_devices == 1
    first, *others = (*sharding.spec, None)
    names = first if isinstance(first, tuple) else (first,)
    sizes = dict(sharding.mesh.shape)
    return not any(others) and math.prod(sizes.get(name, 1) for name in names) == sharding.mesh.size


def _text(sharding: Sharding) -> str:
    if not isinstance(sharding, NamedSharding):
        return repr(sharding)
    axes = ", ".join(f"{name}={size}" for name, size in sharding.mesh.shape.items())
    return f"{sharding.spec} over a mesh ({axes})"
