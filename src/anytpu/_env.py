"""The environment and the machine, as they are before anything is started.

Idea: which backend Keras uses and which devices JAX starts is settled before either is imported, by environment
variables and by what hangs on the machine. Both are looked at here, without importing either.

Rule: no other file reads or writes an environment variable. A value that cannot be used is refused with the list of
those that can. What a user set himself stays as he set it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from anytpu.errors import SettingError

TPU_VARIABLES = ("TPU_NAME", "COLAB_TPU_ADDR", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS")
"""The variables that may name a TPU, in the order in which they are looked at."""

KERAS_BACKENDS = ("jax", "tensorflow", "torch", "openvino", "numpy")
"""The backends that KERAS_BACKEND may name."""

_SHOWN = (
    *TPU_VARIABLES,
    "KERAS_BACKEND",
    "JAX_PLATFORMS",
    "JAX_ENABLE_X64",
    "JAX_COMPILATION_CACHE_DIR",
    "XLA_FLAGS",
    "PJRT_NPROC",
    "CUDA_VISIBLE_DEVICES",
    "TPU_VISIBLE_CHIPS",
    "TPU_LIBRARY_PATH",
    "LD_LIBRARY_PATH",
    "ANYTPU_RECORD_RUNS",
    "ANYTPU_CACHE_DIR",
    "ANYTPU_KERNELS",
)
# Any of these says that the user chose JAX's devices himself.
_CHOOSES_DEVICES = ("JAX_PLATFORMS", "JAX_FORCE_TPU_INIT", "TPU_LIBRARY_PATH", "PJRT_NAMES_AND_LIBRARY_PATHS")

# What would give the compiler's process another JAX, a TPU to look for, or warnings that stop it.
_NOT_FOR_THE_COMPILER = ("JAX_", "XLA_FLAGS", "TPU_", "PYTHONWARNINGS", "PYTHONDEVMODE", "CLOUD_TPU_")
_NOT_FOR_A_TRIAL = ("JAX_", "PYTHONWARNINGS", "PYTHONDEVMODE")
_TELLS_THE_COMPILER = ("LIBTPU_", "XLA_", "MEGASCALE_")
# What the compiler reads once, as it starts.
_OF_THE_COMPILER = (*_TELLS_THE_COMPILER, "PYTHONPATH", "LD_LIBRARY_PATH")
# Without these libtpu asks a metadata server that is not there, and complains.
_FOR_THE_COMPILER = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v3-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    # Several compilers run at once; none of them touches a TPU, which is what libtpu's lock file is for.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    # Else libtpu writes a log below /tmp, which grows.
    "TPU_LOG_DIR": "disabled",
}

_GOOGLE_PCI_VENDOR = "0x1ae0"
# Google's network card and disk have its vendor number too. From jax/_src/hardware_utils.py of jax 0.12.0.
_TPU_PCI_DEVICES = {"0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076", "0x007c", "0x0083"}
_GOOGLE_OTHER_PCI_DEVICES = {"0x0042", "0x001f"}
_NVIDIA_FILES = ("dev/nvidiactl", "dev/nvidia0", "proc/driver/nvidia", "dev/dxg")

# Of the two versions of control groups: limit, use, and what of the use can be given back at once.
_GROUP_FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}

_TRUTH_VALUES = ("y", "yes", "t", "true", "on", "1", "n", "no", "f", "false", "off", "0")
# The first use of XLA reads its flags; no device is started.
_READS_FLAGS = "from jaxlib import _jax; _jax.CompileOptions()"
_TRIED_FLAGS: set[str] = set()

_NO_HOME = Path(os.devnull) / "no-home"

ROOT = Path("/")

FLAGS_TIMEOUT_S = 60.0
"""Seconds after which the child that tries XLA_FLAGS is ended; it takes less than one."""


def tpu_settings() -> tuple[tuple[str, str], ...]:
    """Return (variable, value) of each environment variable that is set and may name a TPU, in look-up order."""
    values = ((name, os.environ.get(name, "").strip()) for name in TPU_VARIABLES)
    return tuple((name, value) for name, value in values if value)


def settings() -> dict[str, str]:
    """Return the environment variables that matter to anytpu, JAX and Keras, those that are set, for a bug report."""
    return {name: os.environ[name] for name in _SHOWN if name in os.environ}


def set_keras_backend() -> str:
    """Make JAX Keras's backend, unless KERAS_BACKEND says otherwise, and return the backend's name.

    Raises:
        SettingError: KERAS_BACKEND names no backend of Keras.
    """
    name = os.environ.get("KERAS_BACKEND", "").strip()
    if not name:
        os.environ["KERAS_BACKEND"] = name = "jax"
    if name not in KERAS_BACKENDS:
        known = ", ".join(KERAS_BACKENDS)
        raise SettingError(f"KERAS_BACKEND must be one of {known}, not {name!r}; anytpu needs jax: KERAS_BACKEND=jax")
    return name


def keras_backend_in_use() -> str | None:
    """Return the backend of the Keras that this process has imported, or None while it has imported none."""
    config = sys.modules.get("keras.config")
    if config is not None:
        return config.backend()
    return "tensorflow" if "keras" in sys.modules and "tensorflow" in sys.modules else None  # Keras 2


def require_keras_on_jax() -> None:
    """Refuse a Keras that runs, or will run, on another backend than JAX.

    Raises:
        SettingError: it does; the message says how to start again.
    """
    again = "Start Python again (in a notebook: restart the kernel)"
    used = keras_backend_in_use()
    if used not in (None, "jax"):
        raise SettingError(
            f"Keras runs on {used!r} in this process, and anytpu needs it on JAX. {again} and import anytpu before "
            "keras, with KERAS_BACKEND unset or KERAS_BACKEND=jax"
        )
    if used is None and (name := set_keras_backend()) != "jax":
        raise SettingError(
            f"KERAS_BACKEND is {name!r}, and anytpu needs Keras on JAX. {again} with KERAS_BACKEND unset or "
            "KERAS_BACKEND=jax"
        )


def keras_datasets() -> Path:
    """Return the folder in which Keras keeps the data sets that it has downloaded: below KERAS_HOME or ~/.keras."""
    home = os.environ.get("KERAS_HOME")
    return (Path(home) if home else _expanded("~/.keras")) / "datasets"


def compiler_environment() -> dict[str, str]:
    """Return the environment of the process in which the TPU compiler runs.

    It is this one's, told to look for no TPU, without what is meant for the JAX and the Python of this process. What
    LIBTPU_INIT_ARGS says is meant for the compiler, and stays.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_FOR_THE_COMPILER)}
    return kept | _FOR_THE_COMPILER


