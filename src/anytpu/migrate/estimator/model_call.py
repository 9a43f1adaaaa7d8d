"""`ModelCall`: a call of a model_fn, whose variables are made once and reused by name.

Idea: a model_fn makes its layers each time it is called: for each mode, and each time that JAX traces it. The first
call makes the variables. In later calls, a new variable of a known name is replaced by the stored one. Names restart in
each call (`dense/kernel`, `dense_1/kernel`), so they depend only on the order in which layers are made. They are the
names in a checkpoint.

Rule: a name keeps its shape and dtype. A trainable variable that training has not made is an error in another mode; the
error names the layer.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import keras
import numpy as np

from anytpu import _keras, _keras_layers
from anytpu._contexts import value_within
from anytpu.errors import EstimatorError
from anytpu.strategy import scopes
from anytpu.strategy.current import CURRENT

GLOBAL_STEP = "global_step"
"""The name of the variable that counts the trained steps."""

_CALL: contextvars.ContextVar[ModelCall | None] = contextvars.ContextVar("model_call", default=None)


class Variables:
    """The variables of one estimator.

    Attributes:
        global_step: the variable that counts the trained steps.
        by_name: the variables by name, in the order of their creation.
        is_trained: whether a training call has made all variables of the model.
    """

    def __init__(self) -> None:
        _install()
        self.global_step = keras.Variable(
            0, dtype="int32", trainable=False, name=GLOBAL_STEP, aggregation="only_first_replica"
        )
        self.by_name: dict[str, Any] = {GLOBAL_STEP: self.global_step}
        self.is_trained = False

    def names_of(self, variables: Iterable[Any]) -> dict[int, str]:
        """Return the names of all variables by their `id`, after adding those that a mode uses without making them."""
        names = {id(variable): name for name, variable in self.by_name.items()}
        for variable in variables:
            if id(variable) not in names:
                free = (f"{variable.path}#{count}" if count > 1 else variable.path for count in itertools.count(1))
                names[id(variable)] = name = next(name for name in free if name not in self.by_name)
                self.by_name[name] = variable
        return names

    @contextlib.contextmanager
    def call(self, *, makes: bool) -> Iterator[ModelCall]:
        """Return a context for one call of a model_fn.

        Args:
            makes: whether variables of new names may be made; if False, they are an error.
        """
        call = ModelCall(self, makes)
        with value_within(_CALL, call), _keras.fresh_names():
            yield call


def get_global_step() -> Any:
    """Return the variable that counts the trained steps, in a model_fn; None elsewhere.

    Example:
        >>> get_global_step() is None
        True
    """
    call = _CALL.get()
    return None if call is None else call.variables.global_step


class ModelCall:
    """One call of a model_fn, and the variables that it makes."""

    def __init__(self, variables: Variables, makes: bool) -> None:
        self.variables, self._makes = variables, makes
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
        if name not in self.variables.by_name:
            self._check_may_make(name, variable)
            self.variables.by_name[name] = variable
            return
        known = self.variables.by_name[name]
        if (known.shape, known.dtype) != (variable.shape, variable.dtype):
            raise EstimatorError(
                f"model_fn makes {_layer(name)} of another form than before: its {variable.name!r} was "
                f"{_form(known)} and is {_form(variable)} now. A model_fn must make the same layers in the same order "
                "in every mode; give a layer that only one mode has a name of its own"
            )
        self._stands_for[id(variable)] = (variable, known)
        _keras_layers.forget_uninitialized(variable)

    def _check_may_make(self, name: str, variable: Any) -> None:
        if self._makes and not (self.variables.is_trained and variable.trainable):
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


def _layer(name: str) -> str:
    return f"the layer {name.rpartition('/')[0]!r}" if "/" in name else f"the variable {name!r}"


def _form(variable: Any) -> str:
    return f"{variable.dtype}{list(variable.shape)}"
