"""Compute with shapes as TensorFlow did: there a shape was a tensor, in Keras it is a tuple of integers.

Rule: NumPy computes what depends on sizes alone, so the result is known when JAX traces a step, and may be a shape.
"""

from __future__ import annotations

import libcst as cst

from anytpu.migrate.port.arguments import argument_of, plain_assignment
from anytpu.migrate.port.edits import Edits
from anytpu.migrate.port.kinds import SHAPE, SIZE

_MEMBERSHIP = cst.Is | cst.IsNot | cst.In | cst.NotIn


def plan_sizes(edits: Edits) -> None:
    """Plan the arithmetic of shapes, and the casts of sizes."""
    for node in edits.tree.nodes():
        if isinstance(node, cst.BinaryOperation):
            _make_arrays(edits, node.left, node.right)
            _join_lists(edits, node)
        elif isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
            _make_arrays(edits, node.expression)
        elif isinstance(node, cst.Comparison) and not isinstance(node.comparisons[0].operator, _MEMBERSHIP):
            _make_arrays(edits, node.left, *(target.comparator for target in node.comparisons))
        elif isinstance(node, cst.AugAssign) and isinstance(node.target, cst.Name):
            _plan_assignment(edits, node)
        elif isinstance(node, cst.Call):
            _plan_call(edits, node)
            _plan_resize(edits, node)


def _make_arrays(edits: Edits, *parts: cst.BaseExpression) -> None:
    """Make arrays of the operands that are shapes: Python repeats a tuple, and joins two."""
    for part in parts:
        if not SHAPE.isdisjoint(edits.values.of(part)):
            edits.compose(part, lambda updated: edits.expression("np.array({shape})", shape=updated))


def _join_lists(edits: Edits, node: cst.BinaryOperation) -> None:
    """Make a list of the shape in `[-1] + x.shape[1:]`: a shape of TensorFlow could be joined with a list."""
    for part, other in ((node.left, node.right), (node.right, node.left)):
        sliced = part.value if isinstance(part, cst.Subscript) and isinstance(part.slice[0].slice, cst.Slice) else part
        is_shape = isinstance(sliced, cst.Attribute) and sliced.attr.value == "shape"
        if is_shape and isinstance(other, cst.List) and isinstance(node.operator, cst.Add):
            edits.compose(part, lambda updated: edits.expression("list({shape})", shape=updated))


def _plan_assignment(edits: Edits, node: cst.AugAssign) -> None:
    """Turn `size *= 2` of a shape into `size = np.array(size) * 2`."""
    if not SHAPE.isdisjoint(edits.values.of(node.target)):
        new = "np.array({shape})"
        edits.put(node, lambda old: plain_assignment(old, edits.expression(new, shape=old.target)))


def _plan_resize(edits: Edits, call: cst.Call) -> None:
    """Make a tuple of a computed size, since a model that is saved takes no arrays as settings."""
    name = edits.tree.old_name(call.func) or ""
    size = argument_of(call, name, "size", "target_height") if name.startswith("image.resize") else None
    if size is not None and edits.values.of(size.value) == SIZE and not edits.values.is_host(call):
        edits.compose(size.value, lambda updated: edits.expression("tuple(map(int, {size}))", size=updated))


def _plan_call(edits: Edits, call: cst.Call) -> None:
    """Leave out the cast of a size to integers, and `tf.unstack` of a shape: they change nothing.

    Several sizes, `tf.shape(x)[1:3]`, keep the cast, which makes a tensor of the tuple.
    """
    name = edits.tree.old_name(call.func)
    is_cast = name == "cast" and edits.values.of(call) == SIZE
    is_unstacked = name == "unstack" and bool(call.args) and edits.values.of(call.args[0].value) == SHAPE
    if is_cast or is_unstacked:
        edits.put(call, lambda updated: updated.args[0].value, covers=call.func)
