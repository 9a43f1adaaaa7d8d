"""`VariableStore`: the variables of a model_fn, made once and reused by name.

Idea: a model_fn makes its layers each time it is called: for each mode, and each time that JAX traces it. The first
call makes the variables. In later calls, a new variable of a known name is replaced by the stored one. Names restart in
each call (`dense/kernel`, `dense_1/kernel`), so they depend only on the order in which layers are made. They are the
names in a checkpoint.

Rule: a name keeps its shape and dtype. A trainable variable that training has not made is an error in another mode; the
error names the layer. The variables of a mode get their values from a checkpoint together, after all of them are made
and checked, or not at all.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import jax
import keras
import numpy as np

from anytpu import _keras, _keras_layers
from anytpu._contexts import value_within
from anytpu.errors import EstimatorError
from anytpu.strategy import scopes
from anytpu.strategy.current import CURRENT
from anytpu.strategy.occupancy import Occupancy
from anytpu.train.checkpoint import ArrayForm, Checkpoint, Purpose, difference

GLOBAL_STEP = "global_step"
"""The name of the variable that counts the trained steps."""

TABLES = "embedding_tables"
"""The first part of the names of embedding tables and their slots."""

_CALL: contextvars.ContextVar[ModelCall | None] = contextvars.ContextVar("model_call", default=None)


class VariableStore:
    """The variables of one estimator.

    Attributes:
        global_step: the variable that counts the trained steps.
        variables: the variables by name, in the order of their creation.
        source: folder and step of the checkpoint whose values the variables hold or wait for; None if there is none.
    """

    def __init__(self) -> None:
        _install()
        self.global_step = keras.Variable(
            0, dtype="int32", trainable=False, name=GLOBAL_STEP, aggregation="only_first_replica"
        )
        self.variables: dict[str, Any] = {GLOBAL_STEP: self.global_step}
        self._tables: dict[str, Any] = {}
        self._modes: dict[str, frozenset[str]] = {}
        self._optimizer_state: set[str] = set()
        self.source: tuple[str, int] | None = None
        self._loaded: tuple[Checkpoint, bool] | None = None
        self._waiting: dict[str, np.ndarray] = {}
        self._saved: _SavedState | None = None
        self.occupancy = Occupancy()
        """Records the thread that uses the variables."""
        self.is_trained = False
        """Whether a training call has made all variables of the model."""

    @property
    def step(self) -> int:
        """Number of trained steps; that of the loaded checkpoint if its values still wait for their variables."""
        return int(np.asarray(self._waiting.get(GLOBAL_STEP, self.global_step.value)))

    @property
    def is_made(self) -> bool:
        """Whether a model_fn has made variables."""
        return len(self.variables) > 1

    def trainable(self) -> list[Any]:
        """Return the trainable variables, in the order of their creation."""
        return [v for name, v in self.variables.items() if v.trainable and name not in self._tables]

    def add_tables(self, variables: Iterable[Any], embeddings: Collection[Any]) -> None:
        """Add the variables of embedding tables: they belong to all modes, and no step trains them.

        Args:
            variables: all their variables.
            embeddings: those that are no state of an optimizer.
        """
        if self._tables:
            return
        weights = {id(variable) for variable in embeddings}
        self._tables = {f"{TABLES}/{variable.path}": variable for variable in variables}
        self.variables.update(self._tables)
        self._optimizer_state.update(name for name, v in self._tables.items() if id(v) not in weights)

    def values(self, mode: str) -> dict[str, np.ndarray]:
        """Return a copy of the value of each variable of a mode."""
        return {
            name: np.array(variable.value) for name, variable in self.variables.items() if name in self._modes[mode]
        }

    def forms(self, mode: str) -> dict[str, ArrayForm]:
        """Return the form of each variable of a mode."""
        return self._forms(self._modes[mode])

    def load(self, checkpoint: Checkpoint, *, is_warm_start: bool = False, is_borrowed: bool = False) -> None:
        """Assign the values of a checkpoint to the variables of existing modes now, and to others once they are made.

        Args:
            checkpoint: the values.
            is_warm_start: whether the checkpoint is from another training. Its step is then ignored, and it may lack
                arrays that are not trainable weights.
            is_borrowed: whether `give_back` will be called before training.

        Raises:
            EstimatorError: the checkpoint does not fit an existing mode.
        """
        for mode, names in self._modes.items():
            self._check(checkpoint, is_warm_start, mode, names)
        if not is_borrowed:
            self._saved = None
        elif self._saved is None:
            self._saved = _SavedState(self.source, self._loaded, self._waiting)
        ignored = {GLOBAL_STEP} if is_warm_start else set()
        self.source = checkpoint.folder, checkpoint.step
        self._loaded = checkpoint, is_warm_start
        self._waiting = {name: value for name, value in checkpoint.values.items() if name not in ignored}
        self._assign_waiting()

    def give_back(self) -> None:
        """Restore the state from before a checkpoint was borrowed, if one was."""
        if self._saved is None:
            return
        saved, self._saved = self._saved, None
        self.source, self._loaded = saved.source, saved.loaded
        self._waiting = {**saved.values, **saved.waiting}
        self._assign_waiting()

    @contextlib.contextmanager
    def call(self, *, makes: bool) -> Iterator[ModelCall]:
        """Return a context for one call of a model_fn.

        Args:
            makes: whether variables of new names may be made; if False, they are an error.
        """
        call = ModelCall(self, makes)
        with value_within(_CALL, call), _keras.fresh_names():
            yield call

    def settle(self, mode: str, made: Iterable[str], seen: Iterable[Any], optimizer_state: Iterable[Any] = ()) -> None:
        """Record the variables of a mode, and assign loaded values to new variables.

        Args:
            mode: the mode, all of whose variables are made now.
            made: names of the variables that its call has made or reused.
            seen: the variables that it has read or written.
            optimizer_state: the variables, in `seen` or not, that belong to an optimizer.

        Raises:
            EstimatorError: the loaded checkpoint does not fit; the mode gets no value of it.
        """
        # 1. Add the variables that the mode uses without having made them, such as metrics of the user.
        names = {id(variable): name for name, variable in self.variables.items()}
        for variable in seen:
            if id(variable) not in names:
                names[id(variable)] = name = _free_name(variable.path, self.variables)
                self.variables[name] = variable
        self._optimizer_state.update(names[id(variable)] for variable in optimizer_state if id(variable) in names)
        # 2. A mode's variables are those that it uses; for training, which is saved, also those that it only makes. (An
        # optimizer may be made in a mode that does not use it.)
        used = {GLOBAL_STEP, *self._tables, *(names[id(variable)] for variable in seen)}
        wanted = frozenset(used.union(made) if mode == "train" else used)
        # 3. Check them against the loaded checkpoint before any value is assigned.
        if self._loaded is not None:
            try:
                self._check(*self._loaded, mode, wanted)
            except EstimatorError:
                self._forget_loaded()
                raise
        self._modes[mode] = wanted
        self._assign_waiting()

    def _forms(self, names: Collection[str]) -> dict[str, ArrayForm]:
        return {
            name: ArrayForm(
                tuple(v.shape),
                keras.backend.standardize_dtype(v.dtype),
                is_trained=bool(v.trainable) and not (name in self._tables and name in self._optimizer_state),
                is_optimizer_state=name in self._optimizer_state,
            )
            for name, v in self.variables.items()
            if name in names
        }

    def _check(self, checkpoint: Checkpoint, is_warm_start: bool, mode: str, names: Collection[str]) -> None:
        purpose = Purpose.WARM_START if is_warm_start else Purpose.RESUME if mode == "train" else Purpose.INFER
        stored, wanted = checkpoint.forms, self._forms(names)
        if purpose is Purpose.INFER:
            # Variables that only training has made in this process belong to the same model.
            stored = {name: form for name, form in stored.items() if name in wanted or name not in self.variables}
        if (text := difference(stored, wanted, purpose)) is not None:
            raise EstimatorError(
                f"the checkpoint of step {checkpoint.step} in {checkpoint.folder!r} is of another model than "
                f"model_fn makes {purpose.value}, and none of it is loaded. {text}. Use the model_fn that it was "
                "trained with, or train the changed one in another model_dir"
            )

    def _forget_loaded(self) -> None:
        """Discard a rejected checkpoint, unless an existing mode has its values."""
        if self._modes:
            return
        self.give_back()
        self.source, self._loaded, self._waiting = None, None, {}

    def _assign_waiting(self) -> None:
        """Assign the waiting values to the variables of existing modes, whose forms were checked."""
        checked = frozenset().union(*self._modes.values())
        for name in [name for name in self._waiting if name in checked]:
            if self._saved is not None:
                self._saved.values.setdefault(name, np.array(self.variables[name].value))
            self.variables[name].assign(self._waiting.pop(name))


@dataclasses.dataclass(frozen=True)
class _SavedState:
    """The state of a store before it borrowed a checkpoint.

    Attributes:
        source: the store's `source`.
        loaded: the loaded checkpoint, and whether it was a warm start.
        waiting: values that waited for their variables, by name.
        values: original values of the variables overwritten since, by name.
    """

    source: tuple[str, int] | None
    loaded: tuple[Checkpoint, bool] | None
    waiting: dict[str, np.ndarray]
    values: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)


def get_global_step() -> Any:
    """Return the variable that counts the trained steps, in a model_fn; None elsewhere.

    Example:
        >>> get_global_step() is None
        True
    """
    call = _CALL.get()
    return None if call is None else call.store.global_step


class ModelCall:
    """One call of a model_fn, and the variables that it makes."""

    def __init__(self, store: VariableStore, makes: bool) -> None:
        self.store, self._makes = store, makes
        self._counts: dict[str, int] = {}
        self.names: list[str] = []
        """Names of the variables that the call has made or reused."""
        self._stands_for: dict[int, tuple[Any, Any]] = {}

    def scope(self) -> _StandIns:
        """Return the stateless scope in which reused variables read and write those of the store."""
        return _StandIns(self.original)

    def original(self, variable: Any) -> Any:
        """Return the store's variable that a variable stands for, or the variable itself."""
        pair = self._stands_for.get(id(variable))
        return variable if pair is None else pair[1]

    def made(self, variable: Any) -> None:
        """Record a variable that was just made: add it to the store, or let it stand for the known one."""
        count = self._counts[variable.path] = self._counts.get(variable.path, 0) + 1
        name = variable.path if count == 1 else f"{variable.path}#{count}"
        self.names.append(name)
        if name not in self.store.variables:
            self._check_may_make(name, variable)
            self.store.variables[name] = variable
            return
        known = self.store.variables[name]
        if (known.shape, known.dtype) != (variable.shape, variable.dtype):
            raise EstimatorError(
                f"model_fn makes {_layer(name)} of another form than before: its {variable.name!r} was "
                f"{_form(known)} and is {_form(variable)} now. A model_fn must make the same layers in the same order "
                "in every mode; give a layer that only one mode has a name of its own"
            )
        self._stands_for[id(variable)] = (variable, known)
        _keras_layers.forget_uninitialized(variable)

    def _check_may_make(self, name: str, variable: Any) -> None:
        if self._makes and not (self.store.is_trained and variable.trainable):
            return
        raise EstimatorError(
            f"model_fn makes {_layer(name)}, which it did not make when it was called before: a variable {name!r} of "
            f"the form {_form(variable)}. A model_fn must make the same layers in the same order in every mode; what "
            "one mode makes depends on mode and params only"
        )


