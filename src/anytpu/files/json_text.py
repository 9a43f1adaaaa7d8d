"""`read_json`: the one reader of JSON that comes from a file.

Idea: JSON takes far more memory as Python values than as text: `[]` is 2 bytes, and 64 as a list. A compressed part of
100 KB can so become gigabytes. The values are counted and their depth is measured in the text, before it is parsed.

Rule: a text has at most one value for each 16 bytes of its maximum size. Its values then take at most about six times
that size. Nesting is limited too: each later walk over the values is recursive.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from anytpu.units import MIB

MAX_JSON_BYTES = 16 * MIB
"""Maximum size of a JSON text, unless a caller sets another: the manifest of a program of 80,000 arrays."""

MAX_DEPTH = 200
"""Maximum nesting of objects and lists."""

_BYTES_PER_VALUE = 16
_ESCAPED = re.compile(r"\\.", re.DOTALL)
_QUOTED = re.compile(r'"[^"]*"')
_PLAIN = re.compile(r"[^][{},]+")
_DEEPER, _LESS_DEEP = np.frombuffer(b"[{", np.uint8), np.frombuffer(b"]}", np.uint8)


def read_json(content: bytes | str, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """Parse a JSON text.

    Args:
        content: the text; bytes are UTF-8.
        max_bytes: maximum size; it also sets the maximum number of values, one for each 16 bytes.

    Raises:
        ValueError: it is too large, has too many values, nests too deeply, or is not JSON; a sentence about "it".

    Example:
        >>> read_json(b'{"a": [1, 2]}')
        {'a': [1, 2]}
        >>> read_json("[" * 1000)
        Traceback (most recent call last):
        ValueError: it nests too deeply
    """
    check_json(content, max_bytes)
    try:
        return json.loads(content if isinstance(content, str) else content.decode("utf-8-sig"))
    except RecursionError:  # A deep caller leaves less room than `MAX_DEPTH` needs.
        raise ValueError("it nests too deeply") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except ValueError:  # Python reads no integers of more than some thousand digits.
        raise ValueError("it has a number of too many digits") from None


def check_json(content: bytes | str, max_bytes: int = MAX_JSON_BYTES) -> None:
    """Check that `read_json` accepts a text of this size, number of values and depth; a writer calls it too.

    Raises:
        ValueError: it does not; a sentence about "it".
    """
    if len(content) > max_bytes:
        raise ValueError(f"it has {len(content):,} bytes, and {max_bytes:,} is the most that it can have")
    text = content if isinstance(content, str) else content.decode("latin-1")
    max_values, opened = max_bytes // _BYTES_PER_VALUE, text.count("[") + text.count("{")
    if opened <= MAX_DEPTH and opened + text.count(",") < max_values:
        return
    # Of the text only the brackets and commas outside of strings are left.
    structure = _PLAIN.sub("", _QUOTED.sub("", _ESCAPED.sub("", text)))
    filled = structure.count("[") + structure.count("{") - structure.count("[]") - structure.count("{}")
    values = 1 + filled + structure.count(",")
    if values > max_values:
        raise ValueError(f"it has {values:,} values, and {max_values:,} is the most that it can have")
    signs = np.frombuffer(structure.encode("ascii"), np.uint8)
    steps = np.isin(signs, _DEEPER).astype(np.int32) - np.isin(signs, _LESS_DEEP)
    if len(steps) and np.cumsum(steps).max() > MAX_DEPTH:
        raise ValueError("it nests too deeply")
