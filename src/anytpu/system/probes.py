"""Probes for TPU systems: each returns the address of the system that it found, or the reason why it found none.

Idea: a user who gets a virtual TPU instead of a real one must be able to read the reason. So no probe fails silently:
the reasons of failed probes are kept, for the error and for `anytpu devices`.

Rule: a probe never raises and prints nothing. JAX starts only if a device file shows that an accelerator exists.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from anytpu import _env
from anytpu.errors import SettingError, UnknownTPUError
from anytpu.system.cores import Address
from anytpu.system.machine import DEFAULT_SHAPE, devices_of, local_devices
from anytpu.system.topologies import topology_of
from anytpu.system.workers import WorkerAddress, parse_worker

GETTING_A_TPU = "To get a TPU: anytpu docs getting_a_tpu"
"""End of a message to a user who needs a TPU."""


@dataclasses.dataclass(frozen=True)
class Reason:
    """The reason why a probe found nothing.

    Attributes:
        source: the probed place: "TPU_NAME", "TPU", "GPU".
        why: the missing part and the remedy, one or two sentences without the last full stop.
        is_fault: True if the user expects a system here: an environment variable names it, or a device exists.
    """

    source: str
    why: str
    is_fault: bool = dataclasses.field(default=True, compare=False)

    def __str__(self) -> str:
        return f"{self.source}: {self.why}"


Probe = Callable[[int | None], Address | Reason]
"""A function of the requested number of cores, or None for any number."""


def probe_variable(name: str, value: str, cores: int | None) -> Address | Reason:
    """Probe the system that an environment variable names.

    Args:
        name: name of the variable.
        value: value of the variable: the name of a slice, "local", or the address of a worker.
        cores: the requested number of cores, None for any.
    """
    if value.lower() == "local":
        answers = [probe_tpu(cores), probe_gpu(cores)]
        first = next((answer for answer in answers if isinstance(answer, Address)), None)
        reasons = "; ".join(answer.why for answer in answers if isinstance(answer, Reason))
        return first or Reason(name, f"{value!r}, but {reasons}")
    try:
        if worker := parse_worker(value):
            return _named_worker(name, worker, cores)
        address = slice_address(value)
    except SettingError as error:
        return Reason(name, str(error))
    except UnknownTPUError:
        return Reason(name, _ignored_value_reason(value))
    if cores not in (None, address.cores):
        return Reason(name, f"{value!r} has {address.cores} cores, and {cores} were asked for")
    return address


def probe_tpu(cores: int | None) -> Address | Reason:
    """Probe for TPU chips in this machine."""
    if not _env.tpu_chips():
        return Reason("TPU", "this machine has no TPU chip", is_fault=False)
    if not _env.has_libtpu():
        return Reason("TPU", 'there is a TPU chip, but libtpu is not installed: pip install "anytpu[tpu]"')
    return _probe_jax("tpu", cores)


def probe_gpu(cores: int | None) -> Address | Reason:
    """Probe for a GPU in this machine: an NVIDIA GPU, or one with another installed JAX plugin."""
    if _env.other_plugins():
        return _probe_jax("gpu", cores)
    if not _env.has_nvidia():
        return Reason("GPU", "this machine has no NVIDIA GPU, or its driver is not loaded", is_fault=False)
    if not _env.has_cuda_plugin():
        return Reason("GPU", 'there is an NVIDIA GPU, but JAX has no CUDA plugin: pip install "anytpu[gpu]"')
    return _probe_jax("gpu", cores)


def probe_hosts(cores: int | None) -> Address | Reason:
    """Return the devices of all hosts of the job: their TPU cores, or else their GPUs, or else their CPU devices."""
    try:
        devices = local_devices()
    except RuntimeError as error:
        return Reason("hosts", f"JAX cannot use the devices of the hosts: {str(error).splitlines()[0]}")
    if cores not in (None, len(devices)):
        return Reason("hosts", f"the hosts have {len(devices)} cores, and a job uses all; {cores} were asked for")
    return Address("local", len(devices))


def virtual_address(cores: int | None) -> Address:
    """Return the address of a virtual TPU: the default slice, or a row of `cores` cores."""
    default = slice_address(DEFAULT_SHAPE)
    return default if cores in (None, default.cores) else Address("virtual", cores)


def slice_address(name: str) -> Address:
    """Return the address of a virtual TPU with the shape of a slice.

    Raises:
        UnknownTPUError: no such slice exists.
    """
    topology = topology_of(name)
    return Address("virtual", len(topology.cores), shape=topology.name)


def _named_worker(name: str, worker: WorkerAddress, cores: int | None) -> Address | Reason:
    """Return the worker that TPU_NAME names. Other variables name TensorFlow's servers."""
    if name == "TPU_NAME":
        return Address("grpc", cores, worker=worker)
    return Reason(name, f"{worker.target!r} would be a server of TensorFlow; TPU_NAME names an anytpu worker")


def _ignored_value_reason(value: str) -> str:
    """Return the reason for ignoring an environment variable whose value is not the name of a slice."""
    value = value.partition("?")[0]  # A token may follow, and belongs in no message.
    return f'{value!r} is not the name of a slice such as "v2-8", nor "local", nor the address of an anytpu worker'


def _probe_jax(platform: str, cores: int | None) -> Address | Reason:
    """Return JAX's devices of a platform, or the reason why JAX has none."""
    source, chosen = platform.upper(), _env.jax_platforms()
    if chosen and not {platform, "cuda" if platform == "gpu" else platform, *_env.other_plugins()} & set(chosen):
        return Reason(source, f"there is one, but JAX_PLATFORMS={','.join(chosen)!r} keeps JAX from it", is_fault=False)
    try:
        devices = devices_of(platform)
    except RuntimeError as error:
        return Reason(source, f"there is one, but JAX cannot use it: {str(error).splitlines()[0]}")
    if cores is not None and cores > len(devices):
        return Reason(source, f"this machine has {len(devices)} of its cores, and {cores} were asked for")
    return Address("local", cores or len(devices))
