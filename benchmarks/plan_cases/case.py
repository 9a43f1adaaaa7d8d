"""`Case`: one published measurement of a TPU and the program that was measured, written again.

Idea: what a time model is worth shows on programs that somebody ran and timed. Each case says where the number was
published, how the step time follows from what was printed there, and how the program is made again so that the TPU's
compiler can compile it on a machine without one.

Rule: nothing of a case is fitted. Shapes, types, optimizer, sharding and rematerialisation are those of the recipe;
where today's compiler or our writing differs from it, `differs` says so.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

Kind = Literal["step", "matmul", "copy", "collective"]

Built = tuple[Callable[[Any, Any], tuple[Any, Any]], tuple[Any, Any]]
"""A step `(state, batch) -> (state, outputs)`, and the specs (state, batch) that it takes."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A published measurement, and the program that it is of.

    Attributes:
        name: "resnet50_v2-8".
        family: cases of one program and one software stack; leave-family-out leaves all of them out.
        kind: "step" for a training step, else what the micro-benchmark is of.
        target: the slice: "v2-8"; "v4-16:cores" for one whose chips' two cores are devices of their own.
        measured_s: what was measured, seconds.
        arithmetic: how `measured_s` follows from what was published.
        source: repository, file and section.
        trust: "A" for a log with code and configuration, "B" for a table with them, "C" for a claim.
        build: makes the step and its specs; specs with shardings name the axes of an abstract mesh.
        options: the compiler's options that the recipe set and that change the program.
        steps_per_execution: steps that one call to the device ran.
        timed_on: "device" where a profiler timed the device, "host" where a clock on the host did.
        stack: the software that ran: "TF 1.12".
        year: the year of that software's compiler.
        differs: what is not as it was, and what that may do to the time.
        is_judged_only: whether the fit leaves it out, because a branch is counted at its longest.
    """

    name: str
    family: str
    kind: Kind
    target: str
    measured_s: float
    arithmetic: str
    source: str
    trust: Literal["A", "B", "C"]
    build: Callable[[], Built]
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    steps_per_execution: int = 1
    timed_on: Literal["host", "device"] = "host"
    stack: str = ""
    year: int = 0
    differs: str = ""
    is_judged_only: bool = False

    @property
    def generation(self) -> str:
        """The chip: "v5e"."""
        return re.findall(r"v\d[a-z]?", self.target)[0]