def compiler_surroundings() -> dict[str, str]:
    """Return what the answers of the TPU compiler depend on from its start on: its libtpu, and part of its environment.

    A compiler that was started in other surroundings would answer another question than the one asked.
    """
    started = {name: value for name, value in compiler_environment().items() if name.startswith(_OF_THE_COMPILER)}
    return started | {"libtpu": str(libtpu_version())}


def compiler_settings() -> dict[str, str]:
    """Return the variables that tell the TPU compiler what to do: LIBTPU_INIT_ARGS and its like, no paths."""
    settings = {name: value for name, value in compiler_environment().items() if name.startswith(_TELLS_THE_COMPILER)}
    return dict(sorted(settings.items()))


def package_folder() -> Path:
    """Return the folder that this anytpu is imported from: of the sources, or site-packages."""
    return Path(__file__).parent.parent


def libtpu_version() -> str | None:
    """Return the version of libtpu, or None where none is installed."""
    if importlib.util.find_spec("libtpu") is None:
        return None
    for name in ("libtpu", "libtpu-nightly"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return "unknown"


def cache_folder() -> Path:
    """Return the folder of what can be computed again: ANYTPU_CACHE_DIR, or below XDG_CACHE_HOME or ~/.cache."""
    own, everyones = (os.environ.get(name, "").strip() for name in ("ANYTPU_CACHE_DIR", "XDG_CACHE_HOME"))
    if own:
        return _expanded(own)
    return (Path(everyones) if everyones else _expanded("~/.cache")) / "anytpu"


def plan_cache() -> Path:
    """Return the folder of what the TPU compiler answered: "plan" in the cache folder."""
    return cache_folder() / "plan"


def xla_flags() -> str:
    """Return what XLA_FLAGS tells XLA, or ""."""
    return os.environ.get("XLA_FLAGS", "").strip()


def trial_environment() -> dict[str, str]:
    """Return the environment of a process that tries what XLA's CPU compiler can do.

    It has the XLA_FLAGS of this process, and none of its settings for JAX: no compiled program is read from a cache.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_FOR_A_TRIAL)}
    return {**kept, "JAX_PLATFORMS": "cpu", "PYTHONPATH": _with_our_sources()}


def forced_devices(count: int) -> dict[str, str]:
    """Return the environment of a process whose JAX has so many devices, forced out of the CPU, and nothing else."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}".strip()
    return {
        **{name: value for name, value in os.environ.items() if name not in _CHOOSES_DEVICES},
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": flags,
        "PJRT_NPROC": str(max(2 * count, 16)),
        "PYTHONPATH": _with_our_sources(),
    }


def jax_platforms() -> tuple[str, ...]:
    """Return the platforms that JAX was told to use, in order, or () when it is free to choose."""
    jax = sys.modules.get("jax")
    chosen = (jax.config.jax_platforms if jax else None) or os.environ.get("JAX_PLATFORMS", "")
    return tuple(name.strip() for name in chosen.split(",") if name.strip())


def prepare_jax() -> None:
    """Settle, before JAX starts, what it must know then. Call it before the first use of a device; more calls are free.

    On a machine without an accelerator JAX is put on the CPU: else an installed libtpu or CUDA plugin looks for its
    device and complains on stderr. Where there is one, or the user chose devices himself, or another vendor's plugin
    is installed, JAX decides alone.
    """
    _reserve_threads()
    if _may_choose_platform() and not tpu_chips() and not _has_usable_gpu():
        if "jax" in sys.modules:
            sys.modules["jax"].config.update("jax_platforms", "cpu")
        else:
            os.environ["JAX_PLATFORMS"] = "cpu"


def check_jax_settings() -> None:
    """Check the environment variables that end the process, or the import of JAX, when they are wrong.

    XLA ends a process whose XLA_FLAGS it cannot read, without an exception. So a child tries them first, once for each
    jaxlib version and value. Values that XLA accepts are recorded in the cache folder.

    Raises:
        SettingError: JAX_ENABLE_X64 is no truth value, or XLA cannot read XLA_FLAGS.
    """
    wide = os.environ.get("JAX_ENABLE_X64", "")
    if wide and wide.lower() not in _TRUTH_VALUES:
        raise SettingError(f"JAX_ENABLE_X64 must be 1 or 0, not {wide!r}: unset JAX_ENABLE_X64")
    flags = os.environ.get("XLA_FLAGS", "").strip()
    if not flags or flags in _TRIED_FLAGS:
        return
    key = hashlib.sha256(f"{importlib.metadata.version('jaxlib')} {flags}".encode()).hexdigest()
    note = plan_cache().parent / "xla_flags" / key
    # A flag without dashes in front is a file, which may change.
    if not (note.exists() and flags.startswith("--")) and _reads_xla_flags(flags):
        with contextlib.suppress(OSError):
            note.parent.mkdir(parents=True, exist_ok=True)
            note.touch()
    _TRIED_FLAGS.add(flags)


def _reads_xla_flags(flags: str) -> bool:
    """Tell whether XLA is known to read its flags; False where something else is wrong, of which JAX itself tells."""
    command = [sys.executable, "-P", "-c", _READS_FLAGS]  # -P: a jaxlib.py of the working folder is not imported.
    given = {"env": trial_environment(), "stdin": subprocess.DEVNULL, "timeout": FLAGS_TIMEOUT_S}
    try:
        tried = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, **given)
    except (OSError, ValueError, subprocess.SubprocessError):
        return False
    said = re.search(r"^F\d{4} .*?parse_flags_from_env\.cc:\d+\] (.*)", tried.stderr, re.MULTILINE)
    if not tried.returncode or not said:
        return not tried.returncode
    raise SettingError(
        f"XLA cannot read XLA_FLAGS={flags!r} and would end this process: {said[1].strip().rstrip('.')}. Take that "
        "flag out, or: unset XLA_FLAGS"
    )


