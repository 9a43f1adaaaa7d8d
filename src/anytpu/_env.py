"""Environment variables and hardware detection, before JAX or Keras starts.

Idea: the backend of Keras and the devices of JAX are fixed before either is imported. They depend on environment
variables and on the machine's devices. This module reads both without importing JAX or Keras.

Rule: no other file reads or writes an environment variable. An invalid value is rejected with the list of valid ones. A
value that the user set is never changed.
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
from pathlib import Path

from anytpu import _jax
from anytpu._launched import LaunchedProcess, parse_cpu_devices, parse_process
from anytpu._pci import has_nvidia, tpu_chips
from anytpu.errors import SettingError

TPU_VARIABLES = ("TPU_NAME", "COLAB_TPU_ADDR", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS")
"""The variables that may name a TPU, in look-up order."""

KERAS_BACKENDS = ("jax", "tensorflow", "torch", "openvino", "numpy")
"""The backends that KERAS_BACKEND may name."""

_REPORTED_VARIABLES = (
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
    "ANYTPU_CACHE_DIR",
    "ANYTPU_KERNELS",
)
# Each of these means that the user chose JAX's devices.
_CHOOSES_DEVICES = ("JAX_PLATFORMS", "JAX_FORCE_TPU_INIT", "TPU_LIBRARY_PATH", "PJRT_NAMES_AND_LIBRARY_PATHS")

# Prefixes of variables that the compiler's process must not inherit. They select another JAX, make it search for a TPU,
# or turn warnings into errors.
_COMPILER_EXCLUDED = ("JAX_", "XLA_FLAGS", "TPU_", "PYTHONWARNINGS", "PYTHONDEVMODE", "CLOUD_TPU_")
# Settings that a worker's child inherits; everything else may be a secret.
_CHILD_VARIABLES = re.compile(
    r"HOME|LANG|LC_ALL|LD_LIBRARY_PATH|PATH|TMPDIR|USER|XDG_CACHE_HOME|ANYTPU_CACHE_DIR|ANYTPU_KERNELS|KERAS_BACKEND"
    r"|OMP_NUM_THREADS|(JAX|XLA|PJRT|TPU|LIBTPU|CUDA|NVIDIA|NCCL)_.*"
)
# Prefixes of the variables by which launchers and TPU machines describe a job of several processes.
_JOB_PREFIXES = ("SLURM_", "OMPI_", "TPU_", "MEGASCALE_", "JAX_COORDINATOR_PORT")
_TRIAL_EXCLUDED = ("JAX_", "PYTHONWARNINGS", "PYTHONDEVMODE")
# Prefixes of the compiler's own options.
_COMPILER_OPTIONS = ("LIBTPU_", "XLA_", "MEGASCALE_")
# Prefixes of variables that the compiler reads once, at its start.
_COMPILER_STARTUP = (*_COMPILER_OPTIONS, "PYTHONPATH", "LD_LIBRARY_PATH")
# Without these libtpu queries a metadata server that does not exist, and prints errors.
_COMPILER_DEFAULTS = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v3-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    # Several compilers run at once. None uses a TPU, so libtpu's lock file, which guards the device, is not needed.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    # Otherwise libtpu writes a growing log below /tmp.
    "TPU_LOG_DIR": "disabled",
}

_BOOLEANS = ("y", "yes", "t", "true", "on", "1", "n", "no", "f", "false", "off", "0")
_CHECKED_FLAGS: set[str] = set()

# First words of JAX's error; jax/_src/xla_bridge.py of jax 0.10 to 0.12.
_NO_PLATFORM = "Unable to initialize backend"
_NO_HOME = Path(os.devnull) / "no-home"
FLAGS_TIMEOUT_S = 60.0
"""Time limit in seconds of the child process that checks XLA_FLAGS; it takes less than one second."""


def tpu_settings() -> tuple[tuple[str, str], ...]:
    """Return (variable, value) of each environment variable that is set and may name a TPU, in look-up order."""
    values = ((name, os.environ.get(name, "").strip()) for name in TPU_VARIABLES)
    return tuple((name, value) for name, value in values if value)


def settings() -> dict[str, str]:
    """Return the set environment variables that affect anytpu, JAX and Keras, for a bug report."""
    names = filter(os.environ.__contains__, _REPORTED_VARIABLES)
    return {name: re.sub(r"([?&]token=)[^&]*", r"\1...", os.environ[name]) for name in names}


def store_endpoint(store: str) -> str | None:
    """Return the address that takes the place of a store's own, such as an emulator's; `store` is "gs" or "s3"."""
    names = {"gs": ("STORAGE_EMULATOR_HOST",), "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")}.get(store, ())
    address = next((value for name in names if (value := os.environ.get(name, "").strip())), None)
    return address if address is None or "://" in address else f"http://{address}"


def worker_token() -> str | None:
    """Return the token for a worker, of ANYTPU_WORKER_TOKEN, or None."""
    return os.environ.get("ANYTPU_WORKER_TOKEN", "").strip() or None


def worker_environment() -> dict[str, str]:
    """Return the environment of a worker's child: paths, and settings of JAX and XLA; no token and no TPU_NAME."""
    names = (name for name in os.environ if _CHILD_VARIABLES.fullmatch(name))
    return {name: os.environ[name] for name in names if name not in TPU_VARIABLES} | {"PYTHONPATH": _with_our_sources()}


