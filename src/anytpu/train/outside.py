"""Variables that a step of Keras uses outside of the lists that Keras passes to it.

Idea: Keras's step takes the values of four lists of variables, in scopes that hold them, and returns their new values.
A scope drops any other assignment: of a metric that `call` updates, of a counter or a seed generator in a global. Here
a scope around the whole step sees each use of such a variable. The first trace finds these variables. They become a
further list of the step's state, and the step is traced again.

Rule: within a step such a variable is a JAX reference. So an assignment may be inside a gradient, a scan or a branch of
the step. The references are removed from the trace, so a Program's step stays pure.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import jax
import keras
from jax import lax
from jax.extend.core import Jaxpr, get_opaque_trace_state, jaxpr_as_fun

from anytpu import _jax, _keras, _keras_layers
from anytpu.errors import ProgramError
from anytpu.program.jaxprs import inner_jaxprs, level_of
from anytpu.program.program import Tree

_MAPPED = "_anytpu_mapped"


class OutsideVariables(BaseException):
    """Ends a trace that used variables outside of its state. No error: the trainer adds them and traces again.

    Args:
        scope: the scope of the trace.
    """

    def __init__(self, scope: StepScope) -> None:
        super().__init__("a step used variables outside of its state")
        self.variables = tuple(scope.found.values())
        self.assigned = frozenset(scope.assigned)


class StepScope(keras.StatelessScope):
    """The scope around a whole step, which sees what the scopes of Keras inside it do not hold.

    Args:
        trained: pairs of a trainable variable and its value.
        listed: those of the other variables that Keras passes to the step.
        outside: those of the variables that the step uses outside of Keras's lists.

    Attributes:
        found: the variables that are in none of these, by id, in order of first use.
        assigned: ids of the variables that were assigned where no scope of Keras holds them.
    """

    def __init__(
        self, trained: list[tuple[Any, Any]], listed: list[tuple[Any, Any]], outside: list[tuple[Any, Any]]
    ) -> None:
        super().__init__(state_mapping=[*trained, *listed])
        self._trained = {id(variable) for variable, _ in trained}
        self._level = get_opaque_trace_state()
        self._references = {id(variable): jax.new_ref(value) for variable, value in outside}
        self.found: dict[int, Any] = {}
        self.assigned: set[int] = set()

    def holds(self, variable: Any) -> bool:
        """Return whether a variable is in the list of those outside: its newest value is here and in no other scope."""
        return id(variable) in self._references

    def get_current_value(self, variable: Any) -> Any:
        """Return the value of a variable; None for one that is outside of the state."""
        if self.holds(variable):
            return self._references[id(variable)][...]
        value = super().get_current_value(variable)
        if value is None:
            self._find(variable)
        return value

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Assign to a variable that no scope of Keras holds.

        Raises:
            ProgramError: the variable is trainable.
        """
        variable, value = update
        if id(variable) in self._trained:
            raise ProgramError(_trained_message(variable))
        self.assigned.add(id(variable))
        if self.holds(variable):
            self._references[id(variable)][...] = lax.stop_gradient(value)
        else:
            self._find(variable)

    def see(self, update: tuple[Any, Any]) -> None:
        """Hold the new value of a variable of Keras's lists, for scopes of Keras that read it later and do not map it.

        A value inside a gradient or a loop cannot leave it.
        """
        if get_opaque_trace_state() == self._level:
            super().add_update(update)

    def end(self) -> list[Any]:
        """Return the final values of the variables outside, in order."""
        return [jax.freeze(reference) for reference in self._references.values()]

    def _find(self, variable: Any) -> None:
        # A variable that was made in this trace has no value yet, and its layer is new in each trace.
        if _keras.value_of(variable) is not None:
            self.found[id(variable)] = variable


@functools.cache
def install() -> None:
    """Let the scopes that Keras opens inside a `StepScope` pass on what they do not hold, once."""
    for name, make in (("__init__", _mapping), ("get_current_value", _reading), ("add_update", _writing)):
        _keras.wrap(keras.StatelessScope, name, make, by="outside")


def _mapping(original: Callable) -> Callable:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        # A scope that the user opens is there to try something without effect. Keras documents that.
        if _keras_layers.is_keras(sys._getframe(1)):
            vars(self)[_MAPPED] = frozenset(self.state_mapping)

    return __init__


def _reading(original: Callable) -> Callable:
    def get_current_value(self: Any, variable: Any) -> Any:
        outer, step = _around(self)
        if outer is None:
            return original(self, variable)
        if step.holds(variable) and _MAPPED in vars(self):
            return outer.get_current_value(variable)
        value = original(self, variable)
        return outer.get_current_value(variable) if value is None else value

    return get_current_value


