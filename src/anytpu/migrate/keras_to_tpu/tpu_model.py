"""The methods of a converted Keras model that plain Keras models lack: those of the first TPU models.

Idea: `keras_to_tpu_model` returns a Keras model whose class inherits from `TPUModel` first. The methods fit, evaluate
and predict are Keras's and run on the cores of the model's strategy. Here they also accept a function that returns a
data set, and weights may be saved under a plain .h5 name.

Rule: nothing here computes. "Batch" always means the global batch.
"""

from __future__ import annotations

import dataclasses
import functools
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np

from anytpu._contexts import value_within
from anytpu.errors import SettingError
from anytpu.files.replacing import replaced
from anytpu.pipeline import Dataset
from anytpu.strategy import TPUStrategy
from anytpu.strategy.current import CURRENT
from anytpu.train import clones

_CONVERSION = "_anytpu_conversion"
_HDF5 = (".h5", ".hdf5")


@dataclasses.dataclass
class Conversion:
    """The origin of a converted model.

    Attributes:
        original: the model that was converted.
        strategy: the strategy that the converted model runs on.
        is_recompiled: whether the converted model was compiled after the conversion.
        has_warned: whether the warning about global batches of a function's data set was given.
    """

    original: Any
    strategy: TPUStrategy
    is_recompiled: bool = False
    has_warned: bool = False


