"""A batch that may be missing: what `iterator.get_next_as_optional()` returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from anytpu.errors import DataExhaustedError


@dataclasses.dataclass(frozen=True, slots=True)
class OptionalBatch:
    """A batch, or none where the data has ended.

    Attributes:
        batches: the batch as a tuple of one; () where there is none.
    """

    batches: tuple[Any, ...] = ()

    @classmethod
    def following(cls, iterator: Iterator[Any]) -> OptionalBatch:
        """Return the next batch of an iterator."""
        try:
            return cls((next(iterator),))
        except StopIteration:
            return cls()

    def has_value(self) -> bool:
        """Say whether there is a batch."""
        return bool(self.batches)

    def get_value(self) -> Any:
        """Return the batch.

        Raises:
            DataExhaustedError: there is none.
        """
        if not self.batches:
            raise DataExhaustedError(
                "the given optional does not have a value: the data has ended. Ask optional.has_value() first"
            )
        return self.batches[0]
