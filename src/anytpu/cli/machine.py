"""`Machine`: facts about the computer and its packages, gathered without JAX or Keras, and checks of them.

Idea: inspection and judgement are separate. A `Machine` has the observed facts; the checks of `anytpu doctor` only
read it, so a test can judge a machine that does not exist.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from anytpu import _env, units
from anytpu.files.json_text import read_json
from anytpu.files.memory import available_memory_bytes
from anytpu.launch.ports import is_taken
from anytpu.report.checks import SystemCheck
from anytpu.system.probes import Reason

PACKAGES = ("anytpu", "jax", "jaxlib", "keras", "numpy", "libtpu", "tensorflow", "torch")
"""The packages whose versions a bug report needs."""
WORKER_PORTS = range(8470, 8477)
"""The ports that TPU workers use."""
MIN_DISK_BYTES = units.GIB
MIN_MEMORY_BYTES = units.GIB

EXTRAS = {
    "gpu": (("jax_cuda13_plugin", "jax_cuda12_plugin"), "NVIDIA GPUs"),
    "tpu": (("libtpu",), "a TPU of this machine"),
    "plan": (("libtpu",), "planning without a TPU"),
    "fast": (("anytpu_kernels",), "convolutions by oneDNN on virtual cores"),
    "tf": (("tensorflow",), "data from tf.data"),
    "gs": (("gcsfs",), "records and checkpoints in gs:// buckets"),
    "s3": (("s3fs",), "records and checkpoints in s3:// buckets"),
    "https": (("aiohttp",), "records at https:// addresses"),
    "onnx": (("onnx",), "networks of the chip as ONNX models"),
    "flax": (("flax",), "steps of Flax NNX"),
    "equinox": (("equinox",), "steps of Equinox"),
    "torch": (("torch", "torchax"), "planning PyTorch modules"),
    "hub": (("keras_hub",), "planning language models of KerasHub"),
    "tables": (("keras_rs",), "embedding tables of keras-rs"),
    "worker": (("grpc", "cryptography", "prometheus_client"), "workers on other machines"),
    "tensorboard": (("tensorboard",), "event files of TensorBoard"),
    "dev": (("pytest", "ruff", "pyright"), "working on anytpu itself"),
}
"""Extra -> its modules, of which one is enough ("dev": all), and its purpose."""


@dataclasses.dataclass(frozen=True)
class Machine:
    """Facts about a computer, before any device is started.

    Attributes:
        system: operating system, kernel release and architecture.
        cpu: the processor's name and the number of cores that this process may use.
        memory_bytes: bytes of memory available to programs, or None if the system does not report them.
        disk_bytes: free bytes of the disk under `folder`.
        folder: the current folder.
        ports_taken: the ports of `WORKER_PORTS` that are in use.
        versions: package -> version, of Python and the installed packages.
        settings: relevant environment variables that are set.
        tpu_chips: number of TPU chips on the PCI bus.
        has_nvidia: whether there is an NVIDIA GPU with its driver.
    """

    system: str
    cpu: str
    memory_bytes: int | None
    disk_bytes: int
    folder: Path
    ports_taken: tuple[int, ...]
    versions: dict[str, str]
    settings: dict[str, str]
    tpu_chips: int
    has_nvidia: bool


def look_at_machine() -> Machine:
    """Return the record of this machine."""
    folder = Path.cwd()
    return Machine(
        system=f"{_system_name()}, {platform.release()}, {platform.machine()}",
        cpu=_cpu(),
        memory_bytes=available_memory_bytes(),
        disk_bytes=shutil.disk_usage(folder).free,
        folder=folder,
        ports_taken=tuple(port for port in WORKER_PORTS if is_taken(port)),
        versions={"python": platform.python_version(), **versions(PACKAGES)},
        settings=_env.settings(),
        tpu_chips=_env.tpu_chips(),
        has_nvidia=_env.has_nvidia(),
    )


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the version of each package that is installed."""
    installed = {}
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[name] = importlib.metadata.version(name)
    return installed


