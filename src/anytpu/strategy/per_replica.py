"""`PerReplica`: one value for each replica, as `strategy.run` returns it."""

from __future__ import annotations

from typing import Any, NoReturn, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from anytpu import _jax
from anytpu.engine.backend import Backend
from anytpu.errors import PerReplicaError, ReplicaError, SettingError
from anytpu.program.program import SharedOutput


@final
class PerReplica:
    """One value for each replica.

    `run` splits it again when it is an argument. `strategy.reduce` and `strategy.gather` reduce it to one value, and
    `.values` is the tuple of its parts. It is not an array: arithmetic on it raises.

    Args:
        values: a list or tuple with one array or number for each replica.

    Raises:
        SettingError: `values` is not a list or tuple, or is empty.

    Example:
        >>> PerReplica([np.float32(1), np.float32(2)])
        PerReplica:{
          0: 1.0,
          1: 2.0
        }
    """

    def __init__(self, values: Any) -> None:
        if not isinstance(values, list | tuple) or not values:
            raise SettingError(
                f"a PerReplica is made of a list with one value for each replica, not of {values!r}: "
                "for example PerReplica(np.split(x, strategy.num_replicas_in_sync))"
            )
        self._values = tuple(values)
        self._replicas = len(values)

    # One of four forms is set:
    #   values on the host       _values
    #   a stack on the host      _stack, and _rows if it has pads
    #   a stack on a backend     _backend, _handle, _spec, and _rows if it has pads
    #   values of any shapes     _backend, _handle, _shapes: a stack, padded along several axes
    #   one value for all        _backend, _handle, _shared_spec
    _replicas: int
    _values: tuple[Any, ...] | None = None
    _stack: Any = None
    _backend: Backend | None = None
    _handle: Any = None
    _spec: jax.ShapeDtypeStruct | None = None
    _shared_spec: jax.ShapeDtypeStruct | None = None
    _rows: tuple[int, ...] | None = None
    _shapes: tuple[tuple[int, ...], ...] | None = None
    _is_weak: bool | None = None
    # The replicas whose values are on this host; None: all.
    _own: tuple[int, ...] | None = None

    @classmethod
    def of_stack(
        cls, stack: np.ndarray, rows: tuple[int, ...] | None = None, own: tuple[int, ...] | None = None
    ) -> PerReplica:
        """Return the `PerReplica` of a stacked array, `(replicas, rows, ...)`.

        Args:
            stack: the values, stacked along axis 0.
            rows: number of real rows of each value; the rest are pads. None if all rows are real.
            own: indices of the replicas of this host, if it has only their values; None: all replicas.
        """
        per_replica = cls.__new__(cls)
        per_replica._own = own
        per_replica._replicas, per_replica._stack, per_replica._rows = len(stack), stack, rows
        return per_replica

    @classmethod
    def of_handle(
        cls, backend: Backend, handle: Any, spec: jax.ShapeDtypeStruct, rows: tuple[int, ...] | None = None
    ) -> PerReplica:
        """Return the `PerReplica` of a stacked array on a backend; the array is fetched when it is read.

        Args:
            backend: the backend that holds the array.
            handle: handle of the array.
            spec: spec of the stacked array, `(replicas, ...)`.
            rows: number of real rows of each value; None if all rows are real.
        """
        per_replica = cls.__new__(cls)
        per_replica._replicas, per_replica._rows = spec.shape[0], rows
        per_replica._backend, per_replica._handle, per_replica._spec = backend, handle, spec
        return per_replica

    @classmethod
    def of_shapes(cls, backend: Backend, handle: Any, shapes: tuple[tuple[int, ...], ...]) -> PerReplica:
        """Return the `PerReplica` of a stacked array on a backend, of which each replica's value is a corner.

        Args:
            backend: the backend that holds the array.
            handle: handle of the array.
            shapes: shape of each replica's value.
        """
        per_replica = cls.__new__(cls)
        per_replica._replicas, per_replica._shapes = len(shapes), shapes
        per_replica._backend, per_replica._handle = backend, handle
        return per_replica

    @classmethod
    def of_shared(cls, backend: Backend, handle: Any, spec: jax.ShapeDtypeStruct) -> PerReplica:
        """Return the `PerReplica` of one array on a backend, which is the value of every replica.

        Args:
            backend: the backend that holds the array.
            handle: handle of the array.
            spec: spec of the array.
        """
        per_replica = cls.__new__(cls)
        per_replica._replicas = len(backend.cores)
        per_replica._backend, per_replica._handle, per_replica._shared_spec = backend, handle, spec
        return per_replica

    @property
    def is_shared(self) -> bool:
        """Whether all replicas share one array."""
        return self._shared_spec is not None

    def shared(self) -> Any:
        """Return the array of a shared value."""
        assert self._backend is not None and self.is_shared
        return self._backend.get(self._handle)

    @property
    def values(self) -> tuple[Any, ...]:
        """The values, in the order of the replicas, without pads; only those of this host if it has no others."""
        if self._values is None and self.is_shared:
            # Index with () so that a 0-d array becomes a NumPy scalar, like the parts of a stack.
            self._values = (_on_host(self.shared())[()],) * self._replicas
        if self._values is None and self._shapes is not None:
            corners = [tuple(map(slice, shape)) for shape in self._shapes]
            self._values = tuple(part[corner] for part, corner in zip(self.padded(), corners, strict=True))
        if self._values is None:
            stack = self.padded()
            rows = self._rows or (None,) * self._replicas
            parts = [part if count is None else part[:count] for part, count in zip(stack, rows, strict=True)]
            self._values = tuple(parts if self._own is None else [parts[index] for index in self._own])
        return self._values

    @property
    def rows(self) -> tuple[int, ...] | None:
        """Number of real rows of each value if the stacked array has pads; otherwise None."""
        return self._rows

    def padded(self) -> Any:
        """Return the values as one array, `(replicas, ...)`, including the pads of a batch that is not full.

        It is a NumPy array; for typed random keys, which NumPy does not have, it is a JAX array.

        Raises:
            ReplicaError: the values have different shapes, and are not padded.
        """
        if self._shared_spec is not None:
            value = _on_host(self.shared())
            return (jnp if is_key(value) else np).broadcast_to(value, self.spec().shape)
        if self._backend is not None:
            return _on_host(self._backend.get(self._handle))
        return self.stacked() if self._stack is None else self._stack

    @property
    def has_own_rows(self) -> bool:
        """Whether these are the values of this host's replicas only."""
        return self._own is not None

    def stacked(self) -> Any:
        """Return the values as one array without pads, `(replicas, ...)`, of NumPy; of JAX if they are traced or keys.

        Raises:
            ReplicaError: the values have different shapes.
        """
        if self._own is not None:
            raise ReplicaError(
                f"this batch has the values of {len(self._own)} of {self._replicas} replicas, those of this host: pass "
                "it to strategy.run, and reduce or gather what that returns"
            )
        if self._rows is self._shapes is None and (self._backend is not None or self._stack is not None):
            return self.padded()
        values = self.values
        try:
            return np.stack([np.asarray(value) for value in values])
        except TypeError:
            # NumPy has neither traced values nor random keys.
            if any(is_traced(value) or is_key(value) for value in values):
                return jnp.stack(values)
            raise
        except ValueError:
            _check_shapes(values)
            raise

    def spec(self) -> jax.ShapeDtypeStruct:
        """Return the spec of the stacked array, including pads.

        Raises:
            ReplicaError: the values have different shapes.
        """
        if self._spec is not None:
            return self._spec
        if self._shared_spec is not None:
            shape, dtype = (self._replicas, *self._shared_spec.shape), self._shared_spec.dtype
        elif self._stack is not None:
            shape, dtype = self._stack.shape, jax.dtypes.canonicalize_dtype(self._stack.dtype)
        else:
            _check_shapes(self.values)
            dtypes = {getattr(value, "dtype", None) or np.asarray(value).dtype for value in self.values}
            shape = (self._replicas, *np.shape(self.values[0]))
            if any(is_key(value) for value in self.values):
                _check_key_types(dtypes)
                dtype = dtypes.pop()
            else:
                dtype = jax.dtypes.canonicalize_dtype(np.result_type(*dtypes))
        self._spec = jax.ShapeDtypeStruct(shape, dtype)
        return self._spec

    def passed_form(self) -> tuple[tuple[int, ...], Any, bool, bool, bool]:
        """Return the form of the array passed to a step: the array of a shared value, or else the stack.

        Returns:
            Its shape, its dtype, whether each replica gets a part, whether it has pads, and whether its type is weak,
            as that of Python numbers.
        """
        shared, padded = self._shared_spec, self._rows is not None
        if self._stack is not None:
            return self._stack.shape, jax.dtypes.canonicalize_dtype(self._stack.dtype), True, padded, False
        spec = self.spec() if shared is None else shared
        if self._is_weak is None:
            is_fetched = self._backend is not None
            self._is_weak = bool(spec.weak_type) if is_fetched else all([_jax.is_weak(v) for v in self.values])
        return spec.shape, spec.dtype, shared is None, padded, self._is_weak

    @property
    def holds_keys(self) -> bool:
        """Whether the values are typed random keys."""
        if self._values is not None:
            return any([is_key(value) for value in self._values])
        spec = self._spec if self._shared_spec is None else self._shared_spec
        return spec is not None and jnp.issubdtype(spec.dtype, jax.dtypes.prng_key)

    def handle_on(self, backend: Backend) -> Any | None:
        """Return the handle of the stacked or shared array if it is on this backend; otherwise None."""
        return self._handle if self._backend is backend else None

    def __repr__(self) -> str:
        rows = ",\n".join(f"  {index}: {value}" for index, value in enumerate(self.values))
        return "PerReplica:{\n" + rows + "\n}"

    def numpy(self) -> NoReturn:
        """Raise `PerReplicaError`: a `PerReplica` is not one array."""
        self._refuse()

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise PerReplicaError(self._no_array_text())

    def _refuse_to_jax(self) -> NoReturn:
        # Not a TypeError: JAX would raise its own in its place.
        raise ReplicaError(self._no_array_text())

    def _no_array_text(self) -> str:
        return (
            f"a PerReplica holds one value for each of {self._replicas} replicas and is not an array. "
            'Make one value of it with strategy.reduce("SUM", value, axis=None) or strategy.gather(value, axis=0), '
            "look at the parts with value.values, or compute inside a function that you pass to strategy.run"
        )

    # A property: JAX checks for this attribute first, and so raises this error instead of its own.
    __jax_array__ = shape = dtype = ndim = size = T = property(_refuse_to_jax)
    __array__ = __float__ = __int__ = __bool__ = __len__ = __iter__ = __getitem__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __neg__ = __abs__ = __lt__ = __gt__ = __le__ = __ge__ = __matmul__ = __rmatmul__ = __pow__ = __rpow__ = _refuse
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __and__ = __or__ = __xor__ = __invert__ = __round__ = _refuse


