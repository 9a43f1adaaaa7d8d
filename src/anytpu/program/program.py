"""`Program`: a pure step with the shapes and layouts of its inputs; the common input of `engine`, `plan` and `chip`.

Idea: a Keras model, a JAX function and a custom step all reduce to a pure function of arrays and the shapes of its
inputs. The function is `step(state, batch) -> (state, outputs)`. The engine needs no more to run it, `plan` to time it,
or `chip` to compile it.

Rule: a Program holds an unlowered function of this process, and each backend lowers it in its own way. There are two
kinds. **Whole-batch** code (`replicas` is None) is written for the global batch; XLA partitions it. **Per-replica**
code (`replicas` is an integer) is written for one core and runs once on each, with collectives over `REPLICA_AXIS`. A
leaf of a tree has a readable name: its path, joined by "/". A tree that is a single leaf has the name of its root.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

REPLICA_AXIS = "replica"
"""Name of the replica axis for collectives: `jax.lax.psum(x, REPLICA_AXIS)` in per-replica code."""

Tree = Any
"""A pytree of arrays, or of `jax.ShapeDtypeStruct`."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """The layout of one array on the cores.

    Without a mesh the cores are one axis, which splits `axis`; None is an array that every core holds whole.

    Attributes:
        axis: index of the axis of examples, or None if the array has none.
        spec: partition over the mesh, as in `Placement.specs`.
        mesh: (name, size) of each mesh axis, as in `Placement.axes`; () for cores without a mesh.

    Example:
        >>> Layout(0, (("data",),), (("data", 4), ("model", 2))).pieces(cores=8)
        {0: 4}
    """

    axis: int | None = None
    spec: tuple[tuple[str, ...], ...] = ()
    mesh: tuple[tuple[str, int], ...] = ()

    def pieces(self, cores: int) -> dict[int, int]:
        """Return the number of pieces of each split axis, by its index.

        Args:
            cores: number of cores.
        """
        if not self.mesh:
            return {} if self.axis is None else {self.axis: cores}
        sizes = dict(self.mesh)
        return {axis: math.prod(sizes[part] for part in parts) for axis, parts in enumerate(self.spec) if parts}

    def stacked(self) -> Layout:
        """Return the layout of a stack of such arrays, which every core holds all steps of; axis 0 counts the steps."""
        axis = None if self.axis is None else self.axis + 1
        return dataclasses.replace(self, axis=axis, spec=((), *self.spec) if self.mesh else ())


REPLICATED = Layout(None)
"""Every core holds the whole array."""

ROWS = Layout(0)
"""Axis 0 is split over the cores."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SharedOutput:
    """An output of per-replica code that is equal on every replica: a node of the output tree.

    Attributes:
        value: the output of any replica.
    """

    value: Any

    @staticmethod
    def is_one(node: Any) -> bool:
        """Return whether a node of a tree is a `SharedOutput`."""
        return isinstance(node, SharedOutput)


@dataclasses.dataclass(frozen=True)
class Placement:
    """The shardings over a device mesh of whole-batch code that has its own shardings.

    Attributes:
        axes: (name, size) of each mesh axis, in the order of its devices.
        specs: partition of each leaf of the state, then of the batch. It has for each dimension the names of the mesh
            axes that split it, or () if it is not split. Omitted trailing dimensions are not split.
        explicit: mesh axes whose shardings are part of the array types (`jax.sharding.AxisType.Explicit`).
        device: kind of the mesh's devices if the step names it, a `jax.sharding.AbstractDevice`; otherwise None. JAX
            treats meshes of other kinds as different meshes.
        assumption: sentence on the shardings that are assumed for a step that names only a mesh; "" for requested
            ones. A layout replaces assumed shardings.

    Example:
        >>> Placement((("data", 4), ("model", 2)), (((), ("model",)), (("data",),))).devices
        8
    """

    axes: tuple[tuple[str, int], ...]
    specs: tuple[tuple[tuple[str, ...], ...], ...]
    explicit: tuple[str, ...] = ()
    device: Any = dataclasses.field(default=None, repr=False, compare=False)
    assumption: str = dataclasses.field(default="", repr=False, compare=False)

    @property
    def devices(self) -> int:
        """Number of devices of the mesh."""
        return math.prod(size for _, size in self.axes)


