"""What `anytpu chip compile` was told to compile: a program file, or what a function of the user's file returns."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from anytpu.cli.script import HOW, returned_by, wrong
from anytpu.errors import SettingError

_TO_COMPILE = (
    "of which nothing can be compiled; it must return a Keras model, a pair (model, examples), or a triple (function, "
    "examples, weights) with a JAX function outputs = function(weights, x)"
)


@dataclasses.dataclass(frozen=True)
class ChipJob:
    """What is compiled.

    Attributes:
        job: as `chip.compile` takes it.
        examples: that came with it, for the ranges of its numbers, or None.
        weights: of a JAX function, or None.
    """

    job: Any
    examples: Any = None
    weights: Any = None


def chip_job(name: str) -> ChipJob:
    """Return what was named: "train.py:create_model", or a program file.

    Raises:
        SettingError: it is neither, there is no such function, it fails, or what it returns cannot be compiled.
    """
    if Path(name).suffix == ".anytpu":
        return ChipJob(name)
    path, colon, function = name.rpartition(":")
    if not colon or not path:
        raise SettingError(f"name what to compile: a function of a file, like {HOW}, or a program file, .anytpu")
    returned = returned_by(path, function)
    several = isinstance(returned, tuple) and len(returned) in (2, 3)
    found = ChipJob(*returned) if several else ChipJob(returned)
    if not _can_be_compiled(found):
        raise wrong(path, function, returned, _TO_COMPILE)
    return found


def _can_be_compiled(found: ChipJob) -> bool:
    from anytpu.program.makers import is_job
    from anytpu.train.makers import KERAS_MAKER

    is_function = callable(found.job) and not KERAS_MAKER.claims(found.job)
    return is_job(found.job) and is_function == (found.weights is not None)
