"""The machine's PCI bus and device files: TPU chips and NVIDIA GPUs, found without JAX."""

from __future__ import annotations

from pathlib import Path

_GOOGLE_PCI_VENDOR = "0x1ae0"
# Google's network card and disk have the same vendor id. From jax/_src/hardware_utils.py of jax 0.12.0.
_TPU_PCI_DEVICES = {"0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076", "0x007c", "0x0083"}
_GOOGLE_OTHER_PCI_DEVICES = {"0x0042", "0x001f"}
_NVIDIA_FILES = ("dev/nvidiactl", "dev/nvidia0", "proc/driver/nvidia", "dev/dxg")

ROOT = Path("/")


def tpu_chips(root: Path = ROOT) -> int:
    """Return the number of TPU chips on this machine's PCI bus, without starting JAX.

    Args:
        root: root folder of the machine's file system.
    """
    ids = [(_read(d / "vendor"), _read(d / "device")) for d in _children(root / "sys/bus/pci/devices")]
    google = [device for vendor, device in ids if vendor == _GOOGLE_PCI_VENDOR]
    known = sum(device in _TPU_PCI_DEVICES for device in google)
    if known or not _has_accelerator_files(root):
        return known
    # A chip newer than this table: a Google device with a device file that is neither network card nor disk.
    return sum(device not in _GOOGLE_OTHER_PCI_DEVICES for device in google)


def has_nvidia(root: Path = ROOT) -> bool:
    """Return whether this machine has an NVIDIA GPU whose driver is loaded."""
    return any((root / name).exists() for name in _NVIDIA_FILES)


def _has_accelerator_files(root: Path) -> bool:
    numbered = [p for p in _children(root / "dev/vfio") if p.name.isdigit()]
    return bool(numbered) or any(p.name.startswith("accel") for p in _children(root / "dev"))


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