@dataclasses.dataclass(frozen=True)
class Program:
    """A pure step, and the shapes and layouts of its inputs.

    Attributes:
        name: name for errors and reports, such as "sequential/train".
        step: `step(state, batch) -> (state, outputs)`. For whole-batch code `batch` is the global batch; for
            per-replica code it is one replica's share.
        state: tree of `jax.ShapeDtypeStruct`: the values carried from step to step, equal on every core.
        batch: tree of `jax.ShapeDtypeStruct` of the GLOBAL batch: for a split leaf of per-replica code the leading axis
            is the replica, `(replicas, ...)`.
        layout: tree of `Layout`, one per leaf of `batch`: the example axis, which is split over the cores, or None for
            a replicated leaf. For code with a placement it only states the example axis; see `array_layouts`.
        replicas: number of replicas of per-replica code, or None for whole-batch code.
        mode: "train" or "infer".
        state_names: a flat name per leaf of `state` ("dense/kernel"), in the order of `jax.tree.leaves`.
        tensors: the values of `state`, if they were requested and are known; otherwise None. Execution ignores them:
            the state is an argument.
        placement: the shardings of whole-batch code, which take precedence over `layout`; None for code without
            shardings. It requires as many devices as its mesh has.
        notes: sentences on assumptions of the conversion, for the reader of a plan.
        shares_outputs: for per-replica code, True to return an output that is equal on all replicas once, as a
            `SharedOutput`. Otherwise each output is `(replicas, ...)`.
        tables: names of the leaves of `state` that are embedding tables or their slots; a layout splits their rows.
        state_kinds: kind of each leaf of `state`: "weights" (trained), "frozen" (weights that are not trained,
            statistics, random state), "slots" (of the optimizer), "cache" (keys and values) or "other"; () if it is not
            known.
        sums_products: True if per-replica code sums products over the replicas, which one device computes as one
            product (`summed_products.py`).
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
    sums_products: bool = False
    tables: tuple[str, ...] = ()
    state_kinds: tuple[str, ...] = dataclasses.field(default=(), repr=False, compare=False)

    @property
    def rows(self) -> int | None:
        """Number of examples in the global batch of whole-batch code; None without examples or for per-replica code."""
        if self.replicas is not None:
            return None
        split = [leaf.shape[lay.axis] for leaf, lay in self.leaves() if lay.axis is not None]
        return split[0] if split else None

    def leaves(self) -> list[tuple[jax.ShapeDtypeStruct, Layout]]:
        """Return pairs of each leaf of `batch` and its layout."""
        layouts = jax.tree.leaves(self.layout, is_leaf=lambda x: isinstance(x, Layout))
        return list(zip(jax.tree.leaves(self.batch), layouts, strict=True))


def array_layouts(program: Program) -> tuple[Tree, Tree]:
    """Return the layouts of the state and of the batch, as trees of `Layout`.

    Example:
        >>> placement = Placement((("data", 2),), ((), (("data",),)))
        >>> spec = jax.ShapeDtypeStruct((4,), "float32")
        >>> array_layouts(Program("add", lambda s, b: (s + b, {}), spec, spec, ROWS, placement=placement))[1].spec
        (('data',),)
    """
    placement, form = program.placement, jax.tree.structure(program.state)
    if placement is None:
        return form.unflatten([REPLICATED] * form.num_leaves), program.layout
    on_mesh = [Layout(None, spec, placement.axes) for spec in placement.specs]
    state, batch = on_mesh[: form.num_leaves], on_mesh[form.num_leaves :]
    axes = [layout.axis for _, layout in program.leaves()]
    batch = [dataclasses.replace(layout, axis=axis) for layout, axis in zip(batch, axes, strict=True)]
    return form.unflatten(state), jax.tree.structure(program.batch).unflatten(batch)


def spec_of(tree: Tree) -> Tree:
    """Return the tree with each array replaced by its `jax.ShapeDtypeStruct`.

    Dtypes are canonical for JAX: int64 becomes int32 unless 64-bit mode is on. Weak types become strong, and shardings
    are dropped.

    Example:
        >>> spec_of({"x": np.zeros((2, 3))})["x"].shape
        (2, 3)
    """
    return jax.tree.map(_leaf_spec, tree)


def _leaf_spec(leaf: Any) -> jax.ShapeDtypeStruct:
    typed = isinstance(leaf, np.ndarray | jax.Array | jax.ShapeDtypeStruct)
    dtype = leaf.dtype if typed else np.asarray(leaf).dtype
    # Drop the sharding and the weak type of the leaf: they would make another program of the same shapes.
    return jax.ShapeDtypeStruct(np.shape(leaf), jax.dtypes.canonicalize_dtype(dtype, allow_extended_dtype=True))


def leaf_names(tree: Tree, root: str) -> tuple[str, ...]:
    """Return the name of each leaf, in the order of `jax.tree.leaves`.

    Args:
        tree: any pytree.
        root: the name of the leaf if the tree is a single leaf.

    Example:
        >>> leaf_names({"dense": {"kernel": 1.0, "bias": 2.0}}, "state")
        ('dense/bias', 'dense/kernel')
    """
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    return tuple(jax.tree_util.keystr(path, simple=True, separator="/") or root for path in paths)


def state_names(program: Program) -> tuple[str, ...]:
    """Return the program's names of its state leaves, or their paths if it has no names."""
    return program.state_names or leaf_names(program.state, "state")


def leaf_text(leaf: Any) -> str:
    """Return the dtype and shape of an array, or of a `jax.ShapeDtypeStruct`, as a short text.

    Example:
        >>> leaf_text(jax.ShapeDtypeStruct((784, 128), "float32"))
        'float32[784,128]'
    """
    return f"{leaf.dtype.name}[{','.join(map(str, leaf.shape))}]"
