"""All uses of private Keras names in anytpu.

Idea: the fit loop, the data adapters and the variables of Keras 3 are private, in `keras.src`. A new Keras may move any
of them. So only this file and `_keras_layers.py` use them, and `tests/test_keras_private.py` checks each name. An upper
bound on the Keras version is in pyproject.toml.

Rule: this file contains no policy. A function returns a private object or wraps one. Keras is imported inside the
functions, so that importing anytpu stays light.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

_WRAPPED = "_anytpu_wrapped"


def wrap(owner: Any, name: str, make: Callable[[Callable], Callable], by: str = "") -> None:
    """Replace `owner.name` by `make(original)`, once for each `by`; a repeated call does nothing.

    Args:
        owner: the class or module.
        name: the attribute to replace.
        make: returns the wrapper of the original.
        by: identifies the caller, if several wrap the same attribute.
    """
    original = getattr(owner, name)
    before = vars(original).get(_WRAPPED, frozenset())
    if by in before:
        return
    wrapper = functools.wraps(original)(make(original))
    setattr(wrapper, _WRAPPED, before | {by})
    setattr(owner, name, wrapper)


def add_method(owner: Any, name: str, function: Callable) -> None:
    """Add a method to a class, unless the class has an attribute of this name."""
    if not hasattr(owner, name):
        setattr(owner, name, function)


def is_wrapped(function: Any) -> bool:
    """Return whether a function is a wrapper that `wrap` installed."""
    return _WRAPPED in vars(function)


def jax_trainer_module() -> Any:
    """Return the module of `JAXTrainer` and its fit loop, in which the loop looks up `JAXEpochIterator`."""
    from keras.src.backend.jax import trainer

    return trainer


def jax_core_module() -> Any:
    """Return the module of `JaxVariable`, in which `keras.remat` looks up the JAX backend's `remat`."""
    from keras.src.backend.jax import core

    return core


def trainer_module() -> Any:
    """Return the module of `Trainer`, in which `compile` looks up `model_supports_jit` for `jit_compile="auto"`."""
    from keras.src.trainers import trainer

    return trainer


def epoch_iterator_class() -> Any:
    """Return the class that chooses the data adapter and iterates over an epoch."""
    from keras.src.trainers.epoch_iterator import EpochIterator

    return EpochIterator


def variable_class() -> Any:
    """Return the class of all Keras variables."""
    from keras.src.backend.common.variables import Variable

    return Variable


def distribution_module() -> Any:
    """Return the module whose own functions `keras.distribution` calls."""
    from keras.src.distribution import distribution_lib

    return distribution_lib


def layout_map_of(distribution: Any) -> Any:
    """Return the LayoutMap of a `keras.distribution.ModelParallel`."""
    return distribution._layout_map


def value_of(variable: Any) -> Any:
    """Return the content of a variable, an array or its placeholder; None before the variable is initialised."""
    return vars(variable).get("_value")


def values_of(variables: Iterable[Any]) -> list[Any]:
    """Return `value_of` of each variable."""
    return [vars(variable).get("_value") for variable in variables]


def attach(variable: Any, array: Any) -> None:
    """Store an array or a placeholder in a variable, without a cast or a copy."""
    vars(variable)["_value"] = array


def install_placeholders(placeholder: type) -> None:
    """Let variables hold placeholders, which fetch the array on the first read.

    Args:
        placeholder: class of the placeholders. `read(variable)` returns the array, and `written(variable)` is called
            when the variable is assigned another value.
    """

    def read(self: Any) -> Any:
        try:
            value = self.__dict__["_value"]
        except KeyError:
            raise AttributeError("_value") from None
        return value.read(self) if value.__class__ is placeholder else value

    def write(self: Any, value: Any) -> None:
        attributes = self.__dict__
        before = attributes.get("_value")
        if before.__class__ is placeholder:
            before.written(self)
        attributes["_value"] = value

    variable_class()._value = property(read, write)


def array_of(value: Any) -> Any:
    """Return the array of a Keras variable; return any other value unchanged."""
    return value.value if hasattr(value, "_value") and hasattr(value, "aggregation") else value


def stateless_scope() -> Any | None:
    """Return the active stateless scope, or None."""
    from keras.src.backend.common import stateless_scope as scopes

    return scopes.get_stateless_scope()


