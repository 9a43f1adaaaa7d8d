"""`evidence`: does it really run on the TPU?

Idea: the first users looked at three things: what the cloud says of the TPU, how busy the host's own processor is, and
whether the time of a step is another one. All three are looked at here, in one call.

Rule: it says what was seen and nothing more; a virtual core is called virtual.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras

from anytpu.program.program import REPLICA_AXIS
from anytpu.strategy.replicas import Replica, ReplicaScope, inside
from anytpu.system.cores import Core
from anytpu.train.low_level.cores import cores_of, refuse_nested
from anytpu.train.low_level.inputs import checked_inputs
from anytpu.train.low_level.sharding import rewrite, shard
from anytpu.units import format_seconds

_MOST_CALLS = 20
_ENOUGH_S = 0.5


@dataclasses.dataclass(frozen=True, repr=False)
class Evidence:
    """What was seen while a function ran.

    Attributes:
        cores: the cores that ran it.
        devices: the devices of JAX that its results lie on; empty where they lie in another process.
        call_s: how long a call took, the median.
        host_cpu_s: how long the host's processors worked in a call, all together.
        plain_call_s: how long a call of the same function took on the host's processor, compiled by JAX, without a TPU.
    """

    cores: tuple[Core, ...]
    devices: tuple[str, ...]
    call_s: float
    host_cpu_s: float
    plain_call_s: float

    @property
    def is_on_accelerator(self) -> bool:
        """True when no core is simulated on the host's processor."""
        return not any(core.virtual for core in self.cores)

    @property
    def host_share(self) -> float:
        """How many of the host's processors were busy on average: about 0 when the work is done elsewhere."""
        return self.host_cpu_s / self.call_s

    @property
    def speedup(self) -> float:
        """How many times faster than on the plain host."""
        return self.plain_call_s / self.call_s

    def __repr__(self) -> str:
        count, kind = len(self.cores), self.cores[0].platform.upper()
        kind = kind if self.is_on_accelerator else "virtual"
        where = "" if self.is_on_accelerator else ", simulated on this machine's CPU"
        results = f"; the results lie on {', '.join(self.devices)}" if self.devices else ""
        return (
            f"Evidence: ran on {count} {kind} core{'s' * (count > 1)}{where}{results}\n"
            f"  host: {format_seconds(self.host_cpu_s)} of processor time a call, {self.host_share:.0%} of the call\n"
            f"  time: {format_seconds(self.call_s)} a call, {format_seconds(self.plain_call_s)} on the plain host CPU: "
            f"{self.speedup:.1f} x as fast"
        )


def evidence(computation: Callable, inputs: Sequence[Any] | None = None, num_shards: int | None = 1) -> Evidence:
    """Run a function on the TPU and on the plain host, and say what was seen of it.

    It is called up to 21 times on each: a function that changes Keras variables changes them as often on the TPU, and
    not at all on the plain host.

    Args:
        computation: takes the inputs, as for `rewrite`.
        inputs: a list of arrays, or of trees of them; None means none.
        num_shards: 1 runs it as `rewrite` does, on one core; another number, or None for all cores, as
            `batch_parallel` does, each core on its rows.

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
    """Return the median time of a call, the processor time of one, and what it returned. The first does not count."""
    result = jax.block_until_ready(call())
    walls: list[float] = []
    cpu_s = time.process_time()
    while len(walls) < _MOST_CALLS and sum(walls) < _ENOUGH_S:
        begun_s = time.perf_counter()
        result = jax.block_until_ready(call())
        walls.append(time.perf_counter() - begun_s)
    cpu_s = time.process_time() - cpu_s
    return sorted(walls)[len(walls) // 2], cpu_s / len(walls), result


def _on_the_host(computation: Callable) -> Callable:
    """Return the function as JAX alone compiles it: one replica of it, whose writes to Keras variables are dropped."""

    def alone(*values: Any) -> Any:
        with ReplicaScope([]), inside(Replica(1)):
            return jax.tree.map(_array, computation(*values))

    return jax.jit(lambda *values: jax.vmap(alone, None, axis_name=REPLICA_AXIS, axis_size=1)(*values))


def _array(leaf: Any) -> Any:
    return jnp.asarray(leaf.value if isinstance(leaf, keras.Variable) else leaf)
