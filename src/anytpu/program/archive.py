"""A zip of named parts with a sha-256 of each: what a program file is on the disk.

Idea: a file that was cut short, altered or never was ours must say so in one sentence, whatever byte went wrong; the
zip's own checks are 32 bits and fail in a dozen foreign ways.

Rule: `checksums.json` names every other part and its sha-256; nothing of a part is looked at before it agrees, and no
more of it is unpacked than it declares. A file is written beside its place and moved there, so that a reader never sees
half of one. The same parts give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path

from anytpu.errors import ProgramError
from anytpu.files import memory
from anytpu.files.memory import check_memory
from anytpu.files.opening import open_file
from anytpu.files.replacing import replaced
from anytpu.files.zips import Zip

CHECKSUMS = "checksums.json"
"""The part that names the others."""

_EPOCH = (1980, 1, 1, 0, 0, 0)
_ZIP_START = b"PK\x03\x04"


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
    try:
        with replaced(path) as unfinished:
            _write_zip(unfinished, everything)
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
            if missing := {*needed, CHECKSUMS} - set(self._zip):
                raise self._foreign(f"it has no part named {min(missing)!r}")
            self._check_ratio()
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
        """Return a part without looking at its checksum; empty when it cannot be read.

        Raises:
            ProgramError: it is larger than the memory that is free.
        """
        try:
            check_memory(self._zip.size_bytes(name) if name in self._zip else 0)
        except ValueError as error:
            raise self._unusable(f"Its part {name!r} is too large: {error}.") from error
        try:
            return self._zip.read(name)
        except (ValueError, KeyError):
            return b""

    def read(self, name: str, most_bytes: int | None = None) -> bytes:
        """Return a part.

        Args:
            name: its name.
            most_bytes: the largest size that it may declare; None: what memory is free.

        Raises:
            ProgramError: the part is not there, is too large, or is not what was written.
        """
        size_bytes = self._zip.size_bytes(name) if name in self._zip else 0
        if most_bytes is not None and size_bytes > most_bytes:
            raise self._unusable(
                f"Its part {name!r} has {size_bytes:,} bytes, and {most_bytes:,} is the most that it can have."
            )
        content = self.unchecked(name)
        if hashlib.sha256(content).hexdigest() != self._sums.get(name):
            raise self._altered(name)
        return content

    def _open(self) -> Zip:
        try:
            with open_file(self._path) as start:
                is_zip = start.read(len(_ZIP_START)) == _ZIP_START
            return Zip(self._path)
        except OSError as error:
            raise ProgramError(
                f"The program file {str(self._path)!r} cannot be read: {error.strerror or error}."
            ) from error
        except ValueError as error:
            if not is_zip:
                raise self._foreign("it is not a zip file") from error
            raise ProgramError(
                f"The program file {str(self._path)!r} is cut short or damaged: the list of its parts, which stands at "
                "its end, cannot be read. Copy it again, or write it again with anytpu.program.write."
            ) from error

    def _check_ratio(self) -> None:
        try:
            self._zip.check_ratio()
        except ValueError as error:
            raise self._unusable(f"Its parts are too large: {error}.") from error

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

    def _unusable(self, why: str) -> ProgramError:
        return ProgramError(
            f"The program file {str(self._path)!r} cannot be used. {why} Write it again with anytpu.program.write."
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
            # Values are random bits mostly, and a reader refuses what is packed too well.
            is_stored = name.endswith(".npy") or len(content) > memory.FREELY_UNPACKED_BYTES
            info.compress_type = zipfile.ZIP_STORED if is_stored else zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            archive.writestr(info, content)
