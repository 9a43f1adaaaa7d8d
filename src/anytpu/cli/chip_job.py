"""The job of `anytpu chip compile`: a program file, or the value that a function in the user's file returns."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from anytpu.cli.script import HOW, returned_by, wrong
from anytpu.errors import SettingError

_TO_COMPILE = (
    "which cannot be compiled; it must return a Keras model, a pair (model, examples), or a triple (function, "
    "examples, weights) with a JAX function outputs = function(weights, x)"
)


@dataclasses.dataclass(frozen=True)
class ChipJob:
    """A model to compile.

    Attributes:
        job: the model, function or file, as `chip.compile` takes it.
        examples: calibration examples of the job, or None.
        weights: the weights of a JAX function, or None.
    """

    job: Any
    examples: Any = None
    weights: Any = None


def chip_job(name: str) -> ChipJob:
    """Load the job of "train.py:create_model" or of a program file.

    Raises:
        SettingError: the name has another form, the function does not exist or fails, or its value cannot be compiled.
    """
    if Path(name).suffix == ".anytpu":
        return ChipJob(name)
    path, colon, function = name.rpartition(":")
    if not colon or not path:
        raise SettingError(f"name the job to compile: a function in a file, like {HOW}, or a program file, .anytpu")
    returned = returned_by(path, function)
    is_tuple = isinstance(returned, tuple) and len(returned) in (2, 3)
    job = ChipJob(*returned) if is_tuple else ChipJob(returned)
    if not _can_be_compiled(job):
        raise wrong(path, function, returned, _TO_COMPILE)
    return job


def _can_be_compiled(chosen: ChipJob) -> bool:
    from anytpu.program.makers import is_job
    from anytpu.train.makers import KERAS_MAKER

    is_function = callable(chosen.job) and not KERAS_MAKER.claims(chosen.job)
    return is_job(chosen.job) and is_function == (chosen.weights is not None)
