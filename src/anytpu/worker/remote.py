"""The remote backend: the cores of a worker, `grpc://host:port`.

Idea: a handle is a number that this process has chosen. `put` and calls send their request and return handles at once;
errors appear at the next `get` or `wait`. Programs are lowered here, for the worker, and compiled there.

Rule: the worker's description tells its abilities; this process's JAX does not.
"""

from __future__ import annotations

import importlib.metadata
import threading
import weakref
from typing import Any, final

import jax
import numpy as np

from anytpu.engine.backend import Backend, Executable, Loop, StepResults
from anytpu.engine.handles import Handle, consume, later_arrays, value_of
from anytpu.errors import HandleError, WorkerError
from anytpu.program.program import Layout, Program, Tree
from anytpu.system.chips import CHIPS
from anytpu.system.cores import Address, Core, Numerics
from anytpu.system.topologies import Topology
from anytpu.system.workers import WorkerAddress
from anytpu.worker.arrays import describe, to_host
from anytpu.worker.lowering import WorkerTarget, lower_call
from anytpu.worker.session import RemoteOperation, Session, content_of, describe_worker
from anytpu.worker.wire import INLINE_BYTES, messages

_PLATFORMS = {"gpu": "cuda"}
_SIBLING_BYTES = 64
"""Maximum size of a result that comes with the first `get` of another result of its call."""
_MAX_SIBLINGS = 64
_SESSIONS: dict[WorkerAddress, Session] = {}
_lock = threading.Lock()


def session_of(address: WorkerAddress) -> Session:
    """Return this process's session with a worker; it is opened at the first call, and after it has ended."""
    with _lock:
        session = _SESSIONS.get(address)
        if session is None or session.has_ended:
            session = _SESSIONS[address] = Session(address)
        return session


def topology_at(address: Address) -> Topology:
    """Return the topology of the system of a worker.

    Raises:
        WorkerError: it cannot be reached, refuses this client, or has fewer cores than the address names.
    """
    assert address.worker is not None
    described = describe_worker(address.worker)
    count = address.cores or len(described.cores)
    if count > len(described.cores):
        raise WorkerError(
            f"the worker at {address.worker.target} has {len(described.cores)} cores, and {count} were asked for"
        )
    cores = tuple(
        Core(
            core.index,
            core.platform,
            core.virtual,
            tuple(core.chip_coordinates),
            core.core_on_chip,
            core.host,
            memory_bytes=core.memory_bytes or None,
        )
        for core in described.cores[:count]
    )
    name = described.name if count == len(described.cores) else f"{count} cores of {described.name}"
    return Topology(
        f"{name} at {address.worker.target}",
        CHIPS.get(described.chip),
        tuple(described.chip_bounds),
        described.cores_per_chip,
        cores,
    )


@final
class RemoteArray:
    """An array of a session, which is freed on the worker when the last handle is gone.

    Attributes:
        name: its number in the session.
        operation: the request that makes it.
        value: its value, if it came with another one; or None.
        siblings: small results of the same call, itself perhaps included. They are fetched with it, because each round
            trip costs more than their bytes.
    """

    __slots__ = ("__weakref__", "_session", "name", "operation", "siblings", "value")

    def __init__(self, session: Session) -> None:
        self._session, self.name = session, session.new_name()
        self.operation: RemoteOperation | None = None
        self.value: Any = None
        self.siblings: weakref.WeakSet[RemoteArray] = weakref.WeakSet()

    def __del__(self) -> None:
        self._session.unused("handles", self.name)


@final
class _Fetch:
    """A request for the values of arrays, and of their siblings."""

    def __init__(self, session: Session, arrays: list[RemoteArray]) -> None:
        self._session = session
        # Under the lock, because a call that another thread sends meanwhile may consume a sibling.
        with session.order:
            self._siblings = {sibling for array in arrays for sibling in array.siblings if sibling.value is None}
            self._asked = [*arrays, *self._siblings.difference(arrays)]
            self.operation = session.send(get=messages().Get(handles=[array.name for array in self._asked]))

    def values(self) -> dict[RemoteArray, Any]:
        """Wait for the values of the arrays, and return them; the siblings keep theirs."""
        values = dict(zip(self._asked, content_of(self._session.store, self.operation), strict=True))
        for sibling in self._siblings:
            sibling.value = values[sibling]
        return values


