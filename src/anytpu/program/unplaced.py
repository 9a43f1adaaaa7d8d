"""`unplaced`: a program with a placement, as code for one device.

Idea: a sharding states where the elements of an array are, and never changes their values. So it is dropped from the
trace. `jax.shard_map` is code for one device of the mesh: it becomes a nested `jax.vmap` over the mesh axes, with their
names. Collectives over an axis become operations over a mapped axis, as in `one_device_step`.

Rule: the numbers are those of the mesh but for the order of sums. A collective that `jax.vmap` cannot map is rejected
by name.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun, new_jaxpr_eqn
from jax.extend.core.primitives import all_gather_p, psum_p
from jax.sharding import PartitionSpec, Sharding

from anytpu.errors import ProgramError
from anytpu.program.jaxprs import (
    calling,
    function_of,
    inner_jaxprs,
    level_of,
    rewrite_jaxprs,
    with_rewritten_trace,
    with_variables,
)
from anytpu.program.placed import inside, parts_of
from anytpu.program.program import Program, Tree

_IDENTITIES = frozenset(["sharding_constraint", "reshard", "mesh_cast", "pvary", "pcast", "layout_constraint"])
"""Equations that change where an array is, or JAX's record of that, and not its values."""

_VARYING = {"psum_invariant": psum_p, "all_gather_invariant": all_gather_p}
"""Collectives of `jax.shard_map` with `check_vma`, and the same without its record of varying axes."""


