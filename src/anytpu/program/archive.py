"""A zip of named parts with a sha-256 of each: what a program file is on the disk.

Idea: a file that was cut short, altered or never was ours must say so in one sentence, whatever byte went wrong; the
zip's own checks are 32 bits and fail in a dozen foreign ways.

Rule: `checksums.json` names every other part and its sha-256; nothing of a part is looked at before it agrees. A file
is written beside its place and moved there, so that a reader never sees half of one. The same parts give the same
bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from anytpu.errors import ProgramError

CHECKSUMS = "checksums.json"
"""The part that names the others."""

_EPOCH = (1980, 1, 1, 0, 0, 0)
_ZIP_START = b"PK\x03\x04"
_FOREIGN = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
    OSError,
)
"""What `zipfile` raises for a file that it cannot make sense of."""


def write_parts(path: Path, parts: Mapping[str, bytes]) -> None:
    """Write parts and their checksums as one file.

    Args:
        path: where; a file that is there is replaced in one move.
        parts: what each part holds, by name.

    Raises:
        ProgramError: the file cannot be written.
    """
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in parts.items()}
    everything = {**parts, CHECKSUMS: json.dumps(sums, indent=1).encode()}
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            _write_zip(beside, everything)
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise ProgramError(f"The program file {str(path)!r} cannot be written: {error.strerror or error}.") from error


class Parts:
    """The parts of a file, each checked against its sha-256 as it is read. A context manager: it holds the file open.

    Args:
        path: the file.
        needed: the names of the parts without which it is not a program file.

    Raises:
        ProgramError: the file is not there, is not a program file, or is cut short.
    """

    def __init__(self, path: Path, needed: tuple[str, ...]) -> None:
        """Open the file."""
        self._path = path
        self._zip = self._open()
        try:
            if missing := {*needed, CHECKSUMS} - set(self._zip.namelist()):
                raise self._foreign(f"it has no part named {min(missing)!r}")
            self._sums = self._read_sums()
        except ProgramError:
            self._zip.close()
            raise

    def __enter__(self) -> Parts:
        """Return the parts themselves."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the file."""
        self._zip.close()

    def __contains__(self, name: str) -> bool:
        """Return whether a part of that name is there."""
        return name in self._sums

    def unchecked(self, name: str) -> bytes:
        """Return a part without looking at its checksum; empty when it cannot be read."""
        try:
            return self._zip.read(name)
        except (*_FOREIGN, KeyError):
            return b""

    def read(self, name: str) -> bytes:
        """Return a part.

        Raises:
            ProgramError: the part is not there, or is not what was written.
        """
        content = self.unchecked(name)
        if hashlib.sha256(content).hexdigest() != self._sums.get(name):
            raise self._altered(name)
        return content

    def _open(self) -> zipfile.ZipFile:
        try:
            start = self._path.open("rb")
        except OSError as error:
            raise ProgramError(
                f"The program file {str(self._path)!r} cannot be read: {error.strerror or error}."
            ) from error
        with start:
            is_zip = start.read(len(_ZIP_START)) == _ZIP_START
        try:
            return zipfile.ZipFile(self._path)
        except _FOREIGN as error:
            if not is_zip:
                raise self._foreign("it is not a zip file") from error
            raise ProgramError(
                f"The program file {str(self._path)!r} is cut short or damaged: the list of its parts, which stands at "
                "its end, cannot be read. Copy it again, or write it again with anytpu.program.write."
            ) from error

    def _read_sums(self) -> dict[str, str]:
        try:
            sums = json.loads(self.unchecked(CHECKSUMS))
        except (ValueError, RecursionError) as error:
            raise self._altered(CHECKSUMS) from error
        if not isinstance(sums, dict):
            raise self._altered(CHECKSUMS)
        return sums

    def _altered(self, name: str) -> ProgramError:
        return ProgramError(
            f"The program file {str(self._path)!r} was altered or damaged after it was written: its part {name!r} is "
            "not what was recorded. Copy it again, or write it again with anytpu.program.write."
        )

    def _foreign(self, why: str) -> ProgramError:
        return ProgramError(
            f"{str(self._path)!r} is not a program file: {why}. Program files are written by "
            "anytpu.program.write(program, path)."
        )


def _write_zip(path: Path, parts: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            info = zipfile.ZipInfo(name, _EPOCH)
            info.compress_type = zipfile.ZIP_STORED if name.endswith(".npy") else zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            archive.writestr(info, content)