def memory_text(machine: Machine) -> str:
    """Return the free memory as text with a unit."""
    return "unknown" if machine.memory_bytes is None else f"{units.format_bytes(machine.memory_bytes)} free"


def _system_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


def _cpu() -> str:
    names = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    usable = len(os.sched_getaffinity(0)) if platform.system() == "Linux" else os.cpu_count() or 1
    return f"{names[0] if names else platform.machine()}, {usable} cores usable"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def check_machine(machine: Machine, keras_json: Path | None = None) -> Iterator[SystemCheck]:
    """Judge a machine's record, before any device is started.

    Args:
        machine: the machine's record.
        keras_json: path of Keras's settings; None is `~/.keras/keras.json`.
    """
    yield SystemCheck("ok", "system", f"{machine.system}; {machine.cpu}")
    yield check_versions(machine.versions, importlib.metadata.requires("anytpu") or [])
    yield check_memory(machine)
    yield check_disk(machine)
    yield check_ports(machine.ports_taken)
    yield check_keras_backend(machine.settings, keras_json or Path("~/.keras/keras.json").expanduser())
    yield check_libtpu(machine)
    yield check_threads(machine.settings)


def check_versions(installed: Mapping[str, str], required: Sequence[str]) -> SystemCheck:
    """Judge the versions of the packages that anytpu depends on.

    Args:
        installed: package -> version.
        required: anytpu's requirements in the format of its metadata: "jax<0.12,>=0.10".
    """
    from packaging.requirements import Requirement

    needs = [need for need in map(Requirement, required) if need.marker is None or need.marker.evaluate({"extra": ""})]
    wrong = [need for need in needs if need.name in installed and not need.specifier.contains(installed[need.name])]
    if wrong:
        text = ", ".join(f"{n.name} {installed[n.name]} is installed, {n.specifier} is needed" for n in wrong)
        command = "pip install " + " ".join(f"'{need.name}{need.specifier}'" for need in wrong)
        return SystemCheck("failed", "versions", text, command)
    shown = ("anytpu", "python", "jax", "keras", "numpy")
    return SystemCheck("ok", "versions", ", ".join(f"{name} {installed[name]}" for name in shown if name in installed))


def check_memory(machine: Machine) -> SystemCheck:
    """Judge the free memory."""
    if machine.memory_bytes is None:
        return SystemCheck("ok", "memory", "this system does not report its free memory")
    free = f"{units.format_bytes(machine.memory_bytes)} free"
    if machine.memory_bytes < MIN_MEMORY_BYTES:
        return SystemCheck("warning", "memory", f"{free}; training may need more", "free -h")
    return SystemCheck("ok", "memory", free)


def check_disk(machine: Machine) -> SystemCheck:
    """Judge the free space of the current folder's disk: weights are saved there."""
    free = f"{units.format_bytes(machine.disk_bytes)} free in {machine.folder}"
    if machine.disk_bytes < MIN_DISK_BYTES:
        return SystemCheck(
            "warning", "disk", f"{free}; weights and checkpoints may not fit", f"df -h '{machine.folder}'"
        )
    return SystemCheck("ok", "disk", free)


def check_ports(taken: Sequence[int]) -> SystemCheck:
    """Judge the ports that workers listen on."""
    first, last = WORKER_PORTS[0], WORKER_PORTS[-1]
    if not taken:
        return SystemCheck("ok", "ports", f"{first} to {last} are free for TPU workers")
    listed = ", ".join(str(port) for port in taken)
    text = f"{listed}: another program uses these, so a TPU worker cannot; training here needs no worker"
    return SystemCheck("warning", "ports", text, f"ss -ltnp 'sport >= {first} and sport <= {last}'")


