"""`HostLoad`: the part of one host of a slice with several: its input, the checkpoints, traffic to other slices."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class HostLoad:
    """The work of one host beside its devices.

    Attributes:
        network_bytes_per_s: peak rate of the host's network cards, one way; None if it is not known.
        examples_per_s: examples that the host supplies; None without examples or a step time. For a floor, the maximum.
        input_bytes_per_s: bytes of the batches that the host supplies; as `examples_per_s`.
        checkpoint_bytes: size of the state, which host 0 writes; None for inference.
        checkpoint_s: minimum time of that, seconds: the peak rate of the network cards; None if it is not known.
        slices_bytes: bytes that the host sends to other slices in a step; None on one slice, and for a floor.
    """

    network_bytes_per_s: float | None
    examples_per_s: float | None = None
    input_bytes_per_s: float | None = None
    checkpoint_bytes: int | None = None
    checkpoint_s: float | None = None
    slices_bytes: float | None = None

    @property
    def input_share(self) -> float | None:
        """Share of the network cards' peak rate that the input takes."""
        if self.input_bytes_per_s is None or self.network_bytes_per_s is None:
            return None
        return self.input_bytes_per_s / self.network_bytes_per_s