def _global(name: str) -> Any:
    """Return one of Keras's global attributes, or None."""
    from keras.src.backend.common import global_state

    return global_state.get_global_attribute(name)


def _set_global(name: str, value: Any) -> None:
    from keras.src.backend.common import global_state

    global_state.set_global_attribute(name, value)


@contextlib.contextmanager
def fresh_names() -> Iterator[None]:
    """Restart the numbering of layer and variable names within a block, as in a new process."""
    from keras.src.utils import naming

    before = _global("object_name_uids")
    naming.reset_uids()
    try:
        yield
    finally:
        _set_global("object_name_uids", before)


def global_seed_state() -> Any | None:
    """Return the state of Keras's global seed generator, `(2,)`; None before its first use."""
    return None if (generator := _global("global_seed_generator")) is None else generator.state.value


def set_global_seed_state(state: Any | None) -> None:
    """Set the state of Keras's global seed generator; None removes the generator, and its next use makes a new one."""
    from keras.src.random import seed_generator

    _set_global("global_seed_generator", None)
    if state is not None:
        seed_generator.global_seed_generator().state.assign(state)


def wait_for_callbacks(callbacks: Any) -> None:
    """Wait until the callbacks that a `CallbackList` calls in other threads have returned."""
    if callbacks._async_train:
        callbacks._flush_futures()


def row_arrays(adapter: Any) -> Any | None:
    """Return the arrays of an `ArrayDataAdapter` as NumPy arrays, cast as Keras casts; None for other adapters.

    Sparse arrays are not rows of NumPy arrays either: None.
    """
    from keras.src import tree
    from keras.src.trainers.data_adapters import array_slicing
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

    if not isinstance(adapter, ArrayDataAdapter):
        return None
    sliceable = array_slicing.convert_to_sliceable(adapter._inputs, target_backend="jax")
    dense = (array_slicing.NumpySliceable, array_slicing.PandasSliceable)
    if not all(isinstance(array, dense) for array in tree.flatten(sliceable) if array is not None):
        return None
    return tree.map_structure(lambda rows: rows.convert_to_numpy(rows.array), sliceable, none_is_leaf=False)


def row_indices(adapter: Any) -> list[Any]:
    """Return the row indices of each batch of an epoch, drawn as the adapter's own iterator draws them.

    The iterator of Keras takes 4 us for each batch. Here it draws one batch of all rows, which is then split.
    """
    import numpy as np

    rows, size = np.arange(adapter._num_samples, dtype=np.int32), adapter.batch_size
    if adapter._shuffle == "batch":  # Each batch is a permutation of its own.
        return [indices for (indices,) in adapter._get_iterator(lambda rows, indices: rows[indices], (rows,))]
    whole = copy.copy(adapter)
    whole._size, whole._batch_size = 1, len(rows)
    ((drawn,),) = whole._get_iterator(lambda rows, indices: rows[indices], (rows,))
    return [drawn[start : start + size] for start in range(0, len(rows), size)]


def batch_sizes(adapter: Any) -> list[int]:
    """Return the distinct batch sizes of an `ArrayDataAdapter` in rows: full batches first, then a partial one."""
    full = [adapter.batch_size] if adapter._num_samples >= adapter.batch_size else []
    return [*full, adapter.partial_batch_size] if adapter.has_partial_batch else full


def is_built(model: Any) -> bool:
    """Return whether all layers of a model are built, so that Keras needs no batch to build it."""
    return all(layer.built for layer in model._flatten_layers())


def no_callbacks() -> Any:
    """Return an empty list of callbacks, for which Keras's loops start no thread."""
    import keras

    callbacks = keras.callbacks.CallbackList()
    callbacks._async_test = callbacks._async_predict = callbacks._async_train = False
    return callbacks


def is_overridden(method: Any) -> bool:
    """Return whether a callback's method is overridden."""
    from keras.src import utils

    return not utils.is_default(method)


