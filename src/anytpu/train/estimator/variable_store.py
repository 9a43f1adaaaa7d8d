"""`VariableStore`: the variables that a model_fn makes, made once and met again by name.

Idea: a model_fn makes its layers each time it is called, and it is called for each mode and each time that JAX traces
it. The first call makes the variables; in every later one a new variable of a known name stands for the one that was
made first. Names count from the beginning in each call (`dense/kernel`, `dense_1/kernel`), so they depend on the order
in which layers are made and on nothing else, and are the names in a checkpoint.

Rule: a name keeps its shape and dtype. What training has not made cannot be trained elsewhere: a new trainable variable
in another mode is an error that names the layer. The variables of a mode take their values from a checkpoint together,
once all of them are made and fit, or not at all.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np

from anytpu import _keras
from anytpu.errors import EstimatorError
from anytpu.strategy import scopes
from anytpu.strategy.current import CURRENT
from anytpu.strategy.occupancy import Occupancy
from anytpu.train.checkpoint import ArrayForm, Checkpoint, Purpose, difference

GLOBAL_STEP = "global_step"
"""The name of the variable that counts the steps of training."""

_CALL: contextvars.ContextVar[ModelCall | None] = contextvars.ContextVar("model_call", default=None)


class VariableStore:
    """The variables of one estimator.

    Attributes:
        global_step: counts the steps of training.
        source: the folder and the step of the checkpoint whose values the variables hold or wait for; None where they
            hold no checkpoint's.
    """

    def __init__(self) -> None:
        _install()
        self.global_step = keras.Variable(
            0, dtype="int32", trainable=False, name=GLOBAL_STEP, aggregation="only_first_replica"
        )
        self._variables: dict[str, Any] = {GLOBAL_STEP: self.global_step}
        self._modes: dict[str, frozenset[str]] = {}
        self._optimizer_state: set[str] = set()
        self.source: tuple[Path, int] | None = None
        self._loaded: tuple[Checkpoint, bool] | None = None
        self._waiting: dict[str, np.ndarray] = {}
        self._own: _Own | None = None
        self.occupancy = Occupancy()
        """Which thread uses the variables."""
        self.is_trained = False
        """True once a call for training has made all variables of the model."""

    def __contains__(self, name: str) -> bool:
        return name in self._variables

    def __getitem__(self, name: str) -> Any:
        return self._variables[name]

    @property
    def names(self) -> list[str]:
        """The names of the variables, in the order in which they were made."""
        return list(self._variables)

    @property
    def step(self) -> int:
        """The steps that were trained, by the checkpoint that is loaded where no mode is made yet."""
        return int(np.asarray(self._waiting.get(GLOBAL_STEP, self.global_step.value)))

    @property
    def is_made(self) -> bool:
        """True once a model_fn has made variables."""
        return len(self._variables) > 1

    def trainable(self) -> list[Any]:
        """Return the trainable variables, in the order in which they were made."""
        return [variable for variable in self._variables.values() if variable.trainable]

    def values(self, mode: str) -> dict[str, np.ndarray]:
        """Return a copy of the value of each variable of a mode."""
        return {name: np.array(variable.value) for name, variable in self._of(mode).items()}

    def forms(self, mode: str) -> dict[str, ArrayForm]:
        """Return the form of each variable of a mode."""
        return self._forms(self._modes[mode])

    def size_bytes(self) -> int:
        """Return the size of all values."""
        return sum(np.asarray(variable.value).nbytes for variable in self._variables.values())

    def load(self, checkpoint: Checkpoint, *, is_warm_start: bool = False, is_borrowed: bool = False) -> None:
        """Give variables the values of a checkpoint: those of modes that are made now, the others when they are.

        Args:
            checkpoint: the values.
            is_warm_start: True where it is that of another training: its step is left out, and it may lack what is not
                a trainable weight.
            is_borrowed: True where `give_back` follows before anything is trained.

        Raises:
            EstimatorError: the checkpoint does not fit a mode that is made.
        """
        for mode, names in self._modes.items():
            self._check(checkpoint, is_warm_start, mode, names)
        if not is_borrowed:
            self._own = None
        elif self._own is None:
            self._own = _Own(self.source, self._loaded, self._waiting)
        left_out = {GLOBAL_STEP} if is_warm_start else set()
        self.source = checkpoint.folder, checkpoint.step
        self._loaded = checkpoint, is_warm_start
        self._waiting = {name: value for name, value in checkpoint.values.items() if name not in left_out}
        self._give()

    def give_back(self) -> None:
        """Let the variables hold what they held before a checkpoint was borrowed, if one was."""
        if self._own is None:
            return
        own, self._own = self._own, None
        self.source, self._loaded = own.source, own.loaded
        self._waiting = {**own.values, **own.waiting}
        self._give()

    @contextlib.contextmanager
    def call(self, *, makes: bool) -> Iterator[ModelCall]:
        """Call a model_fn.

        Args:
            makes: variables of new names are made; otherwise they are an error.
        """
        one = ModelCall(self, makes)
        token = _CALL.set(one)
        try:
            with _keras.fresh_names():
                yield one
        finally:
            _CALL.reset(token)

    def settle(self, mode: str, made: Iterable[str], seen: Iterable[Any], optimizer_state: Iterable[Any] = ()) -> None:
        """Take in the variables that a mode uses without having made them, and give new ones their loaded values.

        Args:
            mode: the mode, all of whose variables are made now.
            made: the names of the variables that it has made, or met again.
            seen: the variables that it has read or written.
            optimizer_state: those of them, or of others, that belong to an optimizer.

        Raises:
            EstimatorError: the checkpoint that was loaded does not fit, and the mode gets nothing of it.
        """
        names = {id(variable): name for name, variable in self._variables.items()}
        for variable in seen:
            if id(variable) not in names:
                names[id(variable)] = name = _free_name(variable.path, self._variables)
                self._variables[name] = variable
        self._optimizer_state.update(names[id(variable)] for variable in optimizer_state if id(variable) in names)
        # An optimizer may be made in a mode that does not use it. What is saved is all that training makes.
        used = {GLOBAL_STEP, *(names[id(variable)] for variable in seen)}
        wanted = frozenset(used.union(made) if mode == "train" else used)
        if self._loaded is not None:
            try:
                self._check(*self._loaded, mode, wanted)
            except EstimatorError:
                self._forget_loaded()
                raise
        self._modes[mode] = wanted
        self._give()

    def add(self, name: str, variable: Any) -> None:
        """Take in a variable that a call makes."""
        self._variables[name] = variable

    def _of(self, mode: str) -> dict[str, Any]:
        return {name: variable for name, variable in self._variables.items() if name in self._modes[mode]}

    def _forms(self, names: Collection[str]) -> dict[str, ArrayForm]:
        return {
            name: ArrayForm(
                tuple(v.shape),
                keras.backend.standardize_dtype(v.dtype),
                is_trained=bool(v.trainable),
                is_optimizer_state=name in self._optimizer_state,
            )
            for name, v in self._variables.items()
            if name in names
        }

    def _check(self, checkpoint: Checkpoint, is_warm_start: bool, mode: str, names: Collection[str]) -> None:
        purpose = Purpose.WARM_START if is_warm_start else Purpose.RESUME if mode == "train" else Purpose.INFER
        stored, wanted = checkpoint.forms, self._forms(names)
        if purpose is Purpose.INFER:
            # What only training has made in this process is part of the same model.
            stored = {name: form for name, form in stored.items() if name in wanted or name not in self._variables}
        if (text := difference(stored, wanted, purpose)) is not None:
            raise EstimatorError(
                f"the checkpoint of step {checkpoint.step} in {str(checkpoint.folder)!r} is of another model than "
                f"model_fn makes {purpose.value}, and nothing of it is loaded. {text}. Use the model_fn that it was "
                "trained with, or train the changed one in another model_dir"
            )

    def _forget_loaded(self) -> None:
        """Forget a checkpoint that was refused, unless a mode that is made has its values."""
        if self._modes:
            return
        self.give_back()
        self.source, self._loaded, self._waiting = None, None, {}

    def _give(self) -> None:
        """Give the variables of the modes that are made, whose forms were checked, the values that wait for them."""
        checked = frozenset().union(*self._modes.values())
        for name in [name for name in self._waiting if name in checked]:
            if self._own is not None:
                self._own.values.setdefault(name, np.array(self._variables[name].value))
            self._variables[name].assign(self._waiting.pop(name))


@dataclasses.dataclass(frozen=True)
class _Own:
    """What a store held before it borrowed a checkpoint.

    Attributes:
        source: its `source`.
        loaded: the checkpoint that was loaded, and whether it was a warm start.
        waiting: the values that waited for variables.
        values: the values of the variables that were given others since.
    """

    source: tuple[Path, int] | None
    loaded: tuple[Checkpoint, bool] | None
    waiting: dict[str, np.ndarray]
    values: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)


def get_global_step() -> Any:
    """Return the variable that counts the steps of training, in a model_fn; None elsewhere.

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
        """The names of the variables that were made or met again."""
        self._stands_for: dict[int, tuple[Any, Any]] = {}

    def scope(self) -> _StandIns:
        """Return the stateless scope in which new variables stand for those of the store."""
        return _StandIns(self.original)

    def original(self, variable: Any) -> Any:
        """Return the variable of the store that one stands for; any other as it is."""
        found = self._stands_for.get(id(variable))
        return variable if found is None else found[1]

    def made(self, variable: Any) -> None:
        """Take in a variable that was just made."""
        count = self._counts[variable.path] = self._counts.get(variable.path, 0) + 1
        name = variable.path if count == 1 else f"{variable.path}#{count}"
        self.names.append(name)
        if name not in self.store:
            self._check_may_make(name, variable)
            self.store.add(name, variable)
            return
        known = self.store[name]
        if (known.shape, known.dtype) != (variable.shape, variable.dtype):
            raise EstimatorError(
                f"model_fn makes {_layer(name)} of another form than before: its {variable.name!r} was "
                f"{_form(known)} and is {_form(variable)} now. A model_fn must make the same layers in the same order "
                "in every mode; give a layer that only one mode has a name of its own"
            )
        self._stands_for[id(variable)] = (variable, known)
        _keras.forget_uninitialized(variable)

    def _check_may_make(self, name: str, variable: Any) -> None:
        if self._makes and not (self.store.is_trained and variable.trainable):
            return
        raise EstimatorError(
            f"model_fn makes {_layer(name)}, which it did not make when it was called before: a variable {name!r} of "
            f"the form {_form(variable)}. A model_fn must make the same layers in the same order in every mode; what "
            "one mode makes depends on mode and params only"
        )