@jax.jit
def _only(arrays: Any) -> Any:
    """Return the values of a single replica; compiled, because indexing each array separately is slower than a step."""
    return jax.tree.map(lambda array: array[0], arrays)


def is_key(value: Any) -> bool:
    """Return whether a value is an array of typed random keys, as `jax.random.key` returns it."""
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def refuse_keys(name: str, tree: Any) -> None:
    """Reject the sum or mean of random keys.

    Args:
        name: name of the called function, for the error.
        tree: its value.

    Raises:
        SettingError: a leaf of the tree is an array of typed random keys, or a `PerReplica` of them.
    """
    for leaf in jax.tree.leaves(tree, is_leaf=is_per_replica):
        if leaf.holds_keys if isinstance(leaf, PerReplica) else is_key(leaf):
            raise SettingError(
                f"{name} was given random keys, which have no sum and no mean: take one of them with value.values[0], "
                "or all of them with strategy.gather; inside of a step fold the replica's index into a shared key, "
                "jax.random.fold_in(key, tpu.get_replica_context().replica_id_in_sync_group)"
            )


def _on_host(array: Any) -> Any:
    """Return an array as one of NumPy; typed random keys as one of JAX on this process's first device."""
    if not is_key(array):
        return np.asarray(array)
    data = jnp.asarray(np.asarray(jax.random.key_data(array)))
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(array))


