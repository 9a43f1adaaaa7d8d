"""oneDNN's convolutions and kernels of our own for JAX on the CPU, as foreign calls of XLA.

Idea: each module computes one operation that XLA's CPU compiler computes slowly, and reports the cases that it
supports. Nothing here changes JAX: the virtual backend of `anytpu` calls these functions when it lowers for the CPU.

Rule: float32 on one CPU device. The calls need this library, so a program that leaves the process contains none.
"""

from anytpu_kernels.columns import column_moments, column_products
from anytpu_kernels.convolution import convolution, takes_convolution
from anytpu_kernels.gru import gru_backward, gru_forward, gru_weights
from anytpu_kernels.library import onednn_version
from anytpu_kernels.lstm import lstm_backward, lstm_forward, lstm_weights
from anytpu_kernels.memory import use_huge_pages
from anytpu_kernels.rows import row_sums, row_update

__all__ = [
    "column_moments",
    "column_products",
    "convolution",
    "gru_backward",
    "gru_forward",
    "gru_weights",
    "lstm_backward",
    "lstm_forward",
    "lstm_weights",
    "onednn_version",
    "row_sums",
    "row_update",
    "takes_convolution",
    "use_huge_pages",
]
