"""What a converted Keras model can do beyond what every Keras model does: the methods of the first TPU models.

Idea: `keras_to_tpu_model` returns a Keras model whose class has these methods in front of its own. fit, evaluate and
predict are Keras's and run on the cores of the model's strategy; here they only learn to take a function that returns
a data set, and weights may be saved under a plain .h5 name.

Rule: nothing here computes. What is said of a batch is said of the global batch, everywhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import h5py
import keras

from anytpu.errors import SettingError
from anytpu.files.replacing import replaced
from anytpu.strategy import TPUStrategy
from anytpu.strategy.current import CURRENT
from anytpu.train import clones
from anytpu.train.passes import passes_of

_CONVERSION = "_anytpu_conversion"
_HDF5 = (".h5", ".hdf5")


@dataclasses.dataclass
class Conversion:
    """Where a converted model comes from.

    Attributes:
        original: the model that was converted.
        strategy: where the converted one runs.
        is_recompiled: True once it was compiled otherwise than the original.
        has_told: True once it was said what the batches of a function's data set are.
    """

    original: Any
    strategy: TPUStrategy
    is_recompiled: bool = False
    has_told: bool = False


class TPUModel:
    """The methods of a converted model; its class has them in front of those of the model that was converted.

    fit, evaluate and predict take any number of rows; `batch_size` is the global batch, of which each core gets its
    part. A step sees the whole batch: BatchNorm, dropout and losses are those of one device. Compile before the
    conversion or after it.
    """

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile for the strategy that the model was converted for; the arguments are Keras's."""
        conversion = conversion_of(self)
        with conversion.strategy.scope():
            super().compile(*args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]
        conversion.is_recompiled = True

    def fit(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train on all cores: Keras's `fit`, with its arguments and what it returns.

        Args:
            x: what Keras takes, or a function without arguments that returns a data set or a generator of `(x, y)` or
                `(x, y, sample_weight)`; a generator is made anew for each pass. Its batches are global batches: each
                core gets its part of one. (The first TPU systems took them for the batches of one core.)
            y: the targets; None when x gives them.
            *args: see Keras.
            **kwargs: see Keras; `validation_data` may be a function too.

        Raises:
            SettingError: x is a function, and y or batch_size was given as well.
        """
        if _is_function(x):
            x = self._made_by(x, "fit", y, kwargs)
        if _is_function(kwargs.get("validation_data")):
            made = self._made_by(kwargs["validation_data"], "fit", None, {})
            kwargs = {**kwargs, "validation_data": made}
        return super().fit(x, y, *args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]

    def evaluate(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Evaluate on all cores: Keras's `evaluate`; x may be a function as in `fit`."""
        if _is_function(x):
            x = self._made_by(x, "evaluate", y, kwargs)
        return super().evaluate(x, y, *args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Predict on all cores, in the order of the rows: Keras's `predict`; x may be a function as in `fit`."""
        if _is_function(x):
            x = self._made_by(x, "predict", None, kwargs)
        return super().predict(x, *args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]

    def sync_to_cpu(self) -> Any:
        """Bring everything back to the model that was converted, and return it.

        It gets the weights, the optimizer's slots, step and learning rate, and the states of random generators, and is
        compiled if this one was compiled since. It is Keras's own: its `predict` needs no TPU and no scope, and its
        `fit` goes on where this one stands. This model can train on too; sync again after that.

        Example:
            >>> import keras, numpy as np
            >>> from anytpu.train import keras_to_tpu_model
            >>> model = keras_to_tpu_model(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
            >>> model.compile("sgd", "mse")
            >>> x, y = np.ones((6, 2), "float32"), np.ones((6, 1), "float32")
            >>> history = model.fit(x, y, verbose=0)
            >>> model.sync_to_cpu().predict(x, verbose=0).shape
            (6, 1)
        """
        conversion = conversion_of(self)
        original = conversion.original
        with _no_scope():
            clones.copy_values(self, original)
            if conversion.is_recompiled:
                original.compile(**clones.settings_of(self))
                conversion.is_recompiled = False
            clones.copy_optimizer(self, original)
        return original

    def save_weights(self, filepath: Any, overwrite: bool = True, **kwargs: Any) -> None:
        """Save the weights, and the optimizer's state, to a file.

        Args:
            filepath: a name that Keras takes, "model.weights.h5", or a plain one, "model.h5". The file is the same:
                plain Keras reads a plain one once it is called .weights.h5.
            overwrite: whether a file of this name may be replaced.
            **kwargs: see Keras.

        Raises:
            SettingError: `overwrite` is False, and there is such a file.
        """
        path = Path(filepath)
        if not _is_plain_hdf5(path):
            super().save_weights(filepath, overwrite=overwrite, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]
            return
        if path.exists() and not overwrite:
            raise SettingError(f"{str(path)!r} exists, and overwrite is False: pass overwrite=True, or another name")
        # Written beside it under a name that Keras takes, so that an interrupt leaves the old file whole.
        with replaced(path, ".weights.h5") as beside:
            super().save_weights(beside, overwrite=True, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]

    def load_weights(self, filepath: Any, skip_mismatch: bool = False, **kwargs: Any) -> None:
        """Load weights, and the optimizer's state where the file has it.

        Args:
            filepath: what Keras takes, a plain .h5 file that `save_weights` wrote, or one of Keras 2.
            skip_mismatch: whether layers of other shapes are passed over.
            **kwargs: see Keras.
        """
        path = Path(filepath)
        load = functools.partial(super().load_weights, skip_mismatch=skip_mismatch, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]
        if not path.is_file() or path.suffix not in _HDF5 or _is_of_keras_2(path):
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
        """Let an optimizer that has not run yet have the slots that a file has; Keras would pass over them."""
        model: Any = self
        if model.built and model.compiled and model.optimizer is not None and not model.optimizer.built:
            with h5py.File(path, "r") as file:
                saved: Any = file.get("optimizer/vars", ())
                if len(saved) > len(model.optimizer.variables):
                    model.optimizer.build(model.trainable_variables)

    def _made_by(self, function: Any, verb: str, y: Any, given: dict[str, Any]) -> Any:
        """Return the data set that a function makes, for Keras; a generator as one that can start again."""
        extra = [name for name, value in (("y", y), ("batch_size", given.get("batch_size"))) if value is not None]
        if extra:
            raise SettingError(
                f"{' and '.join(extra)} cannot be given when x is a function: the data set that it returns has the "
                f"targets and the batches in it. Type model.{verb}(make_dataset), where make_dataset() yields (x, y)"
            )
        self._tell_of_batches()
        made = function()
        return passes_of(function) if isinstance(made, Iterator) else made

    def _tell_of_batches(self) -> None:
        conversion = conversion_of(self)
        cores = conversion.strategy.num_replicas_in_sync
        if conversion.has_told or cores == 1:
            return
        conversion.has_told = True
        warnings.warn(
            f"the batches of the data set are global batches: each of the {cores} cores gets its part of one. The "
            "first TPU systems took them for the batches of one core; for the same training as there, make them "
            f"{cores} times as large",
            stacklevel=4,
        )

    def __repr__(self) -> str:
        return f"<TPU model of {super().__repr__()[1:-1]}, on {conversion_of(self).strategy!r}>"


def converted(model: Any, conversion: Conversion) -> Any:
    """Give a copy of a model the methods of a converted one, and return it."""
    vars(model)[_CONVERSION] = conversion
    object.__setattr__(model, "__class__", _class_with_methods(type(model)))
    return model


def conversion_of(model: Any) -> Any:
    """Return where a converted model comes from; None for any other."""
    return vars(model).get(_CONVERSION)


def plain_class(model: Any) -> type:
    """Return the class of a model without the methods of a converted one."""
    cls = type(model)
    return cls.__mro__[2] if issubclass(cls, TPUModel) else cls


def _class_with_methods(cls: type) -> type:
    # A class knows its subclasses weakly: a table of them would keep each class of the user's for ever.
    known = next((one for one in cls.__subclasses__() if one.__bases__ == (TPUModel, cls)), None)
    if known is not None:
        return known
    # Under the same name, so that whatever saves the model writes what any program can load.
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls.__name__, (TPUModel, cls), names)


def _is_function(x: Any) -> bool:
    """Say whether x is a function that makes a data set, and not one itself."""
    return callable(x) and not isinstance(x, Iterable | keras.utils.PyDataset)


def _is_plain_hdf5(path: Path) -> bool:
    return path.name.endswith(_HDF5) and not path.name.endswith(".weights.h5")


def _is_of_keras_2(path: Path) -> bool:
    with h5py.File(path, "r") as file:
        return "layer_names" in file.attrs or "model_weights" in file


@contextlib.contextmanager
def _no_scope() -> Iterator[None]:
    token = CURRENT.set(None)
    try:
        yield
    finally:
        CURRENT.reset(token)