@final
class RemoteBackend(Backend):
    """The cores of a worker.

    Args:
        cores: the cores, the first of the worker's.
        session: the session with the worker.
        numerics: "machine" or "tpu": the rounding of float32 products.

    Raises:
        WorkerError: the worker's JAX cannot read the programs of this process's JAX.
    """

    is_far = True

    def __init__(self, cores: tuple[Core, ...], session: Session, numerics: Numerics = "machine") -> None:
        self._cores, self._session = cores, session
        described = session.description
        _check_versions(session)
        self._target = WorkerTarget(
            platform=_PLATFORMS.get(cores[0].platform, cores[0].platform),
            is_virtual=described.kind == "virtual",
            has_equal_jaxlib=described.jaxlib == importlib.metadata.version("jaxlib"),
            kernels=described.kernels,
            cores=cores,
            numerics=numerics,
        )

    @classmethod
    def at(cls, address: Address, cores: tuple[Core, ...]) -> RemoteBackend:
        """Return the backend of the worker at an address."""
        assert address.worker is not None
        return cls(cores, session_of(address.worker), address.numerics)

    @property
    def cores(self) -> tuple[Core, ...]:
        """The cores."""
        return self._cores

    @property
    def memory_bytes(self) -> int:
        """Memory of one core, or of the session if that is less."""
        described = self._session.description.memory_bytes
        return min([described, *(core.memory_bytes for core in self._cores if core.memory_bytes and not core.virtual)])

    def put(self, tree: Tree, layout: Layout) -> Tree:
        """Send arrays, and return their handles; handles pass through."""
        leaves, structure = jax.tree.flatten(tree)
        return structure.unflatten([leaf if isinstance(leaf, Handle) else self._put(leaf, layout) for leaf in leaves])

    def put_once(self, tree: Tree, layout: Layout) -> Tree:
        """Return small NumPy arrays unchanged, because a call takes them along; send the others."""
        leaves, structure = jax.tree.flatten(tree)
        return structure.unflatten([leaf if _is_small(leaf) else self.put(leaf, layout) for leaf in leaves])

    def get(self, tree: Tree) -> Tree:
        """Fetch arrays, all in one request; arrays pass through."""
        leaves, structure = jax.tree.flatten(tree)
        asked = [leaf for leaf in leaves if isinstance(leaf, Handle)]
        if not asked:
            return tree
        arrays = [value_of(handle) for handle in asked]
        fetched = self._fetch([array for array in arrays if array.value is None])
        values = {id(handle): fetched.get(array, array.value) for handle, array in zip(asked, arrays, strict=True)}
        return structure.unflatten([values.get(id(leaf), leaf) for leaf in leaves])

    def get_later(self, tree: Tree) -> Tree:
        """Ask for arrays, and return at once if all are small; otherwise as `get`."""
        leaves, structure = jax.tree.flatten(tree)
        arrays: list[RemoteArray] = [value_of(leaf) for leaf in leaves if isinstance(leaf, Handle)]
        if not arrays or len(arrays) < len(leaves) or any(array not in array.siblings for array in arrays):
            return self.get(tree)
        fetch = _Fetch(self._session, arrays)
        return structure.unflatten(later_arrays(len(arrays), lambda: list(map(fetch.values().get, arrays))))

    def _fetch(self, arrays: list[RemoteArray]) -> dict[RemoteArray, Any]:
        return _Fetch(self._session, arrays).values() if arrays else {}

    def is_ready(self, tree: Tree) -> bool:
        """Return whether the worker has reported the calls that compute these arrays."""
        return all(operation.is_done for operation in _operations(tree))

    def wait(self, tree: Tree) -> None:
        """Wait for the worker's report of the calls that compute these arrays."""
        for operation in _operations(tree):
            operation.result()

    def compile(self, program: Program, loop: Loop | None = None) -> Executable:
        """Lower a Program here, and compile it on the worker."""
        return _RemoteExecutable(self._session, program, loop, self._target)

    def close(self) -> None:
        """End the session, and with it everything on the worker."""
        self._session.close()

    def _put(self, leaf: Any, layout: Layout) -> Handle:
        array, generator = to_host(leaf)
        remote = RemoteArray(self._session)
        axis = -1 if layout.axis is None else layout.axis
        message = messages().Put(
            handles=[remote.name], arrays=[describe(array, generator)], axis=axis, cores=len(self._cores)
        )
        remote.operation = self._session.send([array], put=message)
        return Handle(remote)


