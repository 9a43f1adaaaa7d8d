"""`connect`, which starts a TPU system in one line, and `get_strategy`, which returns the strategy in scope."""

from __future__ import annotations

from anytpu._calls import explain_arguments
from anytpu.strategy.base import Strategy
from anytpu.strategy.current import CURRENT
from anytpu.strategy.default import DefaultStrategy
from anytpu.strategy.strategy import TPUStrategy
from anytpu.system.cores import Numerics
from anytpu.system.lifecycle import initialize_tpu_system
from anytpu.system.resolver import TPUClusterResolver


@explain_arguments
def connect(
    tpu: str = "", cores: int | None = None, *, strict: bool = False, numerics: Numerics = "machine"
) -> TPUStrategy:
    """Find a TPU system, start it, and return the strategy that runs programs on all its cores.

    It may be called again at any time: strategies on the same system are interchangeable.

    Args:
        tpu: "" searches the environment variables, then for this machine's TPU, then for its GPU; otherwise it makes a
            virtual TPU from the CPU. "local" requires a real accelerator. "virtual" or a slice ("v2-8", "v5e-16") is a
            virtual TPU.
        cores: number of cores; None takes all, or 8 for a virtual TPU.
        strict: reject batches that are not divisible by the number of cores.
        numerics: "machine" computes float32 products as this machine's compiler does. "tpu" rounds the operands of
            float32 matrix products and convolutions to bfloat16, forward and backward. That is a TPU's default
            precision, so a run here shows whether a model learns there. Each setting is a separate system.

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
    """Return the strategy of the surrounding scope or step, or the default strategy with one replica in this process.

    Example:
        >>> get_strategy().num_replicas_in_sync
        1
    """
    return CURRENT.get() or _DEFAULT
