"""One line to a TPU: `connect`, and `get_strategy` for code that does not know where it runs."""

from __future__ import annotations

from anytpu.strategy.base import Strategy
from anytpu.strategy.current import CURRENT
from anytpu.strategy.default import DefaultStrategy
from anytpu.strategy.strategy import TPUStrategy
from anytpu.system.cores import Numerics
from anytpu.system.lifecycle import initialize_tpu_system
from anytpu.system.resolver import TPUClusterResolver


def connect(
    tpu: str = "", cores: int | None = None, *, strict: bool = False, numerics: Numerics = "machine"
) -> TPUStrategy:
    """Find a TPU system, start it, and return the strategy that spreads programs over all its cores.

    It may be called again at any time: strategies on the same system are interchangeable.

    Args:
        tpu: "" looks in the environment, then for this machine's TPU, then for its GPU, and makes a virtual TPU of the
            CPU otherwise. "local" wants a real accelerator; "virtual" or a slice ("v2-8", "v5e-16") a virtual TPU.
        cores: how many cores; None takes all there are, 8 of a virtual TPU.
        strict: refuse batches that the cores do not divide.
        numerics: "machine" computes float32 products as this machine's compiler does. "tpu" rounds the operands of
            float32 matrix products and convolutions to bfloat16, forward and backward, as a TPU does unless it is asked
            for more, so that one sees here whether a model learns there. A system of each kind is another system.

    Raises:
        SettingError: `cores` or `numerics` is none of these.
        UnknownTPUError: there is no TPU of that name.
        TPUNotFoundError: "local", and this machine has no accelerator.

    Example:
        >>> connect("virtual", cores=3).num_replicas_in_sync
        3
    """
    resolver = TPUClusterResolver(tpu, cores=cores, numerics=numerics)
    initialize_tpu_system(resolver)
    return TPUStrategy(resolver, strict=strict)


_DEFAULT = DefaultStrategy()


def get_strategy() -> Strategy:
    """Return the strategy whose scope or step the caller is in, or the default one: one replica, where the process
    stands.

    Example:
        >>> get_strategy().num_replicas_in_sync
        1
    """
    return CURRENT.get() or _DEFAULT