def _check_key_types(dtypes: set[Any]) -> None:
    if len(dtypes) > 1:
        raise ReplicaError(
            f"the values of this PerReplica have different types, {', '.join(sorted(map(str, dtypes)))}: random keys "
            "of one implementation cannot be mixed with those of another, or with numbers"
        )


def _check_shapes(values: tuple[Any, ...]) -> None:
    shapes = [np.shape(value) for value in values]
    if len(set(shapes)) > 1:
        advice = "The values are in value.values: pad or cut them there"
        if () not in shapes and len({shape[1:] for shape in shapes}) == 1:
            advice = (
                "Where only the rows differ, joined = strategy.gather(value, axis=0) is one array of all rows, and "
                "next(iter(strategy.distribute_dataset([joined]))) splits it evenly"
            )
        raise ReplicaError(
            f"the values of this PerReplica have different shapes, {', '.join(map(str, shapes))}: every replica runs "
            f"the same compiled step, so give each a value of the same shape. {advice}"
        )


def is_traced(value: Any) -> bool:
    """Return whether a value is a JAX tracer."""
    return isinstance(value, Tracer)


def is_per_replica(leaf: Any) -> bool:
    """Return whether a leaf of a tree is a `PerReplica`."""
    return isinstance(leaf, PerReplica)


