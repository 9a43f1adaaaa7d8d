"""The places where a TPU may be, each asked by a probe that answers with what it found, or why it found nothing.

Idea: whoever gets a virtual TPU where he expected a real one must be able to read why. So no probe fails silently: the
losers' reasons are kept, for the error and for `anytpu devices`.

Rule: a probe never raises and prints nothing. JAX starts only where a device file says that there is something to find.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

from anytpu import _env
from anytpu.errors import UnknownTPUError
from anytpu.system.cores import Address
from anytpu.system.machine import DEFAULT_SHAPE, devices_of
from anytpu.system.topologies import topology_of

WORKER_PORT = 8470
"""The port of a TPU worker whose address names none."""


@dataclasses.dataclass(frozen=True)
class Found:
    """Where a probe found a system.

    Attributes:
        address: what to open.
        source: where the probe looked: "TPU_NAME", "TPU", "GPU", "virtual".
    """

    address: Address
    source: str


@dataclasses.dataclass(frozen=True)
class Reason:
    """Why a probe found nothing.

    Attributes:
        source: where the probe looked: "TPU_NAME", "TPU", "GPU".
        why: what is missing, and what would help, in one or two sentences without the last full stop.
    """

    source: str
    why: str

    def __str__(self) -> str:
        return f"{self.source}: {self.why}"


Probe = Callable[[int | None], Found | Reason]
"""Takes the number of cores asked for, None for any."""


def probe_variable(name: str, value: str, cores: int | None) -> Found | Reason:
    """Look whether an environment variable names a system.

    Args:
        name: the variable.
        value: what it is set to: the name of a slice, "local", or the address of a worker.
        cores: the number of cores asked for, None for any.
    """
    if value.lower() == "local":
        answers = [probe_tpu(cores), probe_gpu(cores)]
        found = next((answer for answer in answers if isinstance(answer, Found)), None)
        reasons = "; ".join(answer.why for answer in answers if isinstance(answer, Reason))
        return Found(found.address, name) if found else Reason(name, f"{value!r}, but {reasons}")
    try:
        address = slice_address(value)
    except UnknownTPUError:
        return Reason(name, _why_not(value))
    if cores not in (None, address.cores):
        return Reason(name, f"{value!r} has {address.cores} cores, and {cores} were asked for")
    return Found(address, name)


def probe_tpu(cores: int | None) -> Found | Reason:
    """Look for TPU chips in this machine."""
    if not _env.tpu_chips():
        return Reason("TPU", "this machine has no TPU chip")
    if not _env.has_libtpu():
        return Reason("TPU", 'there is a TPU chip, but libtpu is not installed: pip install "anytpu[tpu]"')
    return _ask_jax("tpu", cores)


def probe_gpu(cores: int | None) -> Found | Reason:
    """Look for a GPU in this machine: NVIDIA's, or one for which another plugin of JAX is installed."""
    if _env.other_plugins():
        return _ask_jax("gpu", cores)
    if not _env.has_nvidia():
        return Reason("GPU", "this machine has no NVIDIA GPU, or its driver is not loaded")
    if not _env.has_cuda_plugin():
        return Reason("GPU", 'there is an NVIDIA GPU, but JAX has no CUDA plugin: pip install "anytpu[gpu]"')
    return _ask_jax("gpu", cores)


def probe_virtual(cores: int | None) -> Found | Reason:
    """Make a virtual TPU out of this machine's CPU. This always works."""
    return Found(virtual_address(cores), "virtual")


def virtual_address(cores: int | None) -> Address:
    """Return the address of a virtual TPU: of the default shape, or of a number of cores in a row."""
    default = slice_address(DEFAULT_SHAPE)
    return default if cores in (None, default.cores) else Address("virtual", cores)


def slice_address(name: str) -> Address:
    """Return the address of a virtual TPU of the shape of a slice.

    Raises:
        UnknownTPUError: no such slice exists.
    """
    topology = topology_of(name)
    return Address("virtual", len(topology.cores), shape=topology.name)


def worker_target(text: str) -> str | None:
    """Return "host:port" when the text is the address of a worker, else None.

    Example:
        >>> worker_target("grpc://10.0.0.2"), worker_target("10.0.0.2:8470"), worker_target("my-tpu")
        ('10.0.0.2:8470', '10.0.0.2:8470', None)
    """
    host = r"(\[[0-9a-fA-F:.]+\]|[\w.-]+)"
    if found := re.fullmatch(rf"grpc://{host}(?::(\d{{1,5}}))?/?", text):
        return f"{found[1]}:{found[2] or WORKER_PORT}"
    return text if re.fullmatch(rf"{host}:\d{{1,5}}", text) else None


def _why_not(value: str) -> str:
    """Return why the value of an environment variable, which is no slice's name, does not count."""
    if worker_target(value):
        return f"{value!r} would be an anytpu worker; workers come with a later release of anytpu"
    return f'{value!r} is not the name of a slice such as "v2-8", nor "local", nor the address of an anytpu worker'


def _ask_jax(platform: str, cores: int | None) -> Found | Reason:
    """Ask JAX for the devices that the machine seems to have."""
    source, chosen = platform.upper(), _env.jax_platforms()
    if chosen and not {platform, "cuda" if platform == "gpu" else platform, *_env.other_plugins()} & set(chosen):
        return Reason(source, f"there is one, but JAX_PLATFORMS={','.join(chosen)!r} keeps JAX from it")
    try:
        devices = devices_of(platform)
    except RuntimeError as error:
        return Reason(source, f"there is one, but JAX cannot use it: {str(error).splitlines()[0]}")
    if cores is not None and cores > len(devices):
        return Reason(source, f"this machine has {len(devices)} of its cores, and {cores} were asked for")
    return Found(Address("local", cores or len(devices)), source)
