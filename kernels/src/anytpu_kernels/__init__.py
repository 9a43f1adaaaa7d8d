"""oneDNN's convolutions and kernels of our own for JAX on the CPU, as foreign calls of XLA.

Idea: each module computes one thing that XLA's CPU compiler computes slowly, says what it takes, and leaves the rest
to whoever asks. Nothing here changes JAX: `anytpu` asks for it where its virtual backend lowers for the CPU.

Rule: float32 on one CPU device, outside of tracing for anything that travels.
"""

from anytpu_kernels.convolution import convolution, takes_convolution
from anytpu_kernels.library import onednn_version
from anytpu_kernels.lstm import lstm_backward, lstm_forward, lstm_weights
from anytpu_kernels.memory import use_huge_pages

__all__ = [
    "convolution",
    "lstm_backward",
    "lstm_forward",
    "lstm_weights",
    "onednn_version",
    "takes_convolution",
    "use_huge_pages",
]
