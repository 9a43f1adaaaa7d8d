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
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from anytpu._calls import explain_arguments, explain_methods
from anytpu.errors import DataError, SettingError
from anytpu.files.opening import read_file


@explain_arguments
def hash_ids(strings: Any, size: int) -> np.ndarray:
    """Return the id of each string by its hash: the first 8 bytes of BLAKE2b, modulo `size`.

    Args:
        strings: an array of strings or bytes, of any shape; numbers are hashed as their decimal text.
        size: number of ids.

    Returns:
        int32 ids, 0 to size - 1, of the same shape.

    Raises:
        SettingError: `size` is not a positive integer of 31 bits.

    Example:
        >>> hash_ids(["red", "blue", "red"], 1000)
        array([261, 346, 261], dtype=int32)
    """
    if not isinstance(size, int | np.integer) or isinstance(size, bool) or not 0 < size < 2**31:
        raise SettingError(f"size must be a positive integer below 2 ** 31, not {size!r}")
    array = np.asarray(strings)
    distinct, places = np.unique(array, return_inverse=True)
    ids = [int.from_bytes(hashlib.blake2b(_bytes(text), digest_size=8).digest(), "little") % size for text in distinct]
    return np.asarray(ids, "int32")[places.reshape(array.shape)]


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
        self.strings = [text.decode() if isinstance(text, bytes) else str(text) for text in strings]
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
            data: an array of strings, of any shape, or an iterable of such arrays.
            max_size: number of strings to keep; None keeps all.
            others: as for the class.

        Example:
            >>> Vocabulary.of(["b", "a", "b"]).strings
            ['b', 'a']
        """
        counts: collections.Counter[str] = collections.Counter()
        for part in data:
            counts.update(text.decode() if isinstance(text, bytes) else str(text) for text in np.asarray(part).flat)
        ordered = sorted(counts, key=lambda text: (-counts[text], text))
        return cls(ordered[:max_size], others)

    def __len__(self) -> int:
        """Return the number of ids: `input_dim` of the table."""
        return len(self.strings) + (self._others if isinstance(self._others, int) else 0)

    def __call__(self, strings: Any) -> np.ndarray:
        """Return the int32 id of each string, in an array of the same shape.

        Raises:
            DataError: a string is unknown, with `others="raise"`.
        """
        array = np.asarray(strings)
        distinct, places = np.unique(array, return_inverse=True)
        texts = [text.decode() if isinstance(text, bytes) else str(text) for text in distinct]
        ids = np.array([self._ids.get(text, -1) for text in texts], "int32")
        missing = np.flatnonzero(ids < 0)
        if len(missing) and self._others == "raise":
            raise DataError(
                f"{texts[missing[0]]!r} is not in the vocabulary of {len(self.strings):,} strings. Build it of all "
                'data, or pass others="drop" or a number of ids for unknown strings'
            )
        if len(missing) and isinstance(self._others, int):
            ids[missing] = len(self.strings) + hash_ids([texts[index] for index in missing], self._others)
        return ids[places.reshape(array.shape)]
