"""The container of a program file: a zip of named parts with a SHA-256 of each.

Idea: a truncated, altered or foreign file must be rejected with one clear sentence, whichever byte is wrong. The zip's
own checks have 32 bits and raise many different exceptions.

Rule: `checksums.json` lists every other part and its SHA-256. No part is parsed before its checksum matches, and no
more is unpacked than the part declares. A file is written next to its final path and moved there, so a reader never
sees a partial file. The same parts give the same bytes.

The values of a state are .npy parts, which NumPy alone can read. A .npy part supports only NumPy's own dtypes. Extended
dtypes such as bfloat16 are stored as unsigned integers of their width, and a typed random key as its raw words. The
manifest has the original types.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anytpu.errors import ProgramError
from anytpu.files import memory
from anytpu.files.json_text import MAX_JSON_BYTES, read_json
from anytpu.files.memory import check_memory
from anytpu.files.npy import MAX_HEADER_BYTES, read_npy
from anytpu.files.opening import open_file
from anytpu.files.replacing import replaced
from anytpu.files.zips import Zip
from anytpu.program.program import Program, Tree, leaf_text, state_names

CHECKSUMS = "checksums.json"
"""Name of the part that lists the others."""

_EPOCH = (1980, 1, 1, 0, 0, 0)
_ZIP_START = b"PK\x03\x04"
_MAGIC_BYTES = 16
"""Upper bound of the bytes before the header of an .npy file."""


def write_parts(
    path: Path,
    parts: Mapping[str, bytes],
    numbers: Collection[str] = (),
    check: Callable[[int], None] = lambda file_bytes: None,
) -> None:
    """Write parts and their checksums as one file.

    Args:
        path: path of the file; an existing file is replaced atomically.
        parts: content of each part, by name.
        numbers: parts of numbers, in which only zeros repeat; they are packed three times as fast.
        check: called with the size of the whole file before it is moved to its path; its errors prevent that.

    Raises:
        ProgramError: the file cannot be written.
    """
    if "\0" in str(path):
        raise ProgramError(f"The program file {str(path)!r} cannot be written: embedded null byte.")
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in parts.items()}
    everything = {**parts, CHECKSUMS: json.dumps(sums, indent=1).encode()}
    try:
        with replaced(path) as unfinished:
            _write_zip(unfinished, everything, numbers)
            check(unfinished.stat().st_size)
    except OSError as error:
        raise ProgramError(f"The program file {str(path)!r} cannot be written: {error.strerror or error}.") from error


class ArchiveParts:
    """The parts of a file, each checked against its sha-256 as it is read. A context manager: it holds the file open.

    Args:
        path: path of the file.
        needed: names of the parts that a program file must have.
        writer: what writes such files, for the errors.
        former: the first four bytes of files of former formats, with the end of a sentence about them.

    Raises:
        ProgramError: the file is missing, is not a program file, or is truncated.
    """

    def __init__(
        self,
        path: Path,
        needed: tuple[str, ...],
        writer: str = "anytpu.program.write",
        former: Mapping[bytes, str] = MappingProxyType({}),
    ) -> None:
        """Open the file."""
        self._path, self._writer, self._former = path, writer, former
        self._zip = self._open()
        try:
            if missing := {*needed, CHECKSUMS} - set(self._zip):
                raise self._foreign(f"it has no part named {min(missing)!r}")
            self._check_ratio()
            self._sums = self._read_sums()
        except ProgramError:
            self._zip.close()
            raise

    def __enter__(self) -> ArchiveParts:
        """Return the parts."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the file."""
        self._zip.close()

    def __contains__(self, name: str) -> bool:
        """Return whether the file has a part with this name."""
        return name in self._sums

    def unchecked(self, name: str, most_bytes: int | None = None) -> bytes:
        """Return a part without checking its checksum; empty if it cannot be read.

        Args:
            name: name of the part.
            most_bytes: maximum size that the part may declare; None: the free memory.

        Raises:
            ProgramError: the part is too large.
        """
        size_bytes = self._zip.size_bytes(name) if name in self._zip else 0
        if most_bytes is not None and size_bytes > most_bytes:
            raise self._unusable(
                f"Its part {name!r} has {size_bytes:,} bytes, and {most_bytes:,} is the most that it can have."
            )
        try:
            check_memory(size_bytes)
        except ValueError as error:
            raise self._unusable(f"Its part {name!r} is too large: {error}.") from error
        try:
            return self._zip.read(name)
        except (ValueError, KeyError):
            return b""

    def read(self, name: str, most_bytes: int | None = None) -> bytes:
        """Return a part.

        Args:
            name: name of the part.
            most_bytes: maximum size that the part may declare; None: the free memory.

        Raises:
            ProgramError: the part is missing, is too large, or was altered.
        """
        content = self.unchecked(name, most_bytes)
        if hashlib.sha256(content).hexdigest() != self._sums.get(name):
            raise self._altered(name)
        return content

    def _open(self) -> Zip:
        start = None
        try:
            with open_file(self._path) as stream:
                start = stream.read(len(_ZIP_START))
            return Zip(self._path)
        except OSError as error:
            raise ProgramError(
                f"The program file {str(self._path)!r} cannot be read: {error.strerror or error}."
            ) from error
        except ValueError as error:
            again = f"Copy it again, or write it again with {self._writer}."
            why = f"is empty. {again}" if start == b"" else f"cannot be read: {error}." if start is None else None
            if why := why or self._former.get(start or b""):
                raise ProgramError(f"The program file {str(self._path)!r} {why}") from error
            if start != _ZIP_START:
                raise self._foreign("it is not a zip file") from error
            raise ProgramError(
                f"The program file {str(self._path)!r} is cut short or damaged: the list of its parts, which is at "
                f"its end, cannot be read. {again}"
            ) from error

    def _check_ratio(self) -> None:
        try:
            self._zip.check_ratio()
        except ValueError as error:
            raise self._unusable(f"Its parts are too large: {error}.") from error

    def _read_sums(self) -> dict[str, str]:
        try:
            sums = read_json(self.unchecked(CHECKSUMS, MAX_JSON_BYTES))
        except ValueError as error:
            raise self._altered(CHECKSUMS) from error
        if not isinstance(sums, dict):
            raise self._altered(CHECKSUMS)
        return sums

    def _altered(self, name: str) -> ProgramError:
        return ProgramError(
            f"The program file {str(self._path)!r} was altered or damaged after it was written: its part {name!r} is "
            f"not what was recorded. Copy it again, or write it again with {self._writer}."
        )

    def _unusable(self, why: str) -> ProgramError:
        return ProgramError(
            f"The program file {str(self._path)!r} cannot be used. {why} Write it again with {self._writer}."
        )

    def _foreign(self, why: str) -> ProgramError:
        return ProgramError(
            f"{str(self._path)!r} is not a program file: {why}. Program files are written by {self._writer}."
        )


