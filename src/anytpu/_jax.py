"""All uses of private names of JAX in anytpu, except those of `chip`.

Idea: a new JAX may move any private name. So only this file uses them, `tests/test_jax_private.py` checks each name,
and pyproject.toml sets an upper bound on the JAX version.

Rule: this file contains no policy. JAX is imported inside the functions, so that importing anytpu stays light.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from anytpu._contexts import value_within

PARSE_FLAGS = "from jaxlib import _jax; _jax.CompileOptions()"
"""Program of a child process. The first use of XLA parses XLA_FLAGS; no device is started."""


def has_started() -> bool:
    """Return whether JAX has started its devices. This does not import JAX."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bridge is not None and bridge.backends_are_initialized()


has_lost_threads = False
"""Whether this process was forked after JAX had started its devices: the threads of JAX are missing here."""


def _note_fork() -> None:
    global has_lost_threads
    has_lost_threads = has_started()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def is_mapped(value: Any) -> bool:
    """Return whether a value traced under `vmap` may differ between the replicas, the lanes of the `vmap`.

    JAX has no public function for this (as of 0.12): a value independent of the mapped axis is not a batch tracer.
    """
    return type(value).__name__ == "BatchTracer" and getattr(value, "batch_dim", 0) is not None


def is_tracing() -> bool:
    """Return whether this code runs in a trace, such as that of `jax.eval_shape`, which computes no values.

    JAX has no public function for this (as of 0.12).
    """
    return not trace_state_clean()()


@functools.cache
def trace_state_clean() -> Callable[[], bool]:
    """Return the function of JAX that returns whether no trace runs, for callers that ask in each call."""
    from jax._src import core

    return core.trace_state_clean


def as_weak(value: Any) -> Any:
    """Return an array with a weak type, as a Python number has it in `jax.jit`: other operands decide the dtype.

    JAX has no public function for this (as of 0.12).
    """
    from jax._src.lax.lax import _convert_element_type

    return value if getattr(value, "weak_type", False) else _convert_element_type(value, weak_type=True)


def is_weak(value: Any) -> bool:
    """Return whether `jax.jit` gives an argument a weak type: a Python number, or an array or spec with such a type."""
    return type(value) in (int, float, complex) or bool(getattr(value, "weak_type", False))


def cpu_lowering(primitive: Any) -> Any:
    """Return the rule by which JAX lowers a primitive for the CPU."""
    from jax.interpreters import mlir

    rules = mlir._lowerings | mlir._platform_specific_lowerings["cpu"]
    return rules[primitive].rule


def kernel_context() -> Any:
    """Return an MLIR context that can parse the code of Pallas kernels.

    Raises:
        ImportError: this jaxlib has its dialects elsewhere.
        AttributeError: this jaxlib registers its dialects in another way.
    """
    from jax.extend.mlir import ir
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mosaic.python import tpu

    context, registry = ir.Context(), ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    tpu.register_dialect(context)
    context.allow_unregistered_dialects = True
    return context


def text_with_constants(compiled: Any) -> str:
    """Return the HLO text of a compiled program with the values of its constants; `as_text` leaves out the larger ones.

    Raises:
        ImportError: this jaxlib has its options elsewhere.
        AttributeError: this jaxlib prints in another way.
    """
    from jaxlib import _hlo  # pyright: ignore[reportAttributeAccessIssue]

    options = _hlo.HloPrintOptions()
    options.print_large_constants = True
    return compiled.runtime_executable().hlo_modules()[0].to_string(options)


def kernel_has_race() -> bool:
    """Return whether JAX's TPU interpret mode found a race in the last kernel; its records are public nowhere."""
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call

    races = interpret_pallas_call.races
    return races is not None and races.races_found


@contextlib.contextmanager
def without_callback_errors() -> Iterator[None]:
    """Let JAX not print the traceback of an error in a callback; it is raised as well."""
    logger = logging.getLogger("jax._src.callback")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def without_references(closed: Any) -> Any:
    """Return a closed jaxpr without JAX references: each read and write of one becomes a value passed on."""
    from jax._src.state import discharge

    return discharge.discharge_state(closed)


def key_implementation(key: Any) -> Any:
    """Return the random number algorithm of typed keys; `jax.random.key_impl` refuses a spec of them."""
    return key.dtype._impl


def coordination_service(address: str, processes: int, heartbeat_s: int) -> Any:
    """Start JAX's coordination service in this process, for clients that survive the death of others.

    Args:
        address: "host:port" to listen at. A port that is in use ends the process.
        processes: number of clients.
        heartbeat_s: time in seconds after which a silent client is taken for dead.
    """
    from jaxlib import _jax  # pyright: ignore[reportAttributeAccessIssue]

    return _jax.get_distributed_runtime_service(
        address, processes, heartbeat_timeout=heartbeat_s, cluster_register_timeout=heartbeat_s, recoverable=True
    )


