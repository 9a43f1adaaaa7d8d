"""Lines that list the checkpoints of a folder, and a file of the weights in one of them."""

from __future__ import annotations

import dataclasses
import datetime
from pathlib import Path
from typing import Any

from anytpu.errors import DamageError, FileError
from anytpu.pipeline.remote_file import is_url
from anytpu.report.wording import aligned, one_line
from anytpu.train.checkpoint import Checkpoints, checkpoint_at, maker_of
from anytpu.train.checkpoint.safetensors import write_safetensors
from anytpu.train.checkpoint.weights import weights_of
from anytpu.units import format_bytes


@dataclasses.dataclass(frozen=True)
class CheckpointLine:
    """A checkpoint in a list.

    Attributes:
        step: step of the checkpoint.
        saved: time when it was saved, as text.
        size_bytes: size of its files.
        state: "verified" if every digest is correct, else "damaged" or "unreadable", such as one of a newer version.
        fault: the reason why it cannot be used, or None.
        maker: the run that made it.
        metrics: the metrics saved with it.
    """

    step: int
    saved: str
    size_bytes: int
    state: str
    fault: str | None
    maker: str
    metrics: dict[str, float]

    @property
    def cells(self) -> tuple[str, ...]:
        """The texts of its row."""
        metrics = ", ".join(f"{name} {value:.4g}" for name, value in self.metrics.items())
        return str(self.step), self.saved, format_bytes(self.size_bytes), self.state, self.maker, metrics


HEADINGS = ("step", "saved", "size", "state", "made by", "metrics")


def checkpoint_lines(folder: str) -> list[CheckpointLine]:
    """Read and check all checkpoints of a folder, oldest first.

    Raises:
        FileError: the folder does not exist, or cannot be read.
    """
    if not is_url(folder) and not Path(folder).is_dir():
        raise FileError(f"there is no folder {folder!r}: pass the checkpoint_dir of a fit, or a model_dir")
    checkpoints = Checkpoints(folder)
    return [_line(checkpoints, step) for step in checkpoints.numbered()]


def export_weights(folder: str, step: int | None, path: Path) -> str:
    """Write the weights in a checkpoint as a safetensors file, and return a line about it.

    Args:
        folder: the folder of the checkpoints, or of one.
        step: step of the checkpoint; None takes the newest whole one.
        path: path of the file.

    Raises:
        FileError: there is no whole checkpoint, or the file cannot be written.
    """
    checkpoint = checkpoint_at(folder) if step is None else Checkpoints(folder).load(step)
    weights = weights_of(checkpoint)
    if not weights:
        raise FileError(f"the checkpoint {checkpoint.where!r} has no weights")
    try:
        write_safetensors(path, weights, {"step": str(checkpoint.step), "made_by": maker_of(checkpoint.host)})
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"{str(path)!r} cannot be written: {error.strerror or error}") from None
    size = format_bytes(sum(array.nbytes for array in weights.values()))
    return f"{path} has the {len(weights)} weights of step {checkpoint.step}: {size}."


def table_lines(lines: list[CheckpointLine]) -> list[str]:
    """Return the lines of a table, and below it why a checkpoint cannot be used."""
    rows = [HEADINGS, *(line.cells for line in lines)]
    return [*aligned(rows), *(f"step {line.step}: {one_line(line.fault)}" for line in lines if line.fault is not None)]


def _line(checkpoints: Checkpoints, step: int) -> CheckpointLine:
    time_s, size_bytes = checkpoints.saved(step)
    saved = datetime.datetime.fromtimestamp(time_s).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    host: Any = None
    state, fault = "verified", None
    try:
        host = checkpoints.read(step).host
    except FileError as error:
        state, fault = "damaged" if isinstance(error, DamageError) else "unreadable", str(error)
    # A checkpoint may come from anybody, so its texts may have escapes of a terminal, and its values any type.
    made, metrics = _dict_in(host, "made"), _dict_in(host, "metrics")
    facts = [f"{name} {made[name]}" for name in ("model", "epoch", "cores") if name in made]
    maker = "-" if fault is not None else one_line(", ".join([maker_of(host), *facts]))
    numbers = {one_line(name): float(value) for name, value in metrics.items() if isinstance(value, int | float)}
    return CheckpointLine(step, saved, size_bytes, state, fault, maker, numbers)


def _dict_in(host: Any, name: str) -> dict[str, Any]:
    part = host.get(name) if isinstance(host, dict) else None
    return part if isinstance(part, dict) else {}