def tpu_chips(root: Path = ROOT) -> int:
    """Return the number of TPU chips of this machine, seen on its PCI bus; JAX is not asked.

    Args:
        root: where the machine's file system begins.
    """
    ids = [(_read(d / "vendor"), _read(d / "device")) for d in _children(root / "sys/bus/pci/devices")]
    google = [device for vendor, device in ids if vendor == _GOOGLE_PCI_VENDOR]
    known = sum(device in _TPU_PCI_DEVICES for device in google)
    if known or not _has_accelerator_files(root):
        return known
    # A chip newer than this file: Google's, neither its network card nor its disk, and with a device file.
    return sum(device not in _GOOGLE_OTHER_PCI_DEVICES for device in google)


def available_memory_bytes(root: Path = ROOT) -> int | None:
    """Return the memory that programs may still take, or None where the system does not say.

    Of a container that has a limit of its own it is what is left of that.

    Args:
        root: where the machine's file system begins.
    """
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", _read(root / "proc/meminfo"), re.MULTILINE)
    return max(0, min([int(found[1]) * 1024, *_left_in_groups(root)])) if found else None


def has_nvidia(root: Path = ROOT) -> bool:
    """Tell whether this machine has an NVIDIA GPU whose driver is loaded."""
    return any((root / name).exists() for name in _NVIDIA_FILES)


def has_cuda_plugin() -> bool:
    """Tell whether a CUDA plugin of JAX is installed."""
    return any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13, 14))


def has_libtpu() -> bool:
    """Tell whether libtpu, with which JAX reaches a TPU, is installed, or TPU_LIBRARY_PATH says where it is."""
    return bool(os.environ.get("TPU_LIBRARY_PATH")) or importlib.util.find_spec("libtpu") is not None


