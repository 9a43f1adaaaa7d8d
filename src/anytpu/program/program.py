"""`Program`: a step and how its inputs lie on the cores. Every front door makes one; everything else consumes one.

Idea: what a Keras model, a JAX function or a custom step have in common is `step(state, batch) -> (state, outputs)`, a
pure function of arrays, and the shapes of what goes in. That is all that the engine needs to run it, `plan` to time it
and `chip` to compile it.

Rule: a Program is made in process from an unlowered function, and each backend lowers that function its own way. There
are two kinds. **Whole-batch** code (`replicas` is None) is written for the global batch; XLA partitions it.
**Per-replica** code (`replicas` is a number) is written for one core and is run once on each, joined by collectives
over `REPLICA_AXIS`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

REPLICA_AXIS = "replica"
"""The name of the axis that joins the replicas: `jax.lax.psum(x, REPLICA_AXIS)` in per-replica code."""

Tree = Any
"""A pytree of arrays, or of `jax.ShapeDtypeStruct`."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """How one array lies on the cores.

    Attributes:
        axis: the axis that is split evenly over the cores, or None when every core holds the whole array.
    """

    axis: int | None = None


REPLICATED = Layout(None)
"""Every core holds the whole array."""

ROWS = Layout(0)
"""Axis 0 is split over the cores."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SharedOutput:
    """An output of per-replica code that is the same on every replica: a node of the tree of outputs.

    Attributes:
        value: the output of any one replica.
    """

    value: Any

    @staticmethod
    def is_one(node: Any) -> bool:
        """Say whether a node of a tree is a `SharedOutput`."""
        return isinstance(node, SharedOutput)


@dataclasses.dataclass(frozen=True)
class Placement:
    """How whole-batch code that brings shardings of its own lies on a mesh of devices.

    Attributes:
        axes: (name, size) of each axis of the mesh, in the order of its devices.
        specs: for each leaf of the state, then of the batch: for each dimension the names of the axes that it is split
            over, () where it is whole. Dimensions that are left out at the end are whole.
        explicit: the axes whose shardings are part of the types of the arrays (`jax.sharding.AxisType.Explicit`).
        device: the kind of devices of the mesh that the step names, a `jax.sharding.AbstractDevice`; None where it
            names none. JAX takes meshes of other kinds for other meshes.

    Example:
        >>> Placement((("data", 4), ("model", 2)), (((), ("model",)), (("data",),))).devices
        8
    """

    axes: tuple[tuple[str, int], ...]
    specs: tuple[tuple[tuple[str, ...], ...], ...]
    explicit: tuple[str, ...] = ()
    device: Any = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def devices(self) -> int:
        """The number of devices of the mesh."""
        return math.prod(size for _, size in self.axes)


@dataclasses.dataclass(frozen=True)
class Program:
    """A pure step, and the shapes and layout of what goes in.

    Attributes:
        name: what people call it ("sequential/train"); shown in errors and reports.
        step: `step(state, batch) -> (state, outputs)`. For whole-batch code `batch` is the global batch; for
            per-replica code it is one replica's share.
        state: tree of `jax.ShapeDtypeStruct`: what is carried from step to step. The same on every core.
        batch: tree of `jax.ShapeDtypeStruct` of the GLOBAL batch: for a split leaf of per-replica code the leading axis
            is the replica, `(replicas, ...)`.
        layout: tree of `Layout`, one per leaf of `batch`: the axis along which examples lie, which is split over the
            cores, or no axis for a leaf that all hold. Of code with a placement it only says where examples are.
        replicas: the number of replicas of per-replica code, or None for whole-batch code.
        mode: "train" or "infer".
        state_names: a flat name per leaf of `state` ("dense/kernel"), in the order of `jax.tree.leaves`.
        tensors: the values of `state`, where they were asked for and are known; else None. No one who runs a program
            looks at them: state is handed in.
        placement: the shardings that the code brings along, which then go before `layout` where it is planned; None for
            code that brings none. It is for as many devices as its mesh has.
        notes: sentences on what was assumed when it was made, for whoever plans it.
        shares_outputs: whether an output that all replicas of per-replica code return alike leaves once, as a
            `SharedOutput`, and not as `(replicas, ...)`.
    """

    name: str
    step: Callable[[Tree, Tree], tuple[Tree, Tree]]
    state: Tree
    batch: Tree
    layout: Tree
    replicas: int | None = None
    mode: str = "train"
    state_names: tuple[str, ...] = ()
    tensors: Tree | None = dataclasses.field(default=None, repr=False, compare=False)
    placement: Placement | None = None
    notes: tuple[str, ...] = dataclasses.field(default=(), compare=False)
    shares_outputs: bool = False

    @property
    def rows(self) -> int | None:
        """The examples of the global batch of whole-batch code; None when no leaf has any, or for per-replica code."""
        if self.replicas is not None:
            return None
        split = [leaf.shape[lay.axis] for leaf, lay in self.leaves() if lay.axis is not None]
        return split[0] if split else None

    def leaves(self) -> list[tuple[jax.ShapeDtypeStruct, Layout]]:
        """Return each leaf of `batch` beside its layout."""
        layouts = jax.tree.leaves(self.layout, is_leaf=lambda x: isinstance(x, Layout))
        return list(zip(jax.tree.leaves(self.batch), layouts, strict=True))


def spec_of(tree: Tree) -> Tree:
    """Return the tree with each array replaced by its `jax.ShapeDtypeStruct`.

    dtypes are those that JAX computes with: int64 becomes int32 unless 64-bit mode is on. Weak types become strong, and
    shardings are dropped.

    Example:
        >>> spec_of({"x": np.zeros((2, 3))})["x"].shape
        (2, 3)
    """
    return jax.tree.map(_leaf_spec, tree)


def _leaf_spec(leaf: Any) -> jax.ShapeDtypeStruct:
    typed = isinstance(leaf, np.ndarray | jax.Array | jax.ShapeDtypeStruct)
    dtype = leaf.dtype if typed else np.asarray(leaf).dtype
    # Neither the sharding nor the weak type of what is given: they would make another program of the same shapes.
    return jax.ShapeDtypeStruct(np.shape(leaf), jax.dtypes.canonicalize_dtype(dtype, allow_extended_dtype=True))