def _writing(original: Callable) -> Callable:
    def add_update(self: Any, update: tuple[Any, Any]) -> None:
        outer, step = _around(self)
        original(self, update)
        if outer is None or _MAPPED not in vars(self):
            return
        if step.holds(update[0]) or id(update[0]) not in vars(self)[_MAPPED]:
            outer.add_update(update)
        else:
            step.see(update)

    return add_update


def _around(scope: Any) -> tuple[Any, Any]:
    """Return the scope around one of Keras's own scopes, and the `StepScope` around both; None without one."""
    if type(scope) is not keras.StatelessScope:
        return None, None
    outer = step = vars(scope).get("original_scope")
    while step is not None and not isinstance(step, StepScope):
        step = vars(step).get("original_scope")
    return (None, None) if step is None else (outer, step)


def with_outside(
    step: Callable[[Tree, Tree], tuple[Tree, Tree]], lists: tuple[tuple[Any, ...], ...], parts: tuple[Any, ...]
) -> Callable[[Tree, Tree], tuple[Tree, Tree]]:
    """Return a step on the lists `parts` of a step on Keras's lists.

    Args:
        step: takes the values of Keras's lists and a batch, and returns their new values and its outputs.
        lists: the variables of Keras's lists; the first is that of the trainable ones.
        parts: the `VariableList` of each of them, without the variables outside, and perhaps that of these. Without it,
            a trace that finds variables outside is complete, and their new values are dropped.

    Raises:
        OutsideVariables: (at tracing) `parts` has a list of variables outside, and some are missing in it.
        ProgramError: (at tracing) an assignment cannot be kept.
    """
    install()
    outside = parts[len(lists)] if len(parts) > len(lists) else None
    kept = () if outside is None else outside.variables
    kept_ids = frozenset(map(id, kept))

    def run(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        held = {
            id(variable): (variable, value)
            for part, values in zip(parts, state, strict=True)
            for variable, value in zip(part.variables, values, strict=True)
        }
        pairs = [[held[id(variable)] for variable in each] for each in lists]
        listed = [pair for each in pairs[1:] for pair in each if id(pair[0]) not in kept_ids]
        with StepScope(pairs[0], listed, [held[id(variable)] for variable in kept]) as scope:
            new, outputs = step(tuple([value for _, value in each] for each in pairs), batch)
        if outside is None:
            return new, outputs
        if scope.found:
            raise OutsideVariables(scope)
        outside.assigned.update(scope.assigned)
        rest = tuple(_without(each, values, kept_ids) for each, values in zip(lists, new, strict=True))
        return (*rest, scope.end()), outputs

    return _pure(run) if kept else run


def _without(variables: tuple[Any, ...], values: Any, ids: frozenset[int]) -> Any:
    """Return the values of a list without those of some variables; a wrong list stays, and is refused by its form."""
    if len(values) != len(variables):
        return values
    return [value for variable, value in zip(variables, values, strict=True) if id(variable) not in ids]


def _pure(step: Callable) -> Callable:
    """Return a step whose trace has no references."""

    def pure(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        closed, form = jax.make_jaxpr(step, return_shape=True)(state, batch)
        _refuse_repeated(closed.jaxpr)
        results = jaxpr_as_fun(_jax.without_references(closed))(*jax.tree.leaves((state, batch)))
        return jax.tree.unflatten(jax.tree.structure(form), results)

    return pure


def _refuse_repeated(jaxpr: Jaxpr) -> None:
    """Refuse a use of a reference in a function that the backward pass computes again: it would count twice."""
    for equation in jaxpr.eqns:
        if equation.params.get("differentiated") and equation.effects:
            raise ProgramError(_REPEATED)
        for inner in inner_jaxprs(equation):
            _refuse_repeated(level_of(inner))


_REPEATED = (
    "a layer inside keras.remat (or jax.checkpoint) uses a variable that Keras does not pass to the step, such as a "
    "metric, a counter or a seed generator outside of the model: the backward pass would use it a second time. Use the "
    "variable outside of the rematerialised part, or leave remat out for this layer"
)


def _trained_message(variable: Any) -> str:
    return (
        f"the trainable variable {variable.path!r} is assigned in a step where Keras does not hold its value, such as "
        "in train_step beside the lists of its state, and the lists would overwrite it. Return the new value in the "
        "list of trainable variables, or write train_step(self, data) with @tpu.model_step, which may assign"
    )