def connect_client(address: str, processes: int, index: int, timeout_s: int, heartbeat_s: int) -> Any:
    """Make this process one of several of a job, before JAX starts its devices, and return its client.

    `jax.distributed.initialize` does the same, and starts the coordination service in process 0.

    Args:
        address: "host:port" of the coordination service.
        processes: number of processes.
        index: index of this one.
        timeout_s: time limit in seconds of the connection.
        heartbeat_s: as in `coordination_service`.
    """
    import jax
    from jax._src import distributed
    from jaxlib import _jax  # pyright: ignore[reportAttributeAccessIssue]

    jax.config.update("jax_enable_recoverability", True)
    # Otherwise JAX takes SIGTERM.
    jax.config.update("jax_enable_preemption_service", False)
    state = distributed.global_state
    client = _jax.get_distributed_runtime_client(
        address,
        index,
        init_timeout=timeout_s,
        heartbeat_timeout=heartbeat_s,
        shutdown_on_destruction=False,
        use_compression=True,
    )
    client.connect()
    state.coordinator_address, state.num_processes, state.process_id, state.client = address, processes, index, client
    return client


def forget_client() -> None:
    """Disconnect this process's client."""
    from jax._src import distributed

    client, distributed.global_state.client = distributed.global_state.client, None
    if client is not None:
        client.shutdown()


def listen_for_collectives(host: str) -> None:
    """Make the CPU's collectives listen at an address of this machine.

    Without it they listen at the address of the machine's name, which on Debian is 127.0.1.1.
    """
    from jax._src import distributed, xla_bridge
    from jaxlib import _jax  # pyright: ignore[reportAttributeAccessIssue]

    def cpu_client() -> Any:
        client = distributed.global_state.client
        return xla_bridge.make_cpu_client(_jax.make_gloo_tcp_collectives(distributed_client=client, hostname=host))

    xla_bridge.register_backend_factory("cpu", cpu_client, priority=0, fail_quietly=False)


def cluster(name: str, port: str | None, timeout_s: int) -> tuple[str, int, int, int | None] | None:
    """Return the address, process count, process index and index on its machine, as JAX finds them in a cluster.

    Args:
        name: JAX's name of the cluster: "slurm", "ompi", "gcetpu", "gketpu".
        port: port of the coordinator; None is the cluster's default.
        timeout_s: time limit in seconds for the name of the coordinator to be known.

    Returns:
        None if JAX does not find this cluster, or needs mpi4py for Open MPI 5 (from JAX 0.12 on), which is missing.
    """
    from jax._src import clusters

    environment = next((kind for kind in clusters.ClusterEnv._cluster_types if kind.name == name), None)
    if environment is None or not environment.is_env_present():
        return None
    try:
        address = environment.get_coordinator_address(timeout_secs=timeout_s, override_coordinator_port=port)
    except RuntimeError as error:
        if "mpi4py" not in str(error):
            raise
        return None
    return (
        address,
        environment.get_process_count(),
        environment.get_process_id(),
        environment.get_local_process_id(),
    )


@contextlib.contextmanager
def numbers_summed(axis: str, total: Callable[[Any, bool], Any]) -> Iterator[None]:
    """In a block, replace the sum over an axis of values that are not traced: JAX multiplies them by the axis size.

    JAX has no public hook for this (as of 0.12). Other threads keep JAX's own sum.

    Args:
        axis: name of the axis.
        total: takes a number or an array, and whether it is summed over the whole axis and no other. Returns the sum,
            or None for JAX's own product.
    """
    from jax._src.lax import parallel

    _wrap_once(parallel, "_psum", _sum_with_hook)
    with value_within(_NUMBER_SUM, (axis, total)):
        yield


@contextlib.contextmanager
def extremes_of_nothing() -> Iterator[None]:
    """In a block, give `jnp.max` and `jnp.min` of an array without elements -inf and inf, as TensorFlow does.

    JAX raises an error, and has no public setting for this (as of 0.12).
    """
    from jax._src.numpy import reductions

    _wrap_once(reductions, "_reduction", _reduction_with_identity)
    with value_within(_HAS_EXTREMES, True):
        yield


_NUMBER_SUM: contextvars.ContextVar[tuple[str, Callable[[Any, bool], Any]] | None] = contextvars.ContextVar(
    "sum of a number", default=None
)
_HAS_EXTREMES: contextvars.ContextVar[bool] = contextvars.ContextVar("extremes of nothing", default=False)


def _wrap_once(module: Any, name: str, make: Callable[[Callable], Callable]) -> None:
    if not hasattr(getattr(module, name), "__wrapped__"):
        setattr(module, name, make(getattr(module, name)))


def _reduction_with_identity(original: Callable) -> Callable:
    @functools.wraps(original)
    def reduction(a: Any, name: str, *args: Any, **options: Any) -> Any:
        if _HAS_EXTREMES.get() and name in ("max", "min") and getattr(a, "size", None) == 0:
            options["has_identity"] = True
        return original(a, name, *args, **options)

    return reduction


def _sum_with_hook(original: Callable) -> Callable:
    @functools.wraps(original)
    def psum(x: Any, axis_name: Any, **options: Any) -> Any:
        import jax
        from jax.core import Tracer

        axis, total = _NUMBER_SUM.get() or (None, None)
        leaves, tree = jax.tree.flatten(x)
        is_traced = any(isinstance(leaf, Tracer) for leaf in leaves)
        names = axis_name if isinstance(axis_name, tuple | list) else (axis_name,)
        if total is None or is_traced or axis not in names:
            return original(x, axis_name, **options)
        is_whole = len(names) == 1 and not options.get("axis_index_groups")
        sums = [total(leaf, is_whole) for leaf in leaves]
        pairs = zip(leaves, sums, strict=True)
        return tree.unflatten([original(leaf, axis_name, **options) if s is None else s for leaf, s in pairs])

    return psum
