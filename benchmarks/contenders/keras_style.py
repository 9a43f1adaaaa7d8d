"""The programs of `programs.py` with plain Keras, or, called with `anytpu`, in the scope of eight virtual cores."""

from __future__ import annotations

import functools
import sys

if sys.argv[1:] == ["anytpu"]:
    import anytpu as tpu  # isort: skip

    strategy = tpu.connect("v2-8")
else:
    strategy = None

from programs import PROGRAMS
from worker import Train, serve


def made(name: str, steps: int) -> Train:
    if strategy is None:
        return PROGRAMS[name](steps)
    with strategy.scope():
        return PROGRAMS[name](steps)


if __name__ == "__main__":
    serve({name: functools.partial(made, name) for name in PROGRAMS})
