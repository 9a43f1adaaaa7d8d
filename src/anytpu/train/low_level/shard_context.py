"""`get_tpu_context`: the number of shards, kept for programs of TensorFlow 1.

Idea: TensorFlow 1 knew the number of shards only inside `tpu.shard`. Programs that called an optimizer outside of it
set the number by hand. Here the number is that of the running cores, and setting it is only a check.

Rule: a set number belongs to its thread, and does not change any result.
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
    """The shards that the calling code runs on. All instances are equivalent."""

    @property
    def number_of_shards(self) -> int | None:
        """Number of shards that run the calling function; outside of such a function, the set number or None."""
        replica = current_replica()
        return _SET.get() if replica is None else replica.replicas

    def set_number_of_shards(self, number_of_shards: int) -> None:
        """Check the number of shards. Calling it is optional.

        Raises:
            SettingError: the number is not a positive integer, or the system in use has another number of cores.
        """
        is_number = isinstance(number_of_shards, numbers.Integral) and not isinstance(number_of_shards, bool)
        if not is_number or number_of_shards < 1:
            raise SettingError(f"number_of_shards must be a positive integer, not {number_of_shards!r}")
        replica, system = current_replica(), current_system()
        cores = replica.replicas if replica else len(system.topology.cores) if system else number_of_shards
        if number_of_shards != cores:
            raise SettingError(
                f"number_of_shards is {number_of_shards}, and {cores} core{'s' * (cores > 1)} run: remove the "
                "call, the number of shards is right without it"
            )
        _SET.set(int(number_of_shards))


def get_tpu_context() -> TPUContext:
    """Return the context of the calling code's shards.

    Example:
        >>> initialize_system(TPUClusterResolver("virtual", cores=2)).name
        '2 virtual cores'
        >>> int(rewrite(lambda: get_tpu_context().number_of_shards)[0])
        1
    """
    return TPUContext()


def is_number_set() -> bool:
    """Return whether a program has set the number of shards by hand."""
    return _SET.get() is not None