def silence_grpc() -> None:
    """Let gRPC print nothing, unless GRPC_VERBOSITY is set; called before gRPC starts.

    It prints texts of the other side as they are. A stranger could forge lines of the log, and control the terminal.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def step_file() -> Path | None:
    """Return the file in which `anytpu run` looks for the step of the newest checkpoint, from ANYTPU_STEP_FILE."""
    return Path(name) if (name := os.environ.get("ANYTPU_STEP_FILE")) else None


def with_step_file(path: Path) -> dict[str, str]:
    """Return this environment with a file for the step of the newest checkpoint."""
    return {**os.environ, "ANYTPU_STEP_FILE": str(path)}


def launched_process() -> LaunchedProcess | None:
    """Return this process's part in a launch by `anytpu launch`, or None if it was started otherwise.

    Raises:
        SettingError: only some of the launcher's three variables are set, or one has an invalid value.
    """
    return parse_process({name: os.environ.get(name, "").strip() for name in LaunchedProcess.VARIABLES})


def launched_cpu_devices() -> int | None:
    """Return the number of CPU devices that `anytpu launch --cores` gives this process, or None.

    Raises:
        SettingError: ANYTPU_CPU_DEVICES is not a positive integer.
    """
    return parse_cpu_devices(os.environ.get("ANYTPU_CPU_DEVICES", "").strip())


def with_launched_process(process: LaunchedProcess, cpu_devices: int) -> dict[str, str]:
    """Return this environment for a process that `anytpu launch` starts, with CPU devices only.

    A pipe takes the output of the process, so Python must not hold it back. XLA's collectives need a thread for each
    device. With one device, more threads than the process has cores only compete: a step took 1.6 times as long.
    """
    cores = max(1, (os.cpu_count() or 1) // process.processes)
    threads = cores if cpu_devices == 1 else max(2 * cpu_devices, 16)
    kept = {name: value for name, value in os.environ.items() if name not in _CHOOSES_DEVICES}
    defaults = {"PJRT_NPROC": str(threads), "PYTHONUNBUFFERED": "1"}
    chosen = {"JAX_PLATFORMS": "cpu", "ANYTPU_CPU_DEVICES": str(cpu_devices)}
    return {**defaults, **kept, **process.variables(), **chosen}


def job_variables() -> dict[str, str]:
    """Return the set environment variables by which Slurm, Open MPI and TPU machines describe a job of processes."""
    return {name: value for name, value in os.environ.items() if name.startswith(_JOB_PREFIXES)}


def job_token() -> str | None:
    """Return the secret that the hosts of a job share, of ANYTPU_JOB_TOKEN, or None."""
    return os.environ.get("ANYTPU_JOB_TOKEN", "").strip() or None


def rendezvous_environment() -> dict[str, str]:
    """Return the environment of the process at which the hosts of a job meet: without the token."""
    kept = {name: value for name, value in os.environ.items() if name != "ANYTPU_JOB_TOKEN"}
    return {**kept, "PYTHONPATH": _with_our_sources()}


def worker_folder() -> Path:
    """Return the folder of a worker's token and certificate: "anytpu/worker" below XDG_CONFIG_HOME or ~/.config."""
    configured = os.environ.get("XDG_CONFIG_HOME", "").strip()
    return (Path(configured) if configured else _expanded("~/.config")) / "anytpu" / "worker"