@dataclasses.dataclass(frozen=True)
class ConstrainedStep:
    """A step to which sharding constraints were added.

    Attributes:
        plain: the step without them. One device runs it, traced anew: a backend may trace its own forms of layers.
        constrained: the step with them.
    """

    plain: Callable[[Tree, Tree], tuple[Tree, Tree]]
    constrained: Callable[[Tree, Tree], tuple[Tree, Tree]]

    def __call__(self, state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        """Run the step with its constraints."""
        return self.constrained(state, batch)


def unplaced(program: Program) -> Program:
    """Return the program without its placement, for one device; a program without one is returned unchanged.

    Raises:
        ProgramError: (during the trace of its step) the step has a collective that one device cannot express.

    Example:
        >>> constrained = lambda state, x: (state + jax.lax.with_sharding_constraint(x, P("data")), {})
        >>> spec = jax.ShapeDtypeStruct((4,), "float32")
        >>> placed = Program("add", constrained, spec, spec, ROWS, placement=Placement((("data", 2),), ((), ())))
        >>> unplaced(placed).step(jnp.zeros(4), jnp.ones(4))[0]
        Array([1., 1., 1., 1.], dtype=float32)
    """
    placement, own = program.placement, program.step
    if placement is None:
        return program
    plain = own.plain if isinstance(own, ConstrainedStep) else own

    def step(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        with inside(placement):
            return plain(state, batch)

    removal = _MeshRemoval(program.name)
    return dataclasses.replace(program, step=with_rewritten_trace(step, removal.rewrite), placement=None)


class _MeshRemoval:
    """The removal of the mesh from the trace of one program.

    Args:
        name: name of the program, for errors.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._known: dict[Jaxpr, Jaxpr] = {}

    def rewrite(self, closed: ClosedJaxpr) -> ClosedJaxpr:
        """Return a trace without shardings and without `jax.shard_map`; the trace itself if it has neither."""
        return rewrite_jaxprs(closed, self._level) if _names_mesh(closed.jaxpr) else closed

    def _level(self, jaxpr: Jaxpr) -> Jaxpr:
        # A function that is called twice stays one function.
        if jaxpr not in self._known:
            self._known[jaxpr] = self._rewritten(jaxpr)
        return self._known[jaxpr]

    def _rewritten(self, jaxpr: Jaxpr) -> Jaxpr:
        # The types of the variables and literals name the mesh too, so each one is made again.
        renamed: dict[Any, Any] = {}

        def make(variables: Sequence[Any]) -> list[Any]:
            renamed.update({variable: Var(_without_mesh(variable.aval)) for variable in variables})
            return [renamed[variable] for variable in variables]

        def read(atom: Any) -> Any:
            return _literal_without_mesh(atom) if isinstance(atom, Literal) else renamed[atom]

        constants, arguments, equations = make(jaxpr.constvars), make(jaxpr.invars), []
        for equation in jaxpr.eqns:
            operands = [read(atom) for atom in equation.invars]
            if equation.primitive.name in _IDENTITIES:
                renamed.update(zip(equation.outvars, operands, strict=True))
            else:
                equations.append(self._equation(equation, operands, make(equation.outvars)))
        results = [read(atom) for atom in jaxpr.outvars]
        return with_variables(jaxpr, constants, arguments, equations, results)

    def _equation(self, equation: JaxprEqn, operands: list[Any], results: list[Any]) -> JaxprEqn:
        primitive = _VARYING.get(equation.primitive.name, equation.primitive)
        if primitive.name == "shard_map":
            return calling(self._mapped(equation), operands, results, equation)
        params = {key: rewrite_jaxprs(value, self._level) for key, value in equation.params.items()}
        # A call with shardings is made anew without them.
        if primitive.name == "jit" and any(map(_is_sharding, (*params["in_shardings"], *params["out_shardings"]))):
            return calling(jaxpr_as_fun(params["jaxpr"]), operands, results, equation)
        params = {key: None if _is_sharding(value) else value for key, value in params.items()}
        if primitive is not equation.primitive:
            # JAX's collectives without a record of varying axes have this parameter in addition.
            params["axis_index_groups"] = None
        return new_jaxpr_eqn(operands, results, primitive, params, equation.effects, equation.source_info)

    def _mapped(self, equation: JaxprEqn) -> Callable[..., Any]:
        """Return the function of a `jax.shard_map` on whole arrays, as a nested `jax.vmap`."""
        params = equation.params
        body = function_of(self._level(level_of(params["jaxpr"])))
        mesh = params["mesh"]
        sizes = {axis: mesh.shape[axis] for axis in mesh.axis_names if axis in params["newly_manual_axes"]}
        # The last `vmap` is the outermost and maps the leading axis. `_shards` puts the first mesh axis there.
        for axis in reversed(sizes):
            body = jax.vmap(body, axis_name=axis, axis_size=sizes[axis])
        specs = params["in_specs"], params["out_specs"]

        def whole(*arrays: Any) -> list[Any]:
            shards = [_shards(array, spec, sizes) for array, spec in zip(arrays, specs[0], strict=True)]
            try:
                results = body(*shards)
            except (NotImplementedError, ValueError) as error:
                named = " and ".join(dict.fromkeys(_grouped(equation.params["jaxpr"])))
                cause = f"{named} with axis_index_groups" if named else str(error).splitlines()[0].rstrip(".!")
                raise ProgramError(
                    f"The jax.shard_map in the step of {self._name!r} cannot run on one device, as virtual cores do: "
                    f"{cause}. {_on_devices(math.prod(mesh.axis_sizes))}"
                ) from error
            return [_joined(result, spec, sizes) for result, spec in zip(results, specs[1], strict=True)]

        return whole


def _grouped(jaxpr: Any) -> Iterator[str]:
    """Yield the name of each collective over groups of devices, also in the functions that a jaxpr calls."""
    for equation in level_of(jaxpr).eqns:
        if equation.params.get("axis_index_groups") is not None:
            yield equation.primitive.name
        for inner in inner_jaxprs(equation):
            yield from _grouped(inner)


def _on_devices(count: int) -> str:
    """Return how to run a step on so many devices without a TPU."""
    return (
        f"It runs on a real mesh, also of {count} CPU devices: start Python with JAX_PLATFORMS=cpu "
        f"XLA_FLAGS=--xla_force_host_platform_device_count={count}, and connect with "
        f'tpu.TPUStrategy(tpu.TPUClusterResolver.from_address(tpu.system.Address("local", {count})), layout=...).'
    )


def _names_mesh(jaxpr: Jaxpr) -> bool:
    """Return whether an equation of a trace names a mesh, also in the functions that it calls."""
    return any(
        equation.primitive.name == "shard_map"
        or equation.primitive.name in _IDENTITIES
        or any(_is_sharding(item) for value in equation.params.values() for item in _items(value))
        or any(_names_mesh(level_of(inner)) for inner in inner_jaxprs(equation))
        for equation in jaxpr.eqns
    )


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, tuple) else (value,)


def _is_sharding(value: Any) -> bool:
    return isinstance(value, Sharding)


def _without_mesh(aval: Any) -> Any:
    return ShapedArray(aval.shape, aval.dtype, aval.weak_type) if type(aval) is ShapedArray else aval


def _literal_without_mesh(literal: Literal) -> Literal:
    """Return a literal whose value, a scalar, does not name the mesh of its trace as JAX's own type of it does."""
    value, aval = np.asarray(literal.val)[()], _without_mesh(literal.aval)
    is_weak = aval.weak_type and jax.typeof(value.item()).dtype == aval.dtype
    return Literal(value.item() if is_weak else value, aval)


def _parts(spec: PartitionSpec, dimensions: int) -> list[tuple[str, ...]]:
    """Return the mesh axes that split each dimension."""
    parts = parts_of(spec)
    return [*parts, *[()] * (dimensions - len(parts))]


def _shards(array: Any, spec: PartitionSpec, sizes: Mapping[str, int]) -> Any:
    """Return the shards of a whole array, stacked along one leading axis for each mesh axis."""
    shape: list[int] = []
    where: dict[str, int] = {}
    for size, parts in zip(array.shape, _parts(spec, array.ndim), strict=True):
        for part in parts:
            where[part] = len(shape)
            shape.append(sizes[part])
        shape.append(size // math.prod(sizes[part] for part in parts))
    split = jnp.reshape(array, shape)
    rest = [index for index in range(len(shape)) if index not in where.values()]
    split = jnp.transpose(split, [*(where[axis] for axis in sizes if axis in where), *rest])
    for index, (axis, size) in enumerate(sizes.items()):
        if axis not in where:
            split = jnp.broadcast_to(jnp.expand_dims(split, index), (*split.shape[:index], size, *split.shape[index:]))
    return split


def _joined(shards: Any, spec: PartitionSpec, sizes: Mapping[str, int]) -> Any:
    """Return the whole array of stacked shards; along a mesh axis that splits nothing, the first shard."""
    parts = _parts(spec, shards.ndim - len(sizes))
    used = {part for dimension in parts for part in dimension}
    for index, axis in reversed(list(enumerate(sizes))):
        if axis not in used:
            shards = shards[(*[slice(None)] * index, 0)]
    leading = [axis for axis in sizes if axis in used]
    shape = shards.shape[len(leading) :]
    order: list[int] = []
    for index, dimension in enumerate(parts):
        order += [*(leading.index(part) for part in dimension), len(leading) + index]
    whole = [size * math.prod(sizes[part] for part in dimension) for size, dimension in zip(shape, parts, strict=True)]
    return jnp.reshape(jnp.transpose(shards, order), whole)
