"""Every private name of Keras that anytpu touches, and how it is touched.

Idea: Keras 3 keeps its fit loop, its data adapters and its variables behind `keras.src`. A new Keras may move any of
them, so they are named here and nowhere else, `tests/test_keras_private.py` names each of them, and pyproject.toml pins
Keras from above.

Rule: nothing here decides anything. A function returns a private object, or puts a wrapper around one; Keras is
imported inside the functions, so that importing anytpu stays light.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any

_WRAPPED = "_anytpu_wrapped"


def wrap(owner: Any, name: str, make: Callable[[Callable], Callable], by: str = "") -> None:
    """Replace `owner.name` by `make(original)`, once; a second call does nothing, unless it comes from somebody else.

    Args:
        owner: the class or module.
        name: the name in it.
        make: makes the wrapper.
        by: who wraps, where more than one does.
    """
    original = getattr(owner, name)
    before = vars(original).get(_WRAPPED, frozenset())
    if by in before:
        return
    wrapper = functools.wraps(original)(make(original))
    setattr(wrapper, _WRAPPED, before | {by})
    setattr(owner, name, wrapper)


def add_method(owner: Any, name: str, function: Callable) -> None:
    """Give a class a method of a name that it does not have."""
    if not hasattr(owner, name):
        setattr(owner, name, function)


def is_wrapped(function: Any) -> bool:
    """Say whether a function is one that `wrap` put in place."""
    return _WRAPPED in vars(function)


def jax_trainer_module() -> Any:
    """Return the module of `JAXTrainer`, its fit loop, and the name `JAXEpochIterator` that the loop looks up."""
    from keras.src.backend.jax import trainer

    return trainer


def jax_core_module() -> Any:
    """Return the module of JAX's `remat`, which `keras.remat` looks up."""
    from keras.src.backend.jax import core

    return core


def trainer_class() -> Any:
    """Return the class whose `compile` every Keras model inherits."""
    from keras.src.trainers.trainer import Trainer

    return Trainer


def trainer_module() -> Any:
    """Return the module in which `compile` looks up `model_supports_jit`, which resolves `jit_compile="auto"`."""
    from keras.src.trainers import trainer

    return trainer


def epoch_iterator_class() -> Any:
    """Return the class that chooses the data adapter and walks over an epoch."""
    from keras.src.trainers.epoch_iterator import EpochIterator

    return EpochIterator


def variable_class() -> Any:
    """Return the class of all Keras variables."""
    from keras.src.backend.common.variables import Variable

    return Variable


def value_of(variable: Any) -> Any:
    """Return what a variable holds now, an array or what stands for one; None before it is initialised."""
    return vars(variable).get("_value")


def attach(variable: Any, array: Any) -> None:
    """Make a variable hold an array, or what stands for one, without a cast or a copy."""
    vars(variable)["_value"] = array


def offer_reading(unread: type) -> None:
    """Let variables hold what stands for an array until it is read.

    Args:
        unread: the class of what stands there; `read(variable)` returns the array, and `written(variable)` is called
            when the variable is assigned another value.
    """

    def read(self: Any) -> Any:
        try:
            value = self.__dict__["_value"]
        except KeyError:
            raise AttributeError("_value") from None
        return value.read(self) if value.__class__ is unread else value

    def write(self: Any, value: Any) -> None:
        held = self.__dict__
        before = held.get("_value")
        if before.__class__ is unread:
            before.written(self)
        held["_value"] = value

    variable_class()._value = property(read, write)


def plain(one: Any) -> Any:
    """Return the array of a Keras variable; anything else as it is."""
    return one.value if hasattr(one, "_value") and hasattr(one, "aggregation") else one


def stateless_scope() -> Any | None:
    """Return the stateless scope that variables read from and write to now, or None."""
    from keras.src.backend.common import stateless_scope as scopes

    return scopes.get_stateless_scope()


@contextlib.contextmanager
def fresh_names() -> Iterator[None]:
    """Let the names of layers and variables count from the beginning in a block, as in a new process."""
    from keras.src.backend.common import global_state
    from keras.src.utils import naming

    before = global_state.get_global_attribute("object_name_uids")
    naming.reset_uids()
    try:
        yield
    finally:
        global_state.set_global_attribute("object_name_uids", before)


