"""`evidence`: measure whether a function really runs on the TPU.

Idea: the first users checked three things: the cloud console's TPU usage, the load of the host's processor, and the
change of the step time. One call measures all three here.

Rule: the report contains measurements only; a virtual core is called virtual.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras

from anytpu._calls import explain_arguments
from anytpu.migrate.low_level.arguments import checked_inputs, cores_of, refuse_nested
from anytpu.migrate.low_level.sharding import rewrite, shard
from anytpu.program.program import REPLICA_AXIS
from anytpu.strategy.replicas import Replica, ReplicaScope, inside
from anytpu.system.cores import Core
from anytpu.units import format_seconds

_MAX_CALLS = 20
_MAX_TOTAL_S = 0.5


@dataclasses.dataclass(frozen=True, repr=False)
class Evidence:
    """Measurements of a function's calls.

    Attributes:
        cores: the cores that ran the function.
        devices: names of the JAX devices that hold its results; empty if another process holds them.
        call_s: median time of a call, in seconds.
        host_cpu_s: processor time of a call, summed over the host's processors, in seconds.
        plain_call_s: median time of a call on the host's processor, compiled by JAX without a TPU, in seconds.
    """

    cores: tuple[Core, ...]
    devices: tuple[str, ...]
    call_s: float
    host_cpu_s: float
    plain_call_s: float

    @property
    def is_on_accelerator(self) -> bool:
        """Whether no core is simulated on the host's processor."""
        return not any(core.virtual for core in self.cores)

    @property
    def host_share(self) -> float:
        """Average number of busy host processors: about 0 if the host does none of the work."""
        return self.host_cpu_s / self.call_s

    @property
    def speedup(self) -> float:
        """Ratio of the time on the plain host to the time on the cores."""
        return self.plain_call_s / self.call_s

    def __repr__(self) -> str:
        count, kind = len(self.cores), self.cores[0].platform.upper()
        kind = kind if self.is_on_accelerator else "virtual"
        simulated = "" if self.is_on_accelerator else ", simulated on this machine's CPU"
        results = f"; the results are on {', '.join(self.devices)}" if self.devices else ""
        return (
            f"Evidence: ran on {count} {kind} core{'s' * (count > 1)}{simulated}{results}\n"
            f"  host: {format_seconds(self.host_cpu_s)} of processor time a call, {self.host_share:.0%} of the call\n"
            f"  time: {format_seconds(self.call_s)} a call, {format_seconds(self.plain_call_s)} on the plain host CPU: "
            f"{self.speedup:.1f} x as fast"
        )


@explain_arguments
def evidence(computation: Callable, inputs: Sequence[Any] | None = None, num_shards: int | None = 1) -> Evidence:
    """Run a function on the TPU and on the plain host, and return the measurements.

    It is called up to 21 times on each. Each call on the TPU changes Keras variables that the function writes; calls on
    the plain host do not.

    Args:
        computation: takes the inputs, as for `rewrite`.
        inputs: a list of arrays, or of trees of arrays; None means no inputs.
        num_shards: 1 runs it on one core, as `rewrite` does. Another number, or None for all cores, runs each core on
            its rows, as `batch_parallel` does.

    Raises:
        SettingError, StrategyError, ReplicaError: as `shard` raises them.

    Example:
        >>> seen = evidence(lambda x: x @ x, [np.ones((64, 64), np.float32)])
        >>> len(seen.cores), seen.is_on_accelerator
        (1, False)
    """
    refuse_nested("evidence")
    listed = checked_inputs(inputs, "evidence")
    cores = cores_of(num_shards).backend.cores
    if num_shards == 1:
        call_s, host_cpu_s, results = _timed(lambda: rewrite(computation, listed))
    else:
        call_s, host_cpu_s, results = _timed(lambda: shard(computation, listed, num_shards))
    plain = _on_the_host(computation)
    host = jax.local_devices(backend="cpu")[0]
    arguments = jax.device_put(tuple(listed), host)
    with jax.default_device(host):
        plain_call_s, _, _ = _timed(lambda: plain(*arguments))
    arrays = [leaf for leaf in jax.tree.leaves(results) if isinstance(leaf, jax.Array)]
    devices = sorted({device for array in arrays for device in array.devices()}, key=lambda device: device.id)
    return Evidence(cores, tuple(map(str, devices)), call_s, host_cpu_s, plain_call_s)


def _timed(call: Callable[[], Any]) -> tuple[float, float, Any]:
    """Return the median time and the mean processor time of a call, and its result. The first call is a warm-up."""
    result = jax.block_until_ready(call())
    walls: list[float] = []
    cpu_s = time.process_time()
    while len(walls) < _MAX_CALLS and sum(walls) < _MAX_TOTAL_S:
        began_s = time.perf_counter()
        result = jax.block_until_ready(call())
        walls.append(time.perf_counter() - began_s)
    cpu_s = time.process_time() - cpu_s
    return sorted(walls)[len(walls) // 2], cpu_s / len(walls), result


def _on_the_host(computation: Callable) -> Callable:
    """Return the function compiled by JAX alone, for one replica; its writes to Keras variables are dropped."""

    def single_replica(*values: Any) -> Any:
        with ReplicaScope([]), inside(Replica(1)):
            return jax.tree.map(_array, computation(*values))

    return jax.jit(lambda *values: jax.vmap(single_replica, None, axis_name=REPLICA_AXIS, axis_size=1)(*values))


def _array(leaf: Any) -> Any:
    return jnp.asarray(leaf.value if isinstance(leaf, keras.Variable) else leaf)
