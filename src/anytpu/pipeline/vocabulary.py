"""Ids of strings, for embedding tables: from a vocabulary, or by a hash.

Idea: a compiled step takes numbers. A vocabulary numbers the strings that were seen in the training data, the most
frequent first. A hash needs no data: it gives every string one of a fixed number of ids, and several strings may share
one.

Rule: ids are equal on every machine and in every process.
"""

from __future__ import annotations

import collections
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from anytpu._calls import explain_arguments, explain_methods
from anytpu.errors import DataError, SettingError
from anytpu.files.opening import read_file
from anytpu.pipeline.missing import first_missing


@explain_arguments
def hash_ids(strings: Any, size: int) -> Any:
    """Return the id of each string by its hash: the first 8 bytes of BLAKE2b, modulo `size`.

    Args:
        strings: an array of strings or bytes, of any shape, or rows of different lengths; numbers are hashed as their
            decimal text.
        size: number of ids.

    Returns:
        int32 ids, 0 to size - 1, of the same shape; a list of arrays for rows of different lengths.

    Raises:
        SettingError: `size` is not a positive integer of 31 bits.
        DataError: a value is missing.

    Example:
        >>> hash_ids(["red", "blue", "red"], 1000)
        array([261, 346, 261], dtype=int32)
    """
    if not isinstance(size, int | np.integer) or isinstance(size, bool) or not 0 < size < 2**31:
        raise SettingError(f"size must be a positive integer below 2 ** 31, not {size!r}")

    def hashed(array: np.ndarray) -> np.ndarray:
        distinct, places = _distinct(array)
        digests = [hashlib.blake2b(_bytes(text), digest_size=8).digest() for text in distinct]
        return np.asarray([int.from_bytes(digest, "little") % size for digest in digests], "int32")[places]

    return _each(strings, hashed)


def _each(strings: Any, change: Callable[[np.ndarray], Any]) -> Any:
    """Apply a function to an array of strings, or return a list of its results for rows of different lengths."""
    rows = _ragged_rows(strings)
    if rows is None:
        return change(_present(strings))
    return [change(_present(row, index)) for index, row in enumerate(rows)]


def _present(strings: Any, row: int | None = None) -> np.ndarray:
    """Return strings as an array without missing values.

    Args:
        strings: an array, or a string.
        row: row of the array in the data, for errors; None if its first axis counts the rows.

    Raises:
        DataError: a value is missing.
    """
    array = np.asarray(strings)
    # NumPy makes the text "nan" of a NaN in a list of strings.
    is_list = isinstance(strings, list | tuple) and array.dtype.kind in "US"
    index = first_missing(objects := np.asarray(strings, object) if is_list else array)
    if index is not None:
        place = row if row is not None else index[0] if index else 0
        raise DataError(
            f"row {place:,} of the strings has the missing value {objects[index]}: fill it first, such as with "
            'column.fillna("unknown") of pandas, or drop the row, column.dropna()'
        )
    return array


def _distinct(array: np.ndarray) -> tuple[list[Any], np.ndarray]:
    """Return the elements of an array, each once, and the index of each element among them."""
    if array.dtype != object:
        distinct, places = np.unique(array, return_inverse=True)
        return list(distinct), places.reshape(array.shape)
    # Python's strings, bytes and numbers have no common order.
    known: dict[Any, int] = {}
    places = [known.setdefault(element, len(known)) for element in array.flat]
    return list(known), np.array(places, int).reshape(array.shape)


def _ragged_rows(strings: Any) -> list[Any] | None:
    """Return rows of different lengths as a list, or None for a rectangular array."""
    is_object = isinstance(strings, np.ndarray) and strings.dtype == object and strings.ndim == 1
    if not is_object and not isinstance(strings, list | tuple):
        return None
    rows = list(strings)
    if not all(isinstance(row, list | tuple | np.ndarray) for row in rows):
        return None
    return rows if is_object or len({len(row) for row in rows}) > 1 else None


def _texts(strings: Any, row: int | None = None) -> Iterator[str]:
    """Yield the strings of an array, or of rows of different lengths; `row` is the row of the array in the data."""
    if (rows := _ragged_rows(strings)) is not None:
        for index, part in enumerate(rows):
            yield from _texts(part, index)
        return
    yield from map(_text, _present(strings, row).flat)


def _is_array(part: Any) -> bool:
    return hasattr(part, "__len__") and not isinstance(part, str | bytes)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _bytes(text: Any) -> bytes:
    return text if isinstance(text, bytes) else str(text).encode()