class TPUModel:
    """The methods of a converted model; its class inherits them before those of the original's class.

    fit, evaluate and predict take any number of rows. `batch_size` is the global batch, which is split over the cores.
    A step sees the whole batch: BatchNorm, dropout and losses are computed as on one device. Compile before or after
    the conversion.
    """

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile for the strategy that the model was converted for; the arguments are Keras's."""
        conversion = conversion_of(self)
        with conversion.strategy.scope():
            super().compile(*args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]
        conversion.is_recompiled = True

    def fit(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train on all cores with Keras's `fit`: the same arguments and the same result.

        Args:
            x: data as Keras takes it, or a function without arguments. The function returns a data set or a generator
                of `(x, y)` or `(x, y, sample_weight)`. A generator is made again for each pass. Its batches are global
                batches, split over the cores. (The first TPU systems took them for the batches of one core.)
            y: the targets; None if x contains them.
            *args: see Keras.
            **kwargs: see Keras; `validation_data` may be a function too.

        Raises:
            SettingError: x is a function, and y or batch_size was passed as well.
        """
        if _is_function(x):
            x = self._make_dataset(x, "fit", y, kwargs)
        if _is_function(kwargs.get("validation_data")):
            dataset = self._make_dataset(kwargs["validation_data"], "fit", None, {})
            kwargs = {**kwargs, "validation_data": dataset}
        return super().fit(x, y, *args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]

    def evaluate(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Evaluate on all cores with Keras's `evaluate`; x may be a function as in `fit`."""
        if _is_function(x):
            x = self._make_dataset(x, "evaluate", y, kwargs)
        return super().evaluate(x, y, *args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Predict on all cores with Keras's `predict`, in the order of the rows; x may be a function as in `fit`."""
        if _is_function(x):
            x = self._make_dataset(x, "predict", None, kwargs)
        return super().predict(x, *args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]

    def sync_to_cpu(self) -> Any:
        """Copy the state back to the original model, and return the original.

        It gets the weights, the optimizer's slots, step and learning rate, and the states of random generators. It is
        compiled again if this model was compiled after the conversion. The original is a plain Keras model: its
        `predict` needs no TPU and no scope, and its `fit` continues from this state. This model can also train on; sync
        again after that.

        Example:
            >>> import keras, numpy as np
            >>> from anytpu import keras_to_tpu_model
            >>> model = keras_to_tpu_model(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
            >>> model.compile("sgd", "mse")
            >>> x, y = np.ones((6, 2), "float32"), np.ones((6, 1), "float32")
            >>> history = model.fit(x, y, verbose=0)
            >>> model.sync_to_cpu().predict(x, verbose=0).shape
            (6, 1)
        """
        conversion = conversion_of(self)
        original = conversion.original
        with value_within(CURRENT, None):
            clones.copy_values(self, original)
            if conversion.is_recompiled:
                original.compile(**clones.settings_of(self))
                conversion.is_recompiled = False
            clones.copy_optimizer(self, original)
        return original

    def save_weights(self, filepath: Any, overwrite: bool = True, **kwargs: Any) -> None:
        """Save the weights, and the optimizer's state, to a file.

        Args:
            filepath: a name as Keras takes it, "model.weights.h5", or a plain name, "model.h5". The content is the
                same: plain Keras reads the file after it is renamed to .weights.h5.
            overwrite: whether an existing file may be replaced.
            **kwargs: see Keras.

        Raises:
            SettingError: `overwrite` is False, and the file exists.
        """
        path = Path(filepath)
        if not _is_plain_hdf5(path):
            super().save_weights(filepath, overwrite=overwrite, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]
            return
        if path.exists() and not overwrite:
            raise SettingError(f"{str(path)!r} exists, and overwrite is False: pass overwrite=True, or another name")
        # Written to a temporary file beside it, under a name that Keras takes: an interrupt keeps the old file.
        with replaced(path, ".weights.h5") as beside:
            super().save_weights(beside, overwrite=True, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]

    def load_weights(self, filepath: Any, skip_mismatch: bool = False, **kwargs: Any) -> None:
        """Load weights, and the optimizer's state if the file has it.

        Args:
            filepath: a file that Keras reads, a plain .h5 file written by `save_weights`, or a file of Keras 2.
            skip_mismatch: whether to skip layers whose shapes differ.
            **kwargs: see Keras.
        """
        path = Path(filepath)
        load = functools.partial(super().load_weights, skip_mismatch=skip_mismatch, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]
        if not path.is_file() or path.suffix not in _HDF5 or _is_keras_2_file(path):
            load(filepath)
            return
        self._make_slots_for(path)
        if not _is_plain_hdf5(path):
            load(filepath)
            return
        with tempfile.TemporaryDirectory() as folder:
            link = Path(folder) / "model.weights.h5"
            link.symlink_to(path.absolute())
            load(link)

    def _make_slots_for(self, path: Path) -> None:
        """Build an optimizer that has not run yet if the file has slots for it; Keras would skip them."""
        model: Any = self
        if model.built and model.compiled and model.optimizer is not None and not model.optimizer.built:
            with h5py.File(path, "r") as file:
                saved: Any = file.get("optimizer/vars", ())
                if len(saved) > len(model.optimizer.variables):
                    model.optimizer.build(model.trainable_variables)

    def _make_dataset(self, function: Any, verb: str, y: Any, arguments: dict[str, Any]) -> Any:
        """Return the data set that a function makes; a generator becomes a data set that can start again."""
        extra = [name for name, value in (("y", y), ("batch_size", arguments.get("batch_size"))) if value is not None]
        if extra:
            raise SettingError(
                f"{' and '.join(extra)} cannot be passed when x is a function: the data set that it returns contains "
                f"the targets and the batches. Type model.{verb}(make_dataset), where make_dataset() yields (x, y)"
            )
        self._warn_of_global_batches()
        dataset = function()
        return Dataset.from_generator(lambda: map(_as_arrays, function())) if isinstance(dataset, Iterator) else dataset

    def _warn_of_global_batches(self) -> None:
        conversion = conversion_of(self)
        cores = conversion.strategy.num_replicas_in_sync
        if conversion.has_warned or cores == 1:
            return
        conversion.has_warned = True
        warnings.warn(
            f"the batches of the data set are global batches: each of the {cores} cores gets its part of one. The "
            "first TPU systems took them for the batches of one core; for the same training as there, make them "
            f"{cores} times as large",
            stacklevel=4,
        )

    def __repr__(self) -> str:
        return f"<TPU model of {super().__repr__()[1:-1]}, on {conversion_of(self).strategy!r}>"


def _as_arrays(batch: Any) -> Any:
    return keras.tree.map_structure(lambda leaf: None if leaf is None else np.asarray(leaf), batch)


def converted(model: Any, conversion: Conversion) -> Any:
    """Add the methods of a converted model to a copy of a model, and return the copy."""
    vars(model)[_CONVERSION] = conversion
    object.__setattr__(model, "__class__", _class_with_methods(type(model)))
    return model


def conversion_of(model: Any) -> Any:
    """Return the `Conversion` of a converted model; None for any other model."""
    return vars(model).get(_CONVERSION)


def plain_class(model: Any) -> type:
    """Return the class of a model without the methods of a converted model."""
    cls = type(model)
    return cls.__mro__[2] if issubclass(cls, TPUModel) else cls


def _class_with_methods(cls: type) -> type:
    # A class holds its subclasses by weak references; a table would keep every class of the user alive.
    known = next((sub for sub in cls.__subclasses__() if sub.__bases__ == (TPUModel, cls)), None)
    if known is not None:
        return known
    # The class keeps its name, so that a saved model can be loaded by any program.
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls.__name__, (TPUModel, cls), names)


def _is_function(x: Any) -> bool:
    """Return whether x is a function that makes a data set, rather than a data set."""
    return callable(x) and not isinstance(x, Iterable | keras.utils.PyDataset)


def _is_plain_hdf5(path: Path) -> bool:
    return path.name.endswith(_HDF5) and not path.name.endswith(".weights.h5")


def _is_keras_2_file(path: Path) -> bool:
    with h5py.File(path, "r") as file:
        return "layer_names" in file.attrs or "model_weights" in file
