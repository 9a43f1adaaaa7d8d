"""The checksum of TFRecord files: masked CRC-32C.

Source: the TFRecord format as TensorFlow documents it. The mask rotates the CRC right by 15 bits and adds a constant. A
CRC of data that contains plain CRCs would be weak; one of data with masked CRCs is not.
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