def other_plugins() -> tuple[str, ...]:
    """Return the names of JAX's plugins that are neither CUDA's nor the TPU's."""
    names = {entry.name for entry in importlib.metadata.entry_points(group="jax_plugins")}
    return tuple(sorted(name for name in names if "cuda" not in name and "tpu" not in name))


def recorded_runs() -> str:
    """Return which runs store how long their steps took: "real" ones on a TPU or GPU, "all", or "none".

    Raises:
        SettingError: ANYTPU_RECORD_RUNS has another value than 0, 1 and all.
    """
    value = os.environ.get("ANYTPU_RECORD_RUNS", "").strip().lower()
    chosen = {"": "real", "1": "real", "0": "none", "all": "all"}.get(value)
    if chosen is None:
        raise SettingError(
            f"ANYTPU_RECORD_RUNS must be 1 (runs on a TPU or GPU store their step time, the default), 0 (none does) or "
            f"all (those on virtual cores too), not {value!r}"
        )
    return chosen


def kernels() -> str:
    """Return who computes convolutions on virtual cores: "onednn", where it is installed, or "xla".

    Raises:
        SettingError: ANYTPU_KERNELS has another value.
    """
    value = os.environ.get("ANYTPU_KERNELS", "").strip().lower() or "onednn"
    if value not in ("onednn", "xla"):
        raise SettingError(
            f"ANYTPU_KERNELS must be onednn (where anytpu-kernels is installed, the default) or xla, not {value!r}"
        )
    return value


def own_folder() -> Path:
    """Return the folder in which anytpu keeps what it learns from this user's runs: XDG_DATA_HOME or ~/.local/share."""
    home = os.environ.get("XDG_DATA_HOME", "").strip()
    return (Path(home) if home else _expanded("~/.local/share")) / "anytpu"


def _with_our_sources() -> str:
    """Return the PYTHONPATH of a process of this Python that is to import this anytpu."""
    source = package_folder()
    # What is installed is found anyway, and its neighbours are not to come before the standard library.
    own = [] if source.name in ("site-packages", "dist-packages") else [str(source)]
    return os.pathsep.join([*own, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])


def _expanded(path: str) -> Path:
    """Return a path with its "~" replaced; one in which nothing can be read or written where there is no home."""
    try:
        return Path(path).expanduser()
    except RuntimeError:  # Neither HOME nor an entry in the list of users, as in many containers.
        return _NO_HOME / path.removeprefix("~/")


def _has_usable_gpu() -> bool:
    return (has_nvidia() and has_cuda_plugin()) or bool(other_plugins())


def _chosen(name: str) -> bool:
    """Tell whether a variable that chooses JAX's devices is set, by somebody other than JAX.

    `import jax` sets TPU_LIBRARY_PATH where a libtpu is installed, and every process started from there has it too.
    """
    value = os.environ.get(name)
    if name != "TPU_LIBRARY_PATH" or not value:
        return bool(value)
    spec = importlib.util.find_spec("libtpu")
    return spec is None or not spec.origin or Path(value) != Path(spec.origin).parent / "libtpu.so"


def _may_choose_platform() -> bool:
    """Tell whether nobody has chosen JAX's devices yet, neither the user nor a JAX that runs."""
    if any(_chosen(name) for name in _CHOOSES_DEVICES) or jax_platforms():
        return False
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bridge is None or not bridge.backends_are_initialized()


def _reserve_threads() -> None:
    """Give XLA two threads for each host device that it is forced to have.

    With fewer, collectives over them deadlock and XLA aborts the process (openxla/xla#18608; still so in jax 0.10.2).
    """
    counts = re.findall(r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    if counts and "PJRT_NPROC" not in os.environ:
        os.environ["PJRT_NPROC"] = str(max(2 * int(counts[-1]), 16))


def _has_accelerator_files(root: Path) -> bool:
    numbered = [p for p in _children(root / "dev/vfio") if p.name.isdigit()]
    return bool(numbered) or any(p.name.startswith("accel") for p in _children(root / "dev"))


def _left_in_groups(root: Path) -> Iterator[int]:
    """Yield what is left to this process in each of its control groups that limits memory; files' pages count."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, kinds, path = line.split(":", 2)
        if kinds not in ("", "memory"):
            continue
        above = root / "sys/fs/cgroup" / kinds
        limit, used, cached = _GROUP_FILES[kinds]
        group = above / path.lstrip("/")
        for folder in (group, *(one for one in group.parents if one == above or above in one.parents)):
            most, now = _read(folder / limit), _read(folder / used)
            pages = re.search(rf"^{cached} (\d+)$", _read(folder / "memory.stat"), re.MULTILINE)
            if most.isdigit() and now.isdigit():
                yield max(int(most) - int(now) + (int(pages[1]) if pages else 0), 0)


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