def forget_uninitialized(variable: Any) -> None:
    """Leave a variable that was made while Keras traces without a value of its own."""
    from keras.src.backend.common import global_state

    waiting = global_state.get_global_attribute("uninitialized_variables") or []
    waiting[:] = [one for one in waiting if one is not variable]


def forget_all_uninitialized() -> None:
    """Leave all such variables: one whose initializer raises would raise again wherever Keras traces next."""
    from keras.src.backend.common import global_state

    global_state.set_global_attribute("uninitialized_variables", [])


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
    if not all(isinstance(one, dense) for one in tree.flatten(sliceable) if one is not None):
        return None
    return tree.map_structure(lambda one: one.convert_to_numpy(one.array), sliceable, none_is_leaf=False)


def row_numbers(adapter: Any) -> Any:
    """Yield the row numbers of each batch of an epoch, drawn as the adapter's own iterator draws them."""
    import numpy as np

    every = (np.arange(adapter._num_samples, dtype=np.int32),)
    for (numbers,) in adapter._get_iterator(lambda rows, indices: rows[indices], every):
        yield numbers


def batch_sizes(adapter: Any) -> list[int]:
    """Return the rows of the batches that an `ArrayDataAdapter` gives: of full ones, of a partial one."""
    full = [adapter.batch_size] if adapter._num_samples >= adapter.batch_size else []
    return [*full, adapter.partial_batch_size] if adapter.has_partial_batch else full


def is_built(model: Any) -> bool:
    """Say whether all layers of a model are built, so that Keras asks for no batch to build it."""
    return all(layer.built for layer in model._flatten_layers())


def no_callbacks() -> Any:
    """Return an empty list of callbacks, for which Keras's loops start no thread."""
    import keras

    callbacks = keras.callbacks.CallbackList()
    callbacks._async_test = callbacks._async_predict = callbacks._async_train = False
    return callbacks


def is_overridden(method: Any) -> bool:
    """Say whether a callback's method was overridden."""
    from keras.src import utils

    return not utils.is_default(method)


def is_one_shot(adapter: Any) -> bool:
    """Say whether an adapter's data can be walked over only once: a Python generator."""
    from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter

    return isinstance(adapter, GeneratorDataAdapter)


def array_adapter(array: Any, batch_size: int, shuffle: bool) -> Any:
    """Return Keras's adapter of an array."""
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

    return ArrayDataAdapter(array, batch_size=batch_size, shuffle=shuffle)


def data_adapter_class() -> Any:
    """Return the class of which Keras takes an object in place of data: it yields the batches of each pass."""
    from keras.src.trainers.data_adapters.data_adapter import DataAdapter

    return DataAdapter


# Copies of models.


def is_graph(model: Any) -> bool:
    """Say whether a model is a graph of layers that Keras can clone: Sequential, or functional."""
    import keras
    from keras.src.models.functional import Functional

    return isinstance(model, keras.Sequential | Functional)


@contextlib.contextmanager
def uncompiled(model: Any) -> Iterator[None]:
    """Let a model pass for one that is not compiled: Keras's clone is compiled too, with all of it copied by JSON."""
    before = vars(model)["compiled"]
    vars(model)["compiled"] = False
    try:
        yield
    finally:
        vars(model)["compiled"] = before


def twin_of(model: Any) -> Any:
    """Return a model that shares its layers and all else with another; what it is compiled with then is its own."""
    twin = object.__new__(type(model))
    vars(twin).update(vars(model))
    return twin


def compile_plainly(model: Any, settings: dict[str, Any]) -> None:
    """Compile a model to be traced as Keras does, whatever is wrapped around `compile`, and its class made of it."""
    compile_ = trainer_class().compile
    while is_wrapped(compile_):
        compile_ = compile_.__wrapped__
    # Keras warns of a True that it does not believe; tracing asks for neither.
    compile_(model, **{**settings, "jit_compile": False})


@contextlib.contextmanager
def without_values() -> Iterator[None]:
    """Let variables that are made in a block have shapes and no values, then and afterwards."""
    import keras
    from keras.src.backend.common import global_state

    before = list(global_state.get_global_attribute("uninitialized_variables") or [])
    try:
        with keras.StatelessScope(initialize_variables=False):
            yield
    finally:
        waiting = global_state.get_global_attribute("uninitialized_variables") or []
        waiting[:] = before


def layers_of(model: Any) -> list[Any]:
    """Return a model and all layers in it, however deep."""
    return model._flatten_layers()