def check_keras_backend(settings: Mapping[str, str], keras_json: Path) -> SystemCheck:
    """Judge Keras's choice of a backend: anytpu needs JAX."""
    chosen = settings.get("KERAS_BACKEND", "jax")
    if chosen != "jax":
        text = f"KERAS_BACKEND={chosen} makes Keras use {chosen}; anytpu needs jax"
        return SystemCheck("failed", "Keras backend", text, "export KERAS_BACKEND=jax")
    saved = _saved_backend(keras_json)
    if saved not in (None, "jax"):
        # Not a warning: Keras creates this file itself with "tensorflow" in it.
        text = f"jax, if anytpu is imported before keras; keras alone takes {saved!r} from {keras_json}"
        return SystemCheck("ok", "Keras backend", text)
    return SystemCheck("ok", "Keras backend", "jax")


def check_libtpu(machine: Machine) -> SystemCheck:
    """Judge libtpu against the chips."""
    version = machine.versions.get("libtpu")
    if machine.tpu_chips and version is None:
        text = f"this machine has {machine.tpu_chips} TPU chips, but their driver libtpu is not installed"
        return SystemCheck("failed", "libtpu", text, "pip install 'anytpu[tpu]'")
    if version is None:
        return SystemCheck("ok", "libtpu", "not installed, and this machine has no TPU chip that needs it")
    use = "drives the TPU chips of this machine" if machine.tpu_chips else "for planning only: no TPU chip here"
    return SystemCheck("ok", "libtpu", f"{version}, {use}")


def check_threads(settings: Mapping[str, str]) -> SystemCheck:
    """Judge the number of XLA's threads if XLA_FLAGS requests host devices; too few make all-reduces hang and abort."""
    counts = re.findall(r"--xla_force_host_platform_device_count=(\d+)", settings.get("XLA_FLAGS", ""))
    if not counts:
        return SystemCheck("ok", "PJRT_NPROC", "not needed: XLA_FLAGS does not request host devices")
    needed, value = 2 * int(counts[-1]), settings.get("PJRT_NPROC", "")
    if value.isdecimal() and int(value) >= needed:
        return SystemCheck(
            "ok", "PJRT_NPROC", f"{value}, enough for the {counts[-1]} host devices that XLA_FLAGS requests"
        )
    text = f"{value or 'not set'}, and XLA_FLAGS requests {counts[-1]} host devices: all-reduces over them can hang"
    return SystemCheck("warning", "PJRT_NPROC", text, f"export PJRT_NPROC={max(needed, 16)}")


def check_reasons(lost: Sequence[Reason], machine: Machine) -> Iterator[SystemCheck]:
    """Judge the reasons against the systems tried first; unused hardware and an unused setting are warnings."""
    is_present = {"TPU": bool(machine.tpu_chips), "GPU": machine.has_nvidia}
    for reason in lost:
        if reason.source not in is_present:
            yield SystemCheck("warning", "looked for", str(reason), f"unset {reason.source}")
        else:
            yield SystemCheck("warning" if is_present[reason.source] else "ok", "looked for", str(reason))


def check_extras() -> Iterator[SystemCheck]:
    """Report each extra, installed or not, and its purpose. Training needs none of them."""
    for name, (modules, purpose) in EXTRAS.items():
        installed = [importlib.util.find_spec(module) is not None for module in modules]
        if all(installed) if name == "dev" else any(installed):
            yield SystemCheck("ok", f"extra {name}", f"installed, for {purpose}")
        else:
            yield SystemCheck("optional", f"extra {name}", f"for {purpose}: pip install 'anytpu[{name}]'")


def guarded(name: str, checks: Callable[[], Iterable[SystemCheck]]) -> Iterator[SystemCheck]:
    """Yield checks, and a failed check with this name in place of an exception."""
    try:
        yield from checks()
    except Exception as error:
        yield SystemCheck("failed", name, in_one_line(error), "anytpu env")


def in_one_line(error: Exception) -> str:
    """Return an error's text as one line."""
    # Indented lines of an error are list items; separate them by semicolons.
    items = re.sub(r"\.?\n +", "; ", str(error))
    return " ".join(items.split()).rstrip(".") or type(error).__name__


def _saved_backend(keras_json: Path) -> str | None:
    try:
        return read_json(keras_json.read_bytes()).get("backend")
    except (OSError, ValueError, AttributeError):
        return None
