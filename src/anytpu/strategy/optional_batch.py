"""`OptionalBatch`: the result of `iterator.get_next_as_optional()`, a batch or the end of the data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from anytpu.errors import DataExhaustedError


@dataclasses.dataclass(frozen=True, slots=True)
class OptionalBatch:
    """A batch, or nothing at the end of the data.

    Attributes:
        batches: a tuple with the batch; () at the end of the data.
    """

    batches: tuple[Any, ...] = ()

    @classmethod
    def following(cls, iterator: Iterator[Any]) -> OptionalBatch:
        """Return the next batch of an iterator, or an empty `OptionalBatch` at its end."""
        try:
            return cls((next(iterator),))
        except StopIteration:
            return cls()

    def has_value(self) -> bool:
        """Return whether there is a batch."""
        return bool(self.batches)

    def get_value(self) -> Any:
        """Return the batch.

        Raises:
            DataExhaustedError: there is no batch.
        """
        if not self.batches:
            raise DataExhaustedError(
                "the given optional does not have a value: the data has ended. Ask optional.has_value() first"
            )
        return self.batches[0]
