"""List optimizers of the program's own that are written for Keras 2: Keras 3 would not call their methods."""

from __future__ import annotations

import libcst as cst

from anytpu.port import known
from anytpu.port.edits import Edits

_OLD = ("_resource_apply_dense", "_resource_apply_sparse", "_create_slots", "_prepare_local", "get_updates")
_ADVICE = (
    "Keras 3 calls build(variables) and update_step(gradient, variable, learning_rate) of an optimizer, and none of "
    "{method}: for decoupled weight decay write keras.optimizers.AdamW(rate, weight_decay=0.01) and "
    "optimizer.exclude_from_weight_decay(var_names=['bias'])"
)


def plan_optimizers(edits: Edits) -> None:
    """List each class derived from an optimizer that overrides a method of Keras 2's, as a whole."""
    for owner in edits.tree.all(cst.ClassDef):
        methods = [part.name.value for part in owner.body.body if isinstance(part, cst.FunctionDef)]
        old = next((name for name in methods if name in _OLD), None)
        bases = edits.values.bases_of(owner)
        if old is not None and any(known.is_below(base, "keras.optimizers.Optimizer") for base in bases):
            edits.say(owner, _ADVICE.format(method=old), old=f"class {owner.name.value}")
            edits.list_whole(owner)
