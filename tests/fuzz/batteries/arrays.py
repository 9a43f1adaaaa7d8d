"""Arrays that the command line reads: .npy and .npz files."""

from __future__ import annotations

import io

import numpy as np

from anytpu.cli.arrays import read_arrays
from fuzz.batteries.keras_files import header, npy_header
from fuzz.battery import Battery
from fuzz.damage import BYTES, ZIP, swell_member


def _npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def npys() -> list[bytes]:
    """Return .npy files of several types and orders."""
    images = np.arange(48, dtype=np.uint8).reshape(2, 4, 6)
    return [_npy(images), _npy(np.asfortranarray(images)), _npy(np.float32(3)), _npy(np.zeros((0, 3)))]


def npzs() -> list[bytes]:
    """Return .npz files, compressed and not."""
    found = []
    for write in (np.savez, np.savez_compressed):
        stream = io.BytesIO()
        write(stream, x=np.arange(1000), y=np.zeros((4, 4), np.float32))
        found.append(stream.getvalue())
    return found


BATTERIES = (
    Battery("npy", npys, read_arrays, ".npy", damage=BYTES, resealed=(npy_header,)),
    Battery("npz", npzs, read_arrays, ".npz", damage=ZIP, resealed=(header,)),
    Battery("arrays_bomb", npzs, read_arrays, ".npz", damage=(swell_member,), share=0.01, limit_s=60.0),
)