def set_summaries(summary: Any) -> None:
    """Let the callback `TensorBoard` write by the functions of a module, in the place of `tf.summary`."""
    from keras.src.callbacks import tensorboard

    names = ("create_file_writer", "scalar", "histogram", "image", "record_if")
    functions = SimpleNamespace(**{name: getattr(summary, name) for name in names})
    # These two write a graph of TensorFlow, and there is none. The profile of a batch is JAX's own.
    functions.trace_on = functions.trace_export = lambda **_: None
    wanted: Any = tensorboard.TensorBoard
    wanted.summary = property(lambda self: self._summary_module or functions)
    tensorboard.keras_model_summary = summary.graph


def writes_each_batch(callback: Any) -> bool:
    """Return whether a `TensorBoard` callback writes or traces after batches, not only after epochs."""
    return callback.update_freq != "epoch" or callback.write_steps_per_second or callback._should_trace


def is_one_shot(adapter: Any) -> bool:
    """Return whether an adapter's data can be iterated only once, as with a Python generator."""
    from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter

    return isinstance(adapter, GeneratorDataAdapter)


# Copies of models.


def is_graph(model: Any) -> bool:
    """Return whether a model is a graph of layers that Keras can clone: Sequential, or functional."""
    import keras
    from keras.src.models.functional import Functional

    return isinstance(model, keras.Sequential | Functional)


@contextlib.contextmanager
def uncompiled(model: Any) -> Iterator[None]:
    """Mark a model as not compiled within a block: otherwise Keras's clone copies the compile settings through JSON."""
    before = vars(model)["compiled"]
    vars(model)["compiled"] = False
    try:
        yield
    finally:
        vars(model)["compiled"] = before


def shallow_copy(model: Any) -> Any:
    """Return a copy that shares the layers and all other attributes of a model, and can be compiled separately."""
    duplicate = object.__new__(type(model))
    vars(duplicate).update(vars(model))
    return duplicate


def compile_plainly(model: Any, settings: dict[str, Any]) -> None:
    """Compile a model for tracing with Keras's own `compile`, without wrappers and overrides."""
    compile_ = trainer_module().Trainer.compile
    while is_wrapped(compile_):
        compile_ = compile_.__wrapped__
    # Keras warns about `jit_compile=True` for some models; a trace does not need the setting.
    compile_(model, **{**settings, "jit_compile": False})


@contextlib.contextmanager
def without_values(guarded: Callable[[Any, Callable], Callable] = lambda _, initializer: initializer) -> Iterator[None]:
    """Let variables that are made in a block have shapes but no values, also after the block.

    Args:
        guarded: makes the initializer that each read of a variable calls, from the variable and its own.
    """
    import keras

    wrap(variable_class(), "__init__", _wrap_first_value, by="without values")
    before = list(_global("uninitialized_variables") or [])
    scope = keras.StatelessScope(initialize_variables=False)
    setattr(scope, _WITHOUT_VALUES, guarded)
    try:
        with scope:
            yield
    finally:
        pending = _global("uninitialized_variables") or []
        pending[:] = before


_WITHOUT_VALUES = "_anytpu_without_values"