@explain_methods
class Vocabulary:
    """The ids of known strings.

    Args:
        strings: the strings, in the order of their ids; or the path of a text file with one on each line.
        others: treatment of other strings: "drop" gives them -1, which stands for no id; "raise" is an error; a
            positive integer hashes them into so many ids after those of the vocabulary.

    Raises:
        SettingError: a string occurs twice, or `others` is none of these.

    Example:
        >>> colours = Vocabulary(["red", "blue"])
        >>> colours(["blue", "green"]), len(colours)
        (array([ 1, -1], dtype=int32), 2)
    """

    def __init__(self, strings: Iterable[str] | str | os.PathLike[str], others: str | int = "drop") -> None:
        if isinstance(strings, str | os.PathLike):
            strings = read_file(Path(strings)).decode().splitlines()
        listed = np.empty(len(strings := list(strings)), object)
        listed[:] = strings
        self.strings = [_text(value) for value in _present(listed)]
        """The strings, in the order of their ids."""
        self._ids: Mapping[str, int] = {text: index for index, text in enumerate(self.strings)}
        if len(self._ids) != len(self.strings):
            counts = collections.Counter(self.strings)
            twice = next(text for text in self.strings if counts[text] > 1)
            raise SettingError(f"the vocabulary has {twice!r} {counts[twice]} times: each string has one id")
        is_count = isinstance(others, int) and not isinstance(others, bool) and others > 0
        if others not in ("drop", "raise") and not is_count:
            raise SettingError(f'others must be "drop", "raise" or a positive number of ids, not {others!r}')
        self._others = others

    @classmethod
    def of(cls, data: Any, max_size: int | None = None, others: str | int = "drop") -> Vocabulary:
        """Return the vocabulary of data, the most frequent strings first, equal ones in alphabetical order.

        Args:
            data: an array of strings, of any shape, or an iterable of such arrays, or of rows of different lengths.
            max_size: number of strings to keep; None keeps all.
            others: as for the class.

        Example:
            >>> Vocabulary.of(["b", "a", "b"]).strings
            ['b', 'a']
        """
        counts: collections.Counter[str] = collections.Counter()
        for row, part in enumerate(data):
            counts.update(_texts(part, None if _is_array(part) else row))
        ordered = sorted(counts, key=lambda text: (-counts[text], text))
        return cls(ordered[:max_size], others)

    def __len__(self) -> int:
        """Return the number of ids: `input_dim` of the table."""
        return len(self.strings) + (self._others if isinstance(self._others, int) else 0)

    def __call__(self, strings: Any) -> Any:
        """Return the int32 id of each string, in an array of the same shape.

        Args:
            strings: an array of strings, or rows of different lengths, which give a list of arrays.

        Raises:
            DataError: a string is unknown, with `others="raise"`. Or a value is missing, or a number, and no string of
                the vocabulary is the text of such a number.
        """
        return _each(strings, self._ids_of)

    def _ids_of(self, array: np.ndarray) -> np.ndarray:
        distinct, places = _distinct(array)
        self._refuse_numbers(distinct)
        texts = [_text(value) for value in distinct]
        ids = np.array([self._ids.get(text, -1) for text in texts], "int32")
        missing = np.flatnonzero(ids < 0)
        if len(missing) and self._others == "raise":
            raise DataError(
                f"{texts[missing[0]]!r} is not in the vocabulary of {len(self.strings):,} strings. Build it of all "
                'data, or pass others="drop" or a number of ids for unknown strings'
            )
        if len(missing) and isinstance(self._others, int):
            ids[missing] = len(self.strings) + hash_ids([texts[index] for index in missing], self._others)
        return ids[places]

    def _refuse_numbers(self, values: list[Any]) -> None:
        """Refuse numbers, if no string of the vocabulary is the text of one of their kind."""
        number = next((value for value in values if isinstance(value, int | float | np.number | np.bool_)), None)
        if number is None or not self.strings or any(_is_text_of(text, number) for text in self.strings):
            return
        raise DataError(
            f"the vocabulary has strings, such as {self.strings[0]!r}, and got the number {number}: pass strings. "
            "Numbers that are ids already need no vocabulary"
        )


def _is_text_of(text: str, number: Any) -> bool:
    """Return whether a string is the text of a number of the same kind: boolean, integer or floating."""
    if isinstance(number, bool | np.bool_):
        return text in ("True", "False")
    try:
        return str((int if isinstance(number, int | np.integer) else float)(text)) == text
    except ValueError:
        return False