def set_keras_backend() -> str:
    """Make JAX Keras's backend, unless KERAS_BACKEND names one, and return the backend's name."""
    name = os.environ.get("KERAS_BACKEND", "").strip()
    if not name:
        os.environ["KERAS_BACKEND"] = name = "jax"
    return name


def keras_backend_in_use() -> str | None:
    """Return the backend of the imported Keras, or None if Keras is not imported yet."""
    config = sys.modules.get("keras.config")
    if config is not None:
        return config.backend()
    return "tensorflow" if "keras" in sys.modules and "tensorflow" in sys.modules else None  # Keras 2


def require_keras_on_jax() -> None:
    """Reject a Keras that runs, or will run, on a backend other than JAX.

    Raises:
        SettingError: Keras uses another backend; the message says how to restart.
    """
    again = "Start Python again (in a notebook: restart the kernel)"
    used = keras_backend_in_use()
    if used not in (None, "jax"):
        raise SettingError(
            f"Keras runs on {used!r} in this process, and anytpu needs it on JAX. {again} and import anytpu before "
            "keras, with KERAS_BACKEND unset or KERAS_BACKEND=jax"
        )
    if used is None and (name := set_keras_backend()) != "jax":
        if name not in KERAS_BACKENDS:
            known = ", ".join(KERAS_BACKENDS)
            raise SettingError(
                f"KERAS_BACKEND must be one of {known}, not {name!r}; anytpu needs jax: KERAS_BACKEND=jax"
            )
        raise SettingError(
            f"KERAS_BACKEND is {name!r}, and anytpu needs Keras on JAX. {again} with KERAS_BACKEND unset or "
            "KERAS_BACKEND=jax"
        )


def compiler_environment() -> dict[str, str]:
    """Return the environment of the TPU compiler's process.

    It is a copy of this environment without the settings for this process's JAX and Python, and with the search for a
    TPU disabled. LIBTPU_INIT_ARGS is meant for the compiler, and is kept.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_COMPILER_EXCLUDED)}
    return kept | _COMPILER_DEFAULTS


def compiler_surroundings() -> dict[str, str]:
    """Return the startup inputs of the TPU compiler's results: the libtpu version and a part of the environment.

    Results of a compiler that was started with other inputs are not comparable.
    """
    started = {name: value for name, value in compiler_environment().items() if name.startswith(_COMPILER_STARTUP)}
    return started | {"libtpu": str(libtpu_version())}


def compiler_settings() -> dict[str, str]:
    """Return the options of the TPU compiler, such as LIBTPU_INIT_ARGS, without paths."""
    sorted_settings = sorted(compiler_environment().items())
    return {name: value for name, value in sorted_settings if name.startswith(_COMPILER_OPTIONS)}


def package_folder() -> Path:
    """Return the folder that anytpu is imported from: the source folder, or site-packages."""
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
    """Return the cache folder: ANYTPU_CACHE_DIR, or a folder below XDG_CACHE_HOME or ~/.cache."""
    anytpu_cache, user_cache = (os.environ.get(name, "").strip() for name in ("ANYTPU_CACHE_DIR", "XDG_CACHE_HOME"))
    if anytpu_cache:
        return _expanded(anytpu_cache)
    return (Path(user_cache) if user_cache else _expanded("~/.cache")) / "anytpu"


def xla_flags() -> str:
    """Return the value of XLA_FLAGS, or ""."""
    return os.environ.get("XLA_FLAGS", "").strip()


def trial_environment() -> dict[str, str]:
    """Return the environment of a process that tests a capability of XLA's CPU compiler.

    It keeps XLA_FLAGS of this process and drops its JAX settings, so no compiled program is read from a cache.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_TRIAL_EXCLUDED)}
    return {**kept, "JAX_PLATFORMS": "cpu", "PYTHONPATH": _with_our_sources()}


