"""The compiled library: it is loaded once, and its kernels are registered with XLA by name."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

import jax

KERNELS = {
    "anytpu_column_moments": "AnytpuColumnMoments",
    "anytpu_column_products": "AnytpuColumnProducts",
    "anytpu_convolution": "AnytpuConvolution",
    "anytpu_gru_forward": "AnytpuGruForward",
    "anytpu_gru_backward": "AnytpuGruBackward",
    "anytpu_lstm_forward": "AnytpuLstmForward",
    "anytpu_lstm_backward": "AnytpuLstmBackward",
    "anytpu_row_sums": "AnytpuRowSums",
    "anytpu_row_update": "AnytpuRowUpdate",
    "anytpu_sequence_weights": "AnytpuSequenceWeights",
}
"""XLA's name of each kernel, and its symbol in the library."""


@functools.cache
def load() -> ctypes.CDLL:
    """Load the library and register its kernels for the CPU.

    Raises:
        OSError: this machine cannot load the library.
    """
    # RTLD_DEEPBIND: oneDNN must find the OpenMP functions of this library, also if PyTorch has loaded libgomp for the
    # whole process.
    mode = os.RTLD_LOCAL | os.RTLD_NOW | os.RTLD_DEEPBIND
    library = ctypes.CDLL(str(Path(__file__).with_name("libanytpu_kernels.so")), mode=mode)
    for name, symbol in KERNELS.items():
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, symbol)), platform="cpu")
    return library


def onednn_version() -> str:
    """Return the version of oneDNN, such as "3.2.0".

    Raises:
        OSError: this machine cannot load the library.
    """

    class Version(ctypes.Structure):
        _fields_ = [(name, ctypes.c_int) for name in ("major", "minor", "patch")]

    get_version = load().dnnl_version
    get_version.restype = ctypes.POINTER(Version)
    version = get_version().contents
    return f"{version.major}.{version.minor}.{version.patch}"
