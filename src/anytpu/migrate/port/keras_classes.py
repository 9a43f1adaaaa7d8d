"""Rewrite classes of the program that derive from Keras's: models with steps of their own, and optimizers.

Rule: `train_step`, `test_step` and `predict_step` get a decorator, since JAX's form passes the state of the step. An
optimizer that is written for Keras 2 is listed as a whole: Keras 3 would not call its methods.
"""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from anytpu.migrate.port import known
from anytpu.migrate.port.arguments import argument_of
from anytpu.migrate.port.batches import plan_batches
from anytpu.migrate.port.edits import Edits
from anytpu.migrate.port.filling import rename_attribute
from anytpu.migrate.port.tree import parameter_names
from anytpu.migrate.replaced.table import advice

_STEPS = ("train_step", "test_step", "predict_step")
_OLD_METHODS = ("_resource_apply_dense", "_resource_apply_sparse", "_create_slots", "_prepare_local", "get_updates")


def is_model_step(edits: Edits, function: cst.CSTNode | None) -> bool:
    """Return whether a function is a method `train_step(self, data)` of a Keras model."""
    if not isinstance(function, cst.FunctionDef) or function.name.value not in _STEPS:
        return False
    owner = edits.tree.class_of_method(function)
    bases = edits.values.bases_of(owner) if owner is not None else []
    return len(parameter_names(function)) == 2 and any(known.is_below(base, "keras.Model") for base in bases)


def plan_model_steps(edits: Edits) -> None:
    """Plan the decorator `tpu.model_step`, and the loss of `compile` in such a step."""
    # The arguments of a `compute_loss` that the program defines are its own.
    has_own_loss = any(function.name.value == "compute_loss" for function in edits.tree.all(cst.FunctionDef))
    for function in edits.tree.all(cst.FunctionDef):
        if not is_model_step(edits, function):
            continue
        decorator = cst.Decorator(edits.expression("tpu.model_step"))
        edits.compose(
            function, lambda updated, new=decorator: updated.with_changes(decorators=[new, *updated.decorators])
        )
        for call in (node for node in edits.tree.nodes(function) if isinstance(node, cst.Call)):
            _plan_call(edits, call, has_own_loss)


def _plan_call(edits: Edits, call: cst.Call, has_own_loss: bool) -> None:
    if m.matches(call.func, m.Attribute(m.Call(m.Name("super")), m.OneOf(*map(m.Name, _STEPS)))):
        edits.say(call, advice("step of the base class"))
    elif m.matches(call.func, m.Attribute(m.Name("self"), m.Name("compute_loss"))) and not has_own_loss:
        # TensorFlow's compute_loss updates the metric "loss" too, and takes x first.
        assert isinstance(call.func, cst.Attribute)
        rename_attribute(edits, call.func.attr, "compiled_loss")
        x = argument_of(call, "keras.Model.compute_loss", "x")
        if x is not None:
            edits.drop(x)


def plan_schedules(edits: Edits) -> None:
    """Make a float of the step that a schedule of the program gets: Keras 2 passed one, Keras 3 passes an integer."""
    for function in edits.tree.all(cst.FunctionDef):
        owner = edits.tree.class_of_method(function)
        bases = edits.values.bases_of(owner) if owner is not None and function.name.value == "__call__" else []
        name = "".join(parameter_names(function)[1:2])
        is_schedule = any(known.is_below(base, "keras.optimizers.schedules.LearningRateSchedule") for base in bases)
        calls = [node for node in edits.tree.nodes(function) if isinstance(node, cst.Call)]
        casts = [call for call in calls if (edits.tree.library_name(call.func) or "").rpartition(".")[2] == "cast"]
        is_cast = any(call.args and edits.tree.code(call.args[0].value) == name for call in casts)
        # A float is no index.
        looked_up = [c for c in calls if edits.tree.code(c.func).rpartition(".")[2] in ("gather", "take", "gather_nd")]
        indices = [part for part in edits.tree.nodes(function) if isinstance(part, cst.Index)]
        is_index = any(m.findall(part, m.Name(name)) for part in (*looked_up, *indices))
        if is_schedule and name and not is_cast and not is_index and isinstance(function.body, cst.IndentedBlock):
            new = edits.statement(f'{name} = keras.ops.cast({name}, "float32")')
            first = function.body.body[function.get_docstring() is not None :]
            if first:
                edits.insert_before(first[0], [new])


def plan_metric_resets(edits: Edits) -> None:
    """Rename `reset_states` of metrics, also where a class of the program defines it: Keras 3 calls `reset_state`.

    The metrics of single batches are reset, too.
    """
    plan_batches(edits)
    for owner in edits.tree.all(cst.ClassDef):
        if not any(known.is_below(base, "keras.metrics.Metric") for base in edits.values.bases_of(owner)):
            continue
        for part in edits.tree.nodes(owner):
            if isinstance(part, cst.FunctionDef) and part.name.value == "reset_states":
                rename_attribute(edits, part.name, "reset_state")
            elif m.matches(part, m.Attribute(m.Call(m.Name("super")), m.Name("reset_states"))):
                rename_attribute(edits, cst.ensure_type(part, cst.Attribute).attr, "reset_state")
    for node in edits.tree.all(cst.Attribute):
        is_reset = node.attr.value == "reset_states" and not edits.has_edit(node.attr)
        if is_reset and edits.values.is_a(node.value, "keras.metrics.Metric"):
            rename_attribute(edits, node.attr, "reset_state")
            edits.mark(node)


def plan_optimizers(edits: Edits) -> None:
    """List each class derived from an optimizer that overrides a method of Keras 2's, as a whole."""
    for owner in edits.tree.all(cst.ClassDef):
        methods = [part.name.value for part in owner.body.body if isinstance(part, cst.FunctionDef)]
        old = next((name for name in methods if name in _OLD_METHODS), None)
        bases = edits.values.bases_of(owner)
        if old is not None and any(known.is_below(base, "keras.optimizers.Optimizer") for base in bases):
            edits.say(owner, advice("methods of an optimizer", method=old), old=f"class {owner.name.value}")
            edits.list_whole(owner)
