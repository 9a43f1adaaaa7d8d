"""What `anytpu doctor` thinks of a machine: records in, `Check`s out, nothing is started.

Idea: looking and judging are two things. What was seen is in a `Machine`; what is good or bad about it is decided here,
so that every judgement can be tried on a machine that does not exist.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from anytpu import units
from anytpu.cli.machine import WORKER_PORTS, Machine
from anytpu.report.checks import Check
from anytpu.system.probes import Reason

LEAST_DISK_BYTES = units.GIB
LEAST_MEMORY_BYTES = units.GIB

EXTRAS = {
    "gpu": (("jax_cuda13_plugin", "jax_cuda12_plugin"), "NVIDIA GPUs"),
    "tpu": (("libtpu",), "a TPU of this machine"),
    "plan": (("libtpu",), "planning without a TPU"),
    "fast": (("anytpu_kernels",), "convolutions by oneDNN on virtual cores"),
    "tf": (("tensorflow",), "data from tf.data"),
    "gs": (("gcsfs",), "records in gs:// buckets"),
    "s3": (("s3fs",), "records in s3:// buckets"),
    "https": (("aiohttp",), "records at https:// addresses"),
    "dev": (("pytest", "ruff", "pyright"), "working on anytpu itself"),
}
"""Extra -> the modules that it brings, one of which is enough ("dev": all), and what it is for."""


def judge_machine(machine: Machine, keras_json: Path | None = None) -> Iterator[Check]:
    """Judge what was seen before anything is started.

    Args:
        machine: what was seen.
        keras_json: Keras's own settings; None is `~/.keras/keras.json`.
    """
    yield Check("ok", "system", f"{machine.system}; {machine.cpu}")
    yield versions(machine.versions, importlib.metadata.requires("anytpu") or [])
    yield memory(machine)
    yield disk(machine)
    yield ports(machine.ports_taken)
    yield keras_backend(machine.settings, keras_json or Path("~/.keras/keras.json").expanduser())
    yield libtpu(machine)
    yield threads(machine.settings)


def versions(installed: Mapping[str, str], required: Sequence[str]) -> Check:
    """Judge the versions of the packages that anytpu stands on.

    Args:
        installed: package -> version.
        required: what anytpu asks for, as its metadata says it: "jax<0.12,>=0.10".
    """
    from packaging.requirements import Requirement

    asked = [Requirement(text) for text in required]
    wrong = [one for one in asked if one.name in installed and not one.specifier.contains(installed[one.name])]
    wrong = [one for one in wrong if one.marker is None or one.marker.evaluate({"extra": ""})]
    if wrong:
        found = ", ".join(f"{one.name} {installed[one.name]} is installed, {one.specifier} is needed" for one in wrong)
        command = "pip install " + " ".join(f"'{one.name}{one.specifier}'" for one in wrong)
        return Check("failed", "versions", found, command)
    shown = ("anytpu", "python", "jax", "keras", "numpy")
    return Check("ok", "versions", ", ".join(f"{name} {installed[name]}" for name in shown if name in installed))


def memory(machine: Machine) -> Check:
    """Judge the memory that is free."""
    if machine.memory_bytes is None:
        return Check("ok", "memory", "this system does not say how much is free")
    free = f"{units.format_bytes(machine.memory_bytes)} free"
    if machine.memory_bytes < LEAST_MEMORY_BYTES:
        return Check("warning", "memory", f"{free}; training may need more", "free -h")
    return Check("ok", "memory", free)


def disk(machine: Machine) -> Check:
    """Judge the disk on which the current folder lies: weights are saved there."""
    free = f"{units.format_bytes(machine.disk_bytes)} free in {machine.folder}"
    if machine.disk_bytes < LEAST_DISK_BYTES:
        return Check("warning", "disk", f"{free}; weights and checkpoints may not fit", f"df -h '{machine.folder}'")
    return Check("ok", "disk", free)


def ports(taken: Sequence[int]) -> Check:
    """Judge the ports that workers of later releases listen on."""
    first, last = WORKER_PORTS[0], WORKER_PORTS[-1]
    if not taken:
        return Check("ok", "ports", f"{first} to {last} are free for TPU workers")
    listed = ", ".join(str(port) for port in taken)
    found = f"{listed}: something else listens there, so no TPU worker can; training here needs none"
    return Check("warning", "ports", found, f"ss -ltnp 'sport >= {first} and sport <= {last}'")


def keras_backend(settings: Mapping[str, str], keras_json: Path) -> Check:
    """Judge which backend Keras will use: anytpu needs JAX."""
    chosen = settings.get("KERAS_BACKEND", "jax")
    if chosen != "jax":
        found = f"KERAS_BACKEND={chosen} makes Keras use {chosen}; anytpu needs jax"
        return Check("failed", "Keras backend", found, "export KERAS_BACKEND=jax")
    saved = _saved_backend(keras_json)
    if saved not in (None, "jax"):
        # Not a warning: Keras writes this file itself, and "tensorflow" into it.
        found = f"jax, if anytpu is imported before keras; keras alone takes {saved!r} from {keras_json}"
        return Check("ok", "Keras backend", found)
    return Check("ok", "Keras backend", "jax")


def libtpu(machine: Machine) -> Check:
    """Judge libtpu against the chips that are there: without a chip, JAX must be kept from looking for one."""
    version, platforms = machine.versions.get("libtpu"), machine.settings.get("JAX_PLATFORMS", "")
    if machine.tpu_chips and version is None:
        found = f"{machine.tpu_chips} TPU chips are here, and libtpu, which drives them, is not installed"
        return Check("failed", "libtpu", found, "pip install 'anytpu[tpu]'")
    if not machine.tpu_chips and "tpu" in platforms.split(","):
        found = f"JAX_PLATFORMS={platforms} makes JAX look for a TPU, and there is no TPU chip here"
        return Check("failed", "libtpu", found, "unset JAX_PLATFORMS")
    if version is None:
        return Check("ok", "libtpu", "not installed, and there is no TPU chip that needs it")
    there = "drives the TPU chips of this machine" if machine.tpu_chips else "for planning only: no TPU chip is here"
    return Check("ok", "libtpu", f"{version}, {there}")


def threads(settings: Mapping[str, str]) -> Check:
    """Judge XLA's threads where it is told to make several host devices: with too few, all-reduces hang and abort."""
    counts = re.findall(r"--xla_force_host_platform_device_count=(\d+)", settings.get("XLA_FLAGS", ""))
    if not counts:
        return Check("ok", "PJRT_NPROC", "not needed: XLA_FLAGS asks for no host devices of its own")
    needed, found = 2 * int(counts[-1]), settings.get("PJRT_NPROC", "")
    if found.isdecimal() and int(found) >= needed:
        return Check("ok", "PJRT_NPROC", f"{found}, enough for the {counts[-1]} host devices that XLA_FLAGS asks for")
    text = f"{found or 'not set'}, and XLA_FLAGS asks for {counts[-1]} host devices: all-reduces over them can hang"
    return Check("warning", "PJRT_NPROC", text, f"export PJRT_NPROC={max(needed, 16)}")


def reasons(lost: Sequence[Reason], machine: Machine) -> Iterator[Check]:
    """Judge why the places before had no TPU: a warning where there is hardware, or a setting, that goes unused."""
    is_there = {"TPU": bool(machine.tpu_chips), "GPU": machine.has_nvidia}
    for reason in lost:
        if reason.source not in is_there:
            yield Check("warning", "looked for", str(reason), f"unset {reason.source}")
        else:
            yield Check("warning" if is_there[reason.source] else "ok", "looked for", str(reason))


def extras() -> Iterator[Check]:
    """Tell which extras are installed, and what each is for. None of them is needed to train."""
    for name, (modules, purpose) in EXTRAS.items():
        there = [importlib.util.find_spec(module) is not None for module in modules]
        if all(there) if name == "dev" else any(there):
            yield Check("ok", f"extra {name}", f"installed, for {purpose}")
        else:
            yield Check("optional", f"extra {name}", f"for {purpose}: pip install 'anytpu[{name}]'")


def _saved_backend(keras_json: Path) -> str | None:
    try:
        return json.loads(keras_json.read_text()).get("backend")
    except (OSError, ValueError, AttributeError):
        return None