def _write_zip(path: Path, parts: Mapping[str, bytes], numbers: Collection[str]) -> None:
    # Tensor values hardly compress, and a reader rejects a very high compression ratio of all parts together.
    packed = [name for name in parts if not name.endswith(".npy")]
    packed = packed if sum(len(parts[name]) for name in packed) <= memory.FREELY_UNPACKED_BYTES else []
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            info = zipfile.ZipInfo(name, _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED if name in packed else zipfile.ZIP_STORED
            info.external_attr, info.file_size = 0o644 << 16, len(content)
            with archive.open(info, "w") as stream:
                if name in packed and name in numbers:
                    # `zipfile` has no parameter for the strategy. Without this line, writing is only slow.
                    vars(stream)["_compressor"] = zlib.compressobj(1, zlib.DEFLATED, -15, strategy=zlib.Z_RLE)
                stream.write(content)


def tensor_part(index: int) -> str:
    """Return the name of the part with the value of the leaf at an index."""
    return f"tensors/{index:03d}.npy"


def max_npy_bytes(spec: Any) -> int:
    """Return the maximum size in bytes of the part of a leaf of this shape and dtype.

    Example:
        >>> max_npy_bytes(jax.ShapeDtypeStruct((250,), "float32"))
        11016
    """
    return math.prod(spec.shape) * spec.dtype.itemsize + _MAGIC_BYTES + MAX_HEADER_BYTES


def tensors_to_npy(program: Program, tensors: Tree) -> list[tuple[str | None, bytes]]:
    """Return, for each value, the random generator of a typed key (None for an ordinary array) and its .npy file.

    Args:
        program: the program.
        tensors: tree of arrays with the structure, shapes and dtypes of the program's state.

    Raises:
        ProgramError: the tensors do not match the state; the message names the leaf.
    """
    structure = jax.tree.structure(program.state)
    if jax.tree.structure(tensors) != structure:
        raise ProgramError(
            f"The tensors must have the structure of the state of {program.name!r}, {structure}, not "
            f"{jax.tree.structure(tensors)}."
        )
    stored = []
    for name, value, spec in zip(
        state_names(program), jax.tree.leaves(tensors), jax.tree.leaves(program.state), strict=True
    ):
        value = value if isinstance(value, jax.Array) else _canonical(value)
        if (value.shape, value.dtype) != (spec.shape, spec.dtype):
            raise ProgramError(
                f"The tensor {name!r} of {program.name!r} must be {leaf_text(spec)}, not {leaf_text(value)}."
            )
        stored.append(_stored(value))
    return stored


def npy_to_tensors(program: Program, contents: Sequence[bytes], generators: Sequence[str | None]) -> Tree:
    """Return the tree of values from the results of `tensors_to_npy`.

    Raises:
        ProgramError: a file does not match the state of the program.
    """
    leaves, structure = jax.tree.flatten(program.state)
    try:
        loaded = [read_npy(io.BytesIO(content), len(content)) for content in contents]
        values = [_value(*leaf) for leaf in zip(loaded, generators, leaves, strict=True)]
    except (ValueError, TypeError) as error:
        raise ProgramError(f"The values of its state are not what the state declares: {error}") from error
    return jax.tree.unflatten(structure, values)


def _canonical(value: Any) -> np.ndarray:
    """Return a value as a NumPy array with the dtype that JAX would use."""
    array = np.asarray(value)
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


def _stored(value: Any) -> tuple[str | None, bytes]:
    generator = None
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        generator, value = str(jax.random.key_impl(value)), jax.random.key_data(value)
    array = np.asarray(value)
    if array.dtype.kind == "V":
        array = array.view(f"uint{8 * array.itemsize}")
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, allow_pickle=False)
    return generator, buffer.getvalue()


def _value(array: np.ndarray, generator: str | None, spec: Any) -> Any:
    value = array if generator is None else jax.random.wrap_key_data(jnp.asarray(array), impl=generator)
    if generator is None and np.dtype(spec.dtype).kind == "V":
        value = array.view(spec.dtype)
    if (value.shape, value.dtype) != (spec.shape, spec.dtype):
        raise ValueError(f"{leaf_text(value)} is not {leaf_text(spec)}")
    return value