def _wrap_first_value(init: Callable) -> Callable:
    """Let a variable be made from a value, as Adafactor makes its placeholders. Keras allows initializers alone."""

    def __init__(self: Any, initializer: Any, shape: Any = None, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        is_without = hasattr(stateless_scope(), _WITHOUT_VALUES)
        is_value = not callable(initializer) and not isinstance(initializer, str)
        if is_value and is_without:
            value = self._convert_to_tensor(initializer, dtype=dtype)
            initializer, shape, dtype = (lambda shape, dtype: value), value.shape, dtype or value.dtype
        init(self, initializer, shape, dtype, *args, **kwargs)
        # A value that was passed can be read, and so can a number, such as the learning rate.
        if is_without and not is_value and self.shape != ():
            self._initializer = getattr(stateless_scope(), _WITHOUT_VALUES)(self, self._initializer)

    return __init__


def layers_of(model: Any) -> list[Any]:
    """Return a model and all its nested layers."""
    return model._flatten_layers()


def compiled_with(model: Any) -> dict[str, Any]:
    """Return the arguments of a model's `compile`, as they were passed."""
    return model._compile_config.config


def returned_logs(model: Any, logs: dict[str, Any], as_dict: bool) -> Any:
    """Return logs in the form of `train_on_batch`: numbers by name, or a list of them in the order of the metrics."""
    from keras.src.utils.python_utils import pythonify_logs

    logs = pythonify_logs(logs)
    return logs if as_dict else model._flatten_metrics_in_order(logs)


def finish_build(model: Any) -> None:
    """Let Keras record that a model's build has ended."""
    model._post_build()


def build_for(model: Any, batch: Any) -> None:
    """Build a compiled model, its metrics and its optimizer for the specs of a batch."""
    model._symbolic_build(data_batch=batch)


def trained_by(optimizer: Any) -> list[Any]:
    """Return the variables that an optimizer was built for."""
    return optimizer._trainable_variables


def rate_setting(optimizer: Any) -> Any:
    """Return the learning rate of an optimizer: its variable, or its schedule."""
    return optimizer._learning_rate


def add_variables(optimizer: Any, variables: list[Any]) -> None:
    """Let an optimizer count further variables among its own, so that Keras passes them between steps."""
    optimizer._variables.extend(variables)


def compiled_metrics(model: Any) -> Any | None:
    """Return the metric that holds all metrics passed to `compile`, or None."""
    return model._compile_metrics


def loss_tracker(model: Any) -> Any | None:
    """Return Keras's own mean of the loss of a compiled model, or None."""
    return model._loss_tracker


def optimized_variables(optimizer: Any) -> list[Any]:
    """Return the variables that a built optimizer was built for."""
    return optimizer._trainable_variables


def data_adapters_module() -> Any:
    """Return the module in which Keras looks up `get_data_adapter`, which chooses the adapter by the type of x."""
    from keras.src.trainers import data_adapters

    return data_adapters


def class_weights(y: Any, class_weight: dict[int, float]) -> Any:
    """Return the weight of each row of y, as Keras's data adapters compute it from class weights."""
    from keras.src.trainers.data_adapters.data_adapter_utils import class_weight_to_sample_weights

    return class_weight_to_sample_weights(y, class_weight)


# Masks, and the graph of layers that propagates them.


def graph_of(model: Any) -> Any | None:
    """Return the graph of layers that a model's `call` runs, or None if it is not built or overrides `call`."""
    import keras
    from keras.src.models.functional import Functional

    if isinstance(model, keras.Sequential):
        graph, is_own = model._functional, type(model).call is not keras.Sequential.call
    else:
        graph, is_own = model, type(model).call is not Functional.call
    return None if is_own or not isinstance(graph, Functional) else graph


def calls_of(graph: Any) -> list[tuple[Any, list[Any], list[Any], list[Any]]]:
    """Return (operation, symbolic inputs, symbolic masks, symbolic outputs) of each call in a graph, in order."""
    from keras import KerasTensor, tree

    by_depth = graph._nodes_by_depth
    calls = []
    for node in (node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth] if not node.is_input):
        args, kwargs = node.arguments.args, node.arguments.kwargs
        masks = {name: value for name, value in kwargs.items() if name.endswith("mask")}
        others = {name: value for name, value in kwargs.items() if name not in masks}
        inputs, masks = (
            [leaf for leaf in tree.flatten(arguments) if isinstance(leaf, KerasTensor)]
            for arguments in ((args, others), masks)
        )
        calls.append((node.operation, inputs, masks, node.outputs))
    return calls


def input_structure(graph: Any) -> Any:
    """Return the inputs of a graph of layers, nested as they were given to `keras.Model`."""
    return graph._inputs_struct


def arguments_of(layer: Any) -> list[tuple[tuple, dict[str, Any]]]:
    """Return the symbolic arguments of each call of a layer in graphs: (args, kwargs)."""
    return [(node.arguments.args, node.arguments.kwargs) for node in layer._inbound_nodes]


def mask_of(tensor: Any) -> Any | None:
    """Return the mask attached to a tensor, or None."""
    from keras.src.backend.common import masking

    return masking.get_keras_mask(tensor)


def set_mask(tensor: Any, mask: Any) -> None:
    """Attach a mask to a tensor."""
    from keras.src.backend.common import masking

    masking.set_keras_mask(tensor, mask)


def keras_backend() -> Any:
    """Return the module in which layers look up the functions of the backend."""
    from keras.src import backend

    return backend