def _is_shared_output(node: Any) -> bool:
    return isinstance(node, SharedOutput)


def of_handles(backend: Backend, stacked: Any, specs: Any, shapes: Any = None) -> Any:
    """Return a tree of handles as a tree of `PerReplica`, or of plain values for one replica.

    Args:
        backend: the backend that holds the arrays.
        stacked: handles of the stacked arrays, or of a `SharedOutput` for values that all replicas share.
        specs: specs of the stacked arrays, `(replicas, ...)`, and of the shared values.
        shapes: for each value, the shape on each replica, or None if they are equal; None if all are.
    """
    if len(backend.cores) == 1:
        arrays, tree = jax.tree.flatten(backend.get(stacked), is_leaf=_is_shared_output)
        if all(isinstance(array, SharedOutput) for array in arrays):
            return tree.unflatten([array.value for array in arrays])
        are_jax = all(isinstance(array, jax.Array) for array in arrays)
        arrays = _only(arrays) if are_jax else [array[0] for array in arrays]
        weak = [_jax.is_weak(spec) for spec in jax.tree.leaves(specs)]
        return tree.unflatten([_jax.as_weak(a) if is_weak else a for a, is_weak in zip(arrays, weak, strict=True)])

    def wrap(handle: Any, spec: Any, shapes: Any) -> PerReplica:
        if isinstance(handle, SharedOutput):
            return PerReplica.of_shared(backend, handle.value, spec.value)
        if shapes is None or len({shape[1:] for shape in shapes}) == 1:
            return PerReplica.of_handle(backend, handle, spec, shapes and tuple(shape[0] for shape in shapes))
        return PerReplica.of_shapes(backend, handle, shapes)

    handles, tree = jax.tree.flatten(stacked, is_leaf=_is_shared_output)
    specs = tree.flatten_up_to(specs)
    return tree.unflatten(map(wrap, handles, specs, [None] * len(handles) if shapes is None else shapes))