class _StandIns(keras.StatelessScope):
    """Reads and writes the variables of a store in the place of those that stand for them."""

    def __init__(self, original: Callable[[Any], Any]) -> None:
        super().__init__(collect_losses=True)
        self._original = original
        self._outer = _keras.stateless_scope()

    def get_current_value(self, variable: Any) -> Any:
        """Return the value in the scope around this one."""
        original = self._original(variable)
        value = self._outer.get_current_value(original)  # pyright: ignore[reportOptionalMemberAccess]
        # What stands for another has no value of its own to fall back on.
        return original.value if value is None and original is not variable else value

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Write in the scope around this one."""
        self._outer.add_update((self._original(update[0]), update[1]))  # pyright: ignore[reportOptionalMemberAccess]


@functools.cache
def _install() -> None:
    # Around the strategy's own wrapper, which is told by ours that nobody is in scope.
    scopes.install()
    _keras.wrap(_keras.variable_class(), "__init__", _telling, by="estimator")


def _telling(init: Callable) -> Callable:
    signature = inspect.signature(init)

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        call = _CALL.get()
        if call is None:
            init(self, *args, **kwargs)
            return
        bound = signature.bind(self, *args, **kwargs)
        if not callable(bound.arguments["initializer"]) and not isinstance(bound.arguments["initializer"], str):
            bound.arguments.update(_deferred(bound.arguments["initializer"], bound.arguments.get("dtype")))
        # In the scope of nobody: the variables of an estimator may go from one system to another.
        token = CURRENT.set(None)
        try:
            init(*bound.args, **bound.kwargs)
        finally:
            CURRENT.reset(token)
        call.made(self)

    return __init__


def _deferred(value: Any, dtype: Any) -> dict[str, Any]:
    """Turn an initial value into an initializer, which is all that Keras takes while it traces."""
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
