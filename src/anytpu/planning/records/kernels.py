"""`KernelCheck`: a Pallas kernel beside its reference, and compiled for several chips."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar

from anytpu.errors import SettingError
from anytpu.planning.records.shown import ShownRecord
from anytpu.planning.records.target import Target


@dataclasses.dataclass(frozen=True)
class KernelGrid:
    """One `pallas_call` of a kernel.

    Attributes:
        name: name of the function of its body, with its line: "body at kernel.py:7".
        grid: number of steps along each axis; None for one that is known only at run time.
    """

    name: str
    grid: tuple[int | None, ...]


@dataclasses.dataclass(frozen=True)
class KernelComparison:
    """A kernel in TPU interpret mode beside its reference.

    Attributes:
        error: largest difference from the reference, as a share of the largest value of that output.
        tolerance: largest share that is no fault.
        fault: the fault, a sentence; "" if there is none.
        seconds: time that the interpreter took, seconds: no prediction of the TPU's time.
    """

    error: float
    tolerance: float
    fault: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class KernelOnChip:
    """A kernel compiled for one chip.

    Attributes:
        target: the system.
        time_s: predicted time of its `pallas_call`s on one device, seconds; None if it was not compiled.
        interval_s: interval of `time_s`, seconds.
        is_floor: whether `time_s` is only a lower bound, because the number of iterations of a loop is not known.
        other_s: predicted time of the operations around the `pallas_call`s, such as a transposition, seconds.
        vmem_bytes: most VMEM that a `pallas_call` takes, bytes; None if it was not compiled.
        bound: the unit that limits it: "memory", "matrix units", or "".
        reason: why the compiler refused it, a sentence; "" if it did not.
        advice: the change to try, a sentence; "" if there is none.
        said: the compiler's whole message, or "".
    """

    target: Target
    time_s: float | None = None
    interval_s: tuple[float, float] | None = None
    is_floor: bool = False
    other_s: float = 0.0
    vmem_bytes: int | None = None
    bound: str = ""
    reason: str = ""
    advice: str = ""
    said: str = ""

    def to_record(self) -> dict[str, Any]:
        """Return every field as JSON values."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return fields | {"target": self.target.name}


@dataclasses.dataclass(frozen=True)
class KernelCheck(ShownRecord):
    """The check of a kernel.

    Attributes:
        name: name of the kernel.
        inputs: its inputs, "f32[512,512], f32[512,512]".
        grids: its `pallas_call`s.
        comparison: its results beside those of the reference; None without a reference.
        chips: the kernel on each system.

    Example:
        >>> check = tpu.check_kernel(matmul, (x, y), jnp.dot)  # doctest: +SKIP
        >>> check.passed, check["v5e-1"].vmem_bytes  # doctest: +SKIP
        (True, 8519680)
    """

    report_name: ClassVar = "kernel"
    noun: ClassVar = "the check"

    name: str
    inputs: str
    grids: tuple[KernelGrid, ...]
    comparison: KernelComparison | None
    chips: tuple[KernelOnChip, ...]

    @property
    def passed(self) -> bool:
        """Whether each chip compiles it, and its results are those of the reference, if there is one."""
        return not any(chip.reason for chip in self.chips) and not (self.comparison and self.comparison.fault)

    def __iter__(self) -> Iterator[KernelOnChip]:
        """Return an iterator over the systems."""
        return iter(self.chips)

    def __getitem__(self, tpu: str) -> KernelOnChip:
        """Return the kernel on a system, by its name.

        Raises:
            SettingError: the kernel was not compiled for it; the message lists the systems.
        """
        for chip in self.chips:
            if chip.target.name == tpu:
                return chip
        raise SettingError(
            f"no system is named {tpu!r}; the kernel was compiled for "
            f"{', '.join(chip.target.name for chip in self.chips)}"
        )

    def __repr__(self) -> str:
        """Return one line: whether the check passed, and how to see it."""
        failed = [chip.target.name for chip in self.chips if chip.reason]
        wrong = ["its results are wrong"] if self.comparison and self.comparison.fault else []
        faults = [f"it does not compile for {', '.join(failed)}"] if failed else []
        state = "passed" if self.passed else " and ".join([*wrong, *faults])
        return f"<KernelCheck of {self.name}: {state}; check.show() prints it>"

    def to_record(self) -> dict[str, Any]:
        """Return every field as JSON values."""
        return {
            "format": 1,
            "name": self.name,
            "inputs": self.inputs,
            "passed": self.passed,
            "grids": [dataclasses.asdict(grid) for grid in self.grids],
            "comparison": None if self.comparison is None else dataclasses.asdict(self.comparison),
            "chips": [chip.to_record() for chip in self.chips],
        }