def compiled_with(model: Any) -> dict[str, Any]:
    """Return the arguments of a model's `compile`, as they were passed."""
    return model._compile_config.config


def returned_logs(model: Any, logs: dict[str, Any], as_dict: bool) -> Any:
    """Return logs as `train_on_batch` does: numbers by name, or a list of them in the order of the metrics."""
    from keras.src.utils.python_utils import pythonify_logs

    logs = pythonify_logs(logs)
    return logs if as_dict else model._flatten_metrics_in_order(logs)


def optimized_variables(optimizer: Any) -> list[Any]:
    """Return the variables that a built optimizer was built for."""
    return optimizer._trainable_variables


def data_adapters_module() -> Any:
    """Return the module in which Keras looks up `get_data_adapter`, which chooses the adapter of x by its type."""
    from keras.src.trainers import data_adapters

    return data_adapters


def class_weights(y: Any, class_weight: dict[int, float]) -> Any:
    """Return the weight of each row of y, as Keras's own adapters weigh classes."""
    from keras.src.trainers.data_adapters.data_adapter_utils import class_weight_to_sample_weights

    return class_weight_to_sample_weights(y, class_weight)


# Masks, and the graph that they travel through.


def graph_of(model: Any) -> Any | None:
    """Return a model as the graph that its `call` runs through, or None: not built, or written as a class."""
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
            [one for one in tree.flatten(given) if isinstance(one, KerasTensor)] for given in ((args, others), masks)
        )
        calls.append((node.operation, inputs, masks, node.outputs))
    return calls


def mask_of(tensor: Any) -> Any | None:
    """Return the mask that a tensor carries from layer to layer, or None."""
    from keras.src.backend.common import masking

    return masking.get_keras_mask(tensor)


def set_mask(tensor: Any, mask: Any) -> None:
    """Let a tensor carry a mask."""
    from keras.src.backend.common import masking

    masking.set_keras_mask(tensor, mask)


def metrics_of(model: Any) -> list[Any]:
    """Return the metrics that a model was compiled with, once its first batch has made them."""
    compiled = model._compile_metrics
    return [] if compiled is None or not compiled.built else list(compiled.metrics)


def mask_by(compute_mask: Callable) -> dict[str, Any]:
    """Return the attributes of a layer whose outputs get their mask from `compute_mask`."""
    return {"_supports_masking": True, "compute_mask": compute_mask}


def draw_key(generator: Any) -> Any:
    """Return the next random key of a layer's generator, as its dropout draws it."""
    from keras.src.backend.jax.random import jax_draw_seed

    return jax_draw_seed(generator)


# The LSTM of the CPU's own kernels.

_ZEROES_OUTPUT = contextvars.ContextVar("anytpu_zeroes_output", default=False)


def offer_lstm(lstm: Callable, is_wanted: Callable[[], bool]) -> None:
    """Make Keras's LSTM layers use `lstm` whenever `is_wanted()`.

    Args:
        lstm: takes what Keras hands to `backend.lstm`, and `zero_output_for_mask`, which Keras does not; may raise
            NotImplementedError, and Keras uses its own loop.
        is_wanted: asked at each call.
    """
    wrap(lstm_layer(), "inner_loop", _telling_of_zeroes)
    wrap(keras_backend(), "lstm", lambda original: _either(lstm, original, is_wanted))


def lstm_layer() -> Any:
    """Return the LSTM layer's class, whose `inner_loop` calls `backend.lstm`."""
    from keras.src.layers.rnn.lstm import LSTM

    return LSTM


def keras_backend() -> Any:
    """Return the module in which layers look up what a backend provides."""
    from keras.src import backend

    return backend


def _telling_of_zeroes(original: Callable) -> Callable:
    def inner_loop(layer: Any, *args: Any, **kwargs: Any) -> Any:
        before = _ZEROES_OUTPUT.set(bool(layer.zero_output_for_mask))
        try:
            return original(layer, *args, **kwargs)
        finally:
            _ZEROES_OUTPUT.reset(before)

    return inner_loop


def _either(lstm: Callable, original: Callable, is_wanted: Callable[[], bool]) -> Callable:
    def choose(*args: Any, **kwargs: Any) -> Any:
        if is_wanted():
            return lstm(*args, **kwargs, zero_output_for_mask=_ZEROES_OUTPUT.get())
        return original(*args, **kwargs)

    return choose