@final
class _RemoteExecutable(Executable):
    def __init__(self, session: Session, program: Program, loop: Loop | None, target: WorkerTarget) -> None:
        self._session, self._name = session, session.new_name()
        self._state = jax.tree.structure(program.state)
        lowered = lower_call(program, loop, target)
        self._outputs, self._results = lowered.outputs, jax.tree.structure(lowered.results)
        specs = jax.tree.leaves((program.state, lowered.results))
        small = [index for index, spec in enumerate(specs) if spec.size * spec.dtype.itemsize <= _SIBLING_BYTES]
        self._is_small = [index in small[-_MAX_SIBLINGS:] for index in range(len(specs))]
        code = np.frombuffer(lowered.code, np.uint8)
        message = messages().Compile(
            program=self._name, manifest=lowered.manifest, code=describe(code), cores=len(target.cores)
        )
        session.send([code], compile=message).result()

    def __del__(self) -> None:
        self._session.unused("programs", self._name)

    @property
    def outputs(self) -> Tree:
        return self._outputs

    def step(self, state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        return self._call(state, batch)

    def steps(self, state: Tree, feed: Tree, start: int, count: int) -> StepResults:
        state, (last, every, bad_steps) = self._call(state, (feed, np.int32(start), np.int32(count)))
        return StepResults(state, last, every, count, bad_steps)

    def _call(self, state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        arrays = [RemoteArray(self._session) for _ in range(self._state.num_leaves + self._results.num_leaves)]
        states = jax.tree.leaves(state)
        message = messages().Run(
            program=self._name,
            state=map(_argument, states),
            batch=map(_argument, jax.tree.leaves(batch)),
            results=[array.name for array in arrays],
        )
        # No fetch may ask for the state between its removal from the siblings and this call.
        with self._session.order:
            for leaf in states:
                if isinstance(leaf, Handle):
                    array = value_of(leaf)
                    array.siblings.discard(array)  # The call consumes it.
            operation = self._session.send(is_call=True, run=message)
        for leaf in states:
            if isinstance(leaf, Handle):
                consume(leaf)
        siblings = weakref.WeakSet(array for array, is_small in zip(arrays, self._is_small, strict=True) if is_small)
        for array in arrays:
            array.operation, array.siblings = operation, siblings
        handles = list(map(Handle, arrays))
        count = self._state.num_leaves
        return self._state.unflatten(handles[:count]), self._results.unflatten(handles[count:])


def _argument(leaf: Any) -> Any:
    if isinstance(leaf, Handle):
        return messages().Argument(handle=value_of(leaf).name)
    if not _is_small(leaf):
        raise HandleError(f"expected a handle of this backend, not {type(leaf).__name__}: use backend.put")
    return messages().Argument(array=describe(*to_host(leaf)))


def _is_small(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray | np.generic) and leaf.nbytes <= INLINE_BYTES


def _operations(tree: Tree) -> set[RemoteOperation]:
    arrays = [value_of(leaf) for leaf in jax.tree.leaves(tree) if isinstance(leaf, Handle)]
    return {array.operation for array in arrays}


def _check_versions(session: Session) -> None:
    described = session.description
    written = jax.export.maximum_supported_calling_convention_version
    if not described.oldest_calling_convention <= written <= described.newest_calling_convention:
        raise WorkerError(
            f"the worker at {session.address.target} has JAX {described.jax}, which cannot read the programs of this "
            f"process's JAX {jax.__version__}. Install the same release on both: pip install jax=={described.jax}"
        )