def forced_devices(count: int) -> dict[str, str]:
    """Return the environment of a process whose JAX has exactly `count` devices, all of them CPU host devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}".strip()
    return {
        **{name: value for name, value in os.environ.items() if name not in _CHOOSES_DEVICES},
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": flags,
        "PJRT_NPROC": str(max(2 * count, 16)),
        "PYTHONPATH": _with_our_sources(),
    }


def jax_platforms() -> tuple[str, ...]:
    """Return the platforms that JAX is configured to use, in order, or () if none is configured."""
    jax = sys.modules.get("jax")
    chosen = (jax.config.jax_platforms if jax else None) or os.environ.get("JAX_PLATFORMS", "")
    return tuple(name.strip() for name in chosen.split(",") if name.strip())


def prepare_jax() -> None:
    """Make the settings that JAX needs before it starts. Call it before the first use of a device; it may be repeated.

    On a machine without an accelerator, JAX is set to the CPU. Otherwise an installed libtpu or CUDA plugin searches
    for its device and prints errors on stderr. JAX chooses itself in three cases: the machine has an accelerator, the
    user chose the devices, or a plugin of another vendor is installed.
    """
    _reserve_threads()
    if _may_choose_platform() and not tpu_chips() and not ((has_nvidia() and has_cuda_plugin()) or other_plugins()):
        if "jax" in sys.modules:
            sys.modules["jax"].config.update("jax_platforms", "cpu")
        else:
            os.environ["JAX_PLATFORMS"] = "cpu"


def platforms_error(error: RuntimeError) -> SettingError | None:
    """Return the error to raise where JAX cannot start a platform that JAX_PLATFORMS names; None for other errors."""
    if not str(error).startswith(_NO_PLATFORM):
        return None
    return _platforms_error(str(error).partition(" (set JAX_PLATFORMS")[0].partition("\n")[0].rstrip("."))


def _platforms_error(reason: str) -> SettingError:
    return SettingError(
        f"JAX_PLATFORMS is {','.join(jax_platforms())!r}, and JAX cannot start that on this machine: {reason}. "
        "Type: unset JAX_PLATFORMS"
    )


def check_jax_settings() -> None:
    """Check the environment variables whose invalid values abort the process or the import of JAX.

    XLA aborts a process with invalid XLA_FLAGS without an exception. So a child process checks them first, once for
    each jaxlib version and value. Accepted values are recorded in the cache folder.

    Raises:
        SettingError: JAX_ENABLE_X64 is not a boolean, XLA cannot read XLA_FLAGS, or there is no chip for JAX_PLATFORMS.
    """
    # Otherwise libtpu prints its errors before JAX raises one.
    if "tpu" in jax_platforms() and not tpu_chips() and not any(map(_is_set_by_user, _CHOOSES_DEVICES[1:])):
        raise _platforms_error("it has no TPU chip")
    enable_x64 = os.environ.get("JAX_ENABLE_X64", "")
    if enable_x64 and enable_x64.lower() not in _BOOLEANS:
        raise SettingError(f"JAX_ENABLE_X64 must be 1 or 0, not {enable_x64!r}: unset JAX_ENABLE_X64")
    flags = os.environ.get("XLA_FLAGS", "").strip()
    if not flags or flags in _CHECKED_FLAGS:
        return
    key = hashlib.sha256(f"{importlib.metadata.version('jaxlib')} {flags}".encode()).hexdigest()
    note = cache_folder() / "xla_flags" / key
    # A flag without leading dashes names a file, whose content may change.
    if not (note.exists() and flags.startswith("--")) and _accepts_xla_flags(flags):
        with contextlib.suppress(OSError):
            note.parent.mkdir(parents=True, exist_ok=True)
            note.touch()
    _CHECKED_FLAGS.add(flags)


def _accepts_xla_flags(flags: str) -> bool:
    """Return whether XLA accepts its flags; False if the check failed for another reason, which JAX reports itself."""
    command = [sys.executable, "-P", "-c", _jax.PARSE_FLAGS]  # -P: do not import a jaxlib.py of the working folder.
    options = {"env": trial_environment(), "stdin": subprocess.DEVNULL, "timeout": FLAGS_TIMEOUT_S}
    try:
        child = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, **options)
    except (OSError, ValueError, subprocess.SubprocessError):
        return False
    message = re.search(r"^F\d{4} .*?parse_flags_from_env\.cc:\d+\] (.*)", child.stderr, re.MULTILINE)
    if not child.returncode or not message:
        return not child.returncode
    raise SettingError(
        f"XLA cannot read XLA_FLAGS={flags!r} and would end this process: {message[1].strip().rstrip('.')}. Take that "
        "flag out, or: unset XLA_FLAGS"
    )


def has_cuda_plugin() -> bool:
    """Return whether a CUDA plugin of JAX is installed."""
    return any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13, 14))


def has_libtpu() -> bool:
    """Return whether libtpu, JAX's TPU driver, is installed, or TPU_LIBRARY_PATH names it."""
    return bool(os.environ.get("TPU_LIBRARY_PATH")) or importlib.util.find_spec("libtpu") is not None


