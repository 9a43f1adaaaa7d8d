"""`get_tpu_context`: what a program could be told about its shards, and need not be any more.

Idea: TensorFlow 1 knew the number of shards only inside `tpu.shard`; programs that called an optimizer outside of it
set the number by hand. Here the number is that of the cores that run, and setting it is only a check.

Rule: the number that was set belongs to its thread, and changes nothing that is computed.
"""

from __future__ import annotations

import contextvars
import numbers
from typing import final

from anytpu.errors import SettingError
from anytpu.strategy.replicas import current_replica
from anytpu.system.lifecycle import current_system

_SET: contextvars.ContextVar[int | None] = contextvars.ContextVar("number_of_shards", default=None)


@final
class TPUContext:
    """The shards that the calling code runs on. All instances are the same."""

    @property
    def number_of_shards(self) -> int | None:
        """The number of shards that run the calling function together; outside, the number that was set, or None."""
        replica = current_replica()
        return _SET.get() if replica is None else replica.replicas

    def set_number_of_shards(self, number_of_shards: int) -> None:
        """Check that there are so many shards; it need not be called.

        Raises:
            SettingError: it is not a positive integer, or the system in use has another number of cores.
        """
        is_number = isinstance(number_of_shards, numbers.Integral) and not isinstance(number_of_shards, bool)
        if not is_number or number_of_shards < 1:
            raise SettingError(f"number_of_shards must be a positive integer, not {number_of_shards!r}")
        replica, system = current_replica(), current_system()
        cores = replica.replicas if replica else len(system.topology.cores) if system else number_of_shards
        if number_of_shards != cores:
            raise SettingError(
                f"number_of_shards is {number_of_shards}, and {cores} core{'s' * (cores > 1)} run: leave the call "
                "away, the number of shards is right without it"
            )
        _SET.set(int(number_of_shards))


def get_tpu_context() -> TPUContext:
    """Return what is known about the shards here.

    Example:
        >>> initialize_system(TPUClusterResolver("virtual", cores=2)).name
        '2 virtual cores'
        >>> int(rewrite(lambda: get_tpu_context().number_of_shards)[0])
        1
    """
    return TPUContext()


def is_number_set() -> bool:
    """Say whether a program has set the number of shards by hand."""
    return _SET.get() is not None