class _StandIns(keras.StatelessScope):
    """A scope that reads and writes the variables of a store in place of those that stand for them."""

    def __init__(self, original: Callable[[Any], Any]) -> None:
        super().__init__(collect_losses=True)
        self._original = original
        self._outer = _keras.stateless_scope()

    def get_current_value(self, variable: Any) -> Any:
        """Return the value in the enclosing scope."""
        original = self._original(variable)
        value = self._outer.get_current_value(original)  # pyright: ignore[reportOptionalMemberAccess]
        # A variable that stands for another has no value of its own.
        return original.value if value is None and original is not variable else value

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Write to the enclosing scope."""
        self._outer.add_update((self._original(update[0]), update[1]))  # pyright: ignore[reportOptionalMemberAccess]


@functools.cache
def _install() -> None:
    # Outside of the strategy's own wrapper, for which this wrapper clears the current strategy.
    scopes.install()
    _keras.wrap(_keras.variable_class(), "__init__", _recording, by="estimator")


def _recording(init: Callable) -> Callable:
    signature = inspect.signature(init)

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        call = _CALL.get()
        if call is None:
            init(self, *args, **kwargs)
            return
        bound = signature.bind(self, *args, **kwargs)
        if not callable(bound.arguments["initializer"]) and not isinstance(bound.arguments["initializer"], str):
            bound.arguments.update(_deferred(bound.arguments["initializer"], bound.arguments.get("dtype")))
        # Without a current strategy: the variables of an estimator may move from one system to another.
        with value_within(CURRENT, None):
            init(*bound.args, **bound.kwargs)
        call.made(self)

    return __init__


def _deferred(value: Any, dtype: Any) -> dict[str, Any]:
    """Turn an initial value into an initializer: while tracing, Keras accepts nothing else."""
    with jax.ensure_compile_time_eval():
        array = np.asarray(keras.ops.convert_to_tensor(value, dtype=dtype))

    def initializer(shape: Any, dtype: Any = None) -> Any:
        return keras.ops.convert_to_tensor(array, dtype=dtype)

    return {"initializer": initializer, "shape": array.shape, "dtype": dtype or array.dtype.name}


def _free_name(path: str, taken: Mapping[str, Any]) -> str:
    count, name = 1, path
    while name in taken:
        count += 1
        name = f"{path}#{count}"
    return name


def _layer(name: str) -> str:
    return f"the layer {name.rpartition('/')[0]!r}" if "/" in name else f"the variable {name!r}"


def _form(variable: Any) -> str:
    return f"{variable.dtype}{list(variable.shape)}"
