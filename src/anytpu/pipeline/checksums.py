"""The checksum that TFRecord files use: CRC-32C, masked.

Source: the TFRecord format as TensorFlow documents it. A masked checksum is rotated right by 15 bits, plus a constant,
so that a checksum of bytes that hold checksums stays a good one.
"""

from __future__ import annotations

import google_crc32c

_MASK_DELTA = 0xA282EAD8
_32_BITS = 0xFFFFFFFF


def masked_crc32c(content: bytes) -> int:
    """Return the masked CRC-32C of some bytes.

    Example:
        >>> hex(masked_crc32c(b"123456789"))
        '0xc78ab0e5'
    """
    crc = google_crc32c.value(content)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & _32_BITS