def other_plugins() -> tuple[str, ...]:
    """Return the names of JAX plugins for devices other than CUDA GPUs and TPUs."""
    names = {entry.name for entry in importlib.metadata.entry_points(group="jax_plugins")}
    return tuple(sorted(name for name in names if "cuda" not in name and "tpu" not in name))


def kernels() -> str:
    """Return the library that computes convolutions on virtual cores: "onednn", if it is installed, or "xla".

    Raises:
        SettingError: ANYTPU_KERNELS is neither of these.
    """
    value = os.environ.get("ANYTPU_KERNELS", "").strip().lower() or "onednn"
    if value not in ("onednn", "xla"):
        raise SettingError(
            f"ANYTPU_KERNELS must be onednn (where anytpu-kernels is installed, the default) or xla, not {value!r}"
        )
    return value


def _with_our_sources() -> str:
    """Return the PYTHONPATH of a child process that must import this anytpu."""
    source = package_folder()
    # An installed package is found without it, and the other packages there must not precede the standard library.
    folders = [] if source.name in ("site-packages", "dist-packages") else [str(source)]
    return os.pathsep.join([*folders, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])


def _expanded(path: str) -> Path:
    """Return a path with "~" expanded; a path that can be neither read nor written if there is no home."""
    try:
        return Path(path).expanduser()
    except RuntimeError:  # Neither HOME nor a passwd entry, as in many containers.
        return _NO_HOME / path.removeprefix("~/")


def _is_set_by_user(name: str) -> bool:
    """Return whether a variable that chooses JAX's devices is set, by somebody other than JAX.

    `import jax` sets TPU_LIBRARY_PATH if libtpu is installed, and child processes inherit it.
    """
    value = os.environ.get(name)
    if name != "TPU_LIBRARY_PATH" or not value:
        return bool(value)
    spec = importlib.util.find_spec("libtpu")
    return spec is None or not spec.origin or Path(value) != Path(spec.origin).parent / "libtpu.so"


def _may_choose_platform() -> bool:
    """Return whether JAX's devices are still undecided: neither the user nor a running JAX has chosen them."""
    return not (any(map(_is_set_by_user, _CHOOSES_DEVICES)) or jax_platforms() or _jax.has_started())


def _reserve_threads() -> None:
    """Give XLA two threads for each forced host device.

    With fewer threads, collectives over the devices deadlock and XLA aborts the process (openxla/xla#18608; not fixed
    in jax 0.10.2).
    """
    counts = re.findall(r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    if counts and "PJRT_NPROC" not in os.environ:
        os.environ["PJRT_NPROC"] = str(max(2 * int(counts[-1]), 16))
