"""`RunRecord`: the record of a run in a folder: run.json says what runs where, metrics.jsonl has a line for each point.

Idea: metrics.jsonl only grows, by one whole line in one write. So a process that is killed loses at most its last
line, and a reader never waits. A line is a point (`step`, `loss`, ...) or an event (`event`, `step`, ...).

Rule: a run that begins again at a step writes the event "began". Points of later steps that stand before this event
are replaced: readers leave them out. Nothing is deleted.

Rule: a record never ends a training, and changes no file that is not a record. If it must end, one warning says why.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import importlib.metadata
import json
import math
import os
import platform
import socket
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from anytpu import _env
from anytpu._calls import explain_methods
from anytpu.errors import FileError, SettingError
from anytpu.files.json_text import read_json
from anytpu.files.replacing import write_text

FORMAT = 1
LINES_NAME, ABOUT_NAME = "metrics.jsonl", "run.json"

_PACKAGES = ("anytpu", "jax", "jaxlib", "keras", "numpy")
_TRIES, _PAUSE_S = 20, 0.05
MAX_LINE_BYTES = 2**18
_BEGAN = b'{"event":"began"'
_FOREIGN = "{} there is not of a record of a run; name another run_dir"
_KEPT_LOSSES, _MIN_LOSSES, _SPIKE, _MAX_WAITING = 20, 5, 3.0, 1000


@explain_methods
class RunRecord:
    """The record of a run, for a training loop of your own. `fit(..., run_dir="run7")` writes one by itself.

    Args:
        folder: the folder of the run, which is made. A record that is there is continued.
        settings: settings of the run by name, such as the learning rate; shown in reports.

    Raises:
        SettingError: `folder` is not the path of a folder of this machine.

    Example:
        >>> with RunRecord("run8", settings={"learning rate": 0.1}) as record:
        ...     for step in range(1, 4):
        ...         record.log(step, loss=1 / step, examples=64)
        >>> from anytpu.train.record import RunReader
        >>> [point["loss"] for point in RunReader("run8").points]
        [1.0, 0.5, 0.3333333333333333]
    """

    def __init__(self, folder: str | os.PathLike, *, settings: Mapping[str, Any] | None = None) -> None:
        if not isinstance(folder, str | os.PathLike) or not os.fspath(folder) or "://" in os.fspath(folder):
            raise SettingError(f"the record of a run needs the path of a folder of this machine, not {folder!r}")
        self.folder = Path(folder)
        self._settings = {str(name): value for name, value in (settings or {}).items()}
        self._descriptor: int | None = None
        self._has_begun = self._has_failed = self._is_over = False
        self._bad: set[str] = set()
        self._losses: deque[float] = deque(maxlen=_KEPT_LOSSES)
        self._waiting: deque[tuple[dict[str, Any], dict[str, Any]]] = deque()
        self._logged, self._step = (0, 0.0), 0

    def __enter__(self) -> RunRecord:
        """Return the record."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
        """Close the record; an error that ends the block is written down."""
        self.close(error)

    def log(self, step: int, *, epoch: int | None = None, examples: int | None = None, **metrics: Any) -> None:
        """Write a point. A value that is still being computed is written when it is there.

        So a call does not wait for a device, unless it is more than 1,000 points behind.

        Args:
            step: number of steps that ran, counted from the beginning of the run.
            epoch: number of the epoch, from 1.
            examples: number of examples since the last point, for the rate.
            **metrics: numbers by name, or arrays of shape (); the loss is `loss`.
        """
        with self.warned():
            is_first, step = not self._has_begun, int(step)
            if is_first:
                self.begin(max(step - 1, 0))
            if self._descriptor is None or self._has_failed:
                return
            (last_step, last_s), now = self._logged, time.perf_counter()
            self._logged = (step, now)
            point: dict[str, Any] = {"step": step, "time": time.time()}
            if epoch is not None:
                point["epoch"] = int(epoch)
            if step > last_step and not is_first:
                point |= {"steps": step - last_step, "step_s": (now - last_s) / (step - last_step)}
                if examples is not None:
                    point["examples_per_s"] = examples / (now - last_s)
            self._waiting.append((point, metrics))
            self._write_ready(limit=_MAX_WAITING)

    def begin(self, step: int, about: Mapping[str, Any] | None = None) -> None:
        """Open the files. Points of later steps than `step` that are there already are replaced.

        Args:
            step: number of steps that ran before.
            about: more facts for run.json.
        """
        self._has_begun, self._logged = True, (step, time.perf_counter())
        with self.warned():
            self.folder.mkdir(parents=True, exist_ok=True)
            path, before = self.folder / ABOUT_NAME, read_about(self.folder)
            if path.exists() and "format" not in before:
                raise FileError(_FOREIGN.format(ABOUT_NAME))
            began = before.get("began", _now())
            fields = {"format": FORMAT, "began": began, "begun_again": _now(), **_machine(), "settings": self._settings}
            self._descriptor = _opened(self.folder / LINES_NAME)
            write_text(path, json.dumps({**fields, **(about or {})}, indent=1, default=str))
            size = os.fstat(self._descriptor).st_size
            if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
                os.write(self._descriptor, b"\n")  # A process was killed within a line.
        self.event("began", step)

    def event(self, name: str, step: int, **fields: Any) -> None:
        """Write an event at a step."""
        self.write({"event": name, "step": step, "time": time.time(), **fields})

    def point(
        self, point: Mapping[str, Any], metrics: Mapping[str, Any], where: Callable[[str], str] | None = None
    ) -> None:
        """Write a point whose values are there, and events for values that are not finite and for a loss that jumps.

        Args:
            point: the step, times and rates.
            metrics: numbers by name; values of other kinds are left out.
            where: returns the step at which a metric was not finite first. It is asked only if there is an event.
        """
        with self.warned():
            finite = self.finite(point["step"], metrics, where)
            loss = finite.pop("loss", None)
            self.write({**point, "loss": loss, "metrics": finite})
            if loss is None:
                return
            usual = sorted(self._losses)[len(self._losses) // 2] if len(self._losses) >= _MIN_LOSSES else 0.0
            if loss > _SPIKE * usual > 0:
                last, steps = point["step"], point.get("steps", 1)
                steps_meant = f"steps {last - steps + 1} to {last}" if steps > 1 else f"step {last}"
                self.event("spike", last, loss=loss, usual=usual, where=steps_meant)
            self._losses.append(loss)

    def finite(self, step: int, metrics: Any, where: Callable[[str], str] | None = None) -> dict[str, float | None]:
        """Return the numbers, None for those that are not finite; write an event when one ceases to be finite."""
        values: dict[str, float | None] = {}
        for name, value in metrics.items() if isinstance(metrics, Mapping) else ():
            if not isinstance(value, str | bytes) and getattr(value, "shape", ()) == ():
                with contextlib.suppress(TypeError, ValueError):
                    values[name] = number if math.isfinite(number := float(value)) else None
        for name, value in values.items():
            if value is None and name not in self._bad:
                self.event("not finite", step, names=[name], where=where(name) if where else "")
        self._bad = {name for name in self._bad | values.keys() if values.get(name) is None}
        return values

    def write(self, line: Mapping[str, Any]) -> None:
        """Write a line, unless the record ended."""
        if self._descriptor is None or self._has_failed:
            return
        self._step = line["step"]
        with self.warned():
            content = json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n"
            if len(content) > MAX_LINE_BYTES:
                raise FileError(f"a line has {len(content):,} bytes, of at most {MAX_LINE_BYTES:,}")
            if os.write(self._descriptor, content) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self, error: BaseException | None = None) -> None:
        """Write what is still being computed, and how the run ended: with an error or None. Close the files."""
        if self._is_over:
            return
        self._is_over = True
        with contextlib.suppress(Exception) if error is not None else self.warned():
            self._write_ready()
        how = "ended" if error is None else "failed" if isinstance(error, Exception) else "stopped"
        reason = {} if error is None else {"reason": f"{type(error).__name__}: {error}"[:500]}
        if self._descriptor is not None:
            with contextlib.suppress(Exception):  # The disk may have room again, and its last line has no end.
                if self._has_failed:
                    os.write(self._descriptor, b"\n")
                self._has_failed = False
            self.event(how, self._step, **reason)
            with contextlib.suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # A child of this process may have the file open.
            os.close(self._descriptor)
            self._descriptor = None

    def _write_ready(self, limit: int = 0) -> None:
        """Write the points whose values are computed; wait for the oldest while more than `limit` are not."""
        while self._waiting:
            point, metrics = self._waiting[0]
            if not all(map(_is_ready, metrics.values())) and len(self._waiting) <= limit:
                return
            self._waiting.popleft()
            self.point(point, metrics)

    @contextlib.contextmanager
    def warned(self) -> Iterator[None]:
        """Return a context whose errors end the record, with a warning."""
        try:
            yield
        except Exception as error:
            self._has_failed = True  # The lock stays: the run is alive.
            self._waiting.clear()
            reason = str(getattr(error, "strerror", None) or error).rstrip(".")
            warnings.warn(
                f"The record of the run in {str(self.folder)!r} cannot be written: {reason}. "
                "It gets no more lines; the training goes on.",
                stacklevel=4,
            )


def read_about(folder: Path) -> dict[str, Any]:
    """Return the content of run.json; nothing if it is missing or damaged.

    Raises:
        FileError: a newer release wrote it.
    """
    try:
        about = read_json((folder / ABOUT_NAME).read_bytes())
    except (FileNotFoundError, ValueError):
        about = None
    about = about if isinstance(about, dict) else {}
    number = about.get("format")
    if isinstance(number, int) and number > FORMAT:
        raise FileError(f"run.json is of format {number}, and this release of anytpu knows formats up to {FORMAT}")
    return about


def _opened(path: Path) -> int:
    """Open a file to append to, with the lock that shows readers that the run is alive."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    for _ in range(_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # A reader holds it for a moment.
            time.sleep(_PAUSE_S)
            continue
        except OSError:  # A file system without locks.
            pass
        if _BEGAN.startswith(os.pread(descriptor, len(_BEGAN), 0).partition(b"\n")[0]):
            return descriptor
        os.close(descriptor)
        raise FileError(_FOREIGN.format(path.name))
    os.close(descriptor)
    raise FileError("another run writes to it")


def _is_ready(value: Any) -> bool:
    # `is_ready` of a deleted array of JAX ends the process; `float` of it is an error.
    is_deleted = hasattr(value, "is_deleted") and value.is_deleted()
    return is_deleted or not hasattr(value, "is_ready") or value.is_ready()


def _now() -> str:
    return datetime.datetime.now().astimezone().isoformat(" ", "seconds")


def _machine() -> dict[str, Any]:
    versions = {"python": platform.python_version(), "libtpu": _env.libtpu_version()}
    versions |= {name: importlib.metadata.version(name) for name in _PACKAGES}
    machine = f"{platform.system()} {platform.release()}, {platform.machine()}, {os.cpu_count()} CPUs"
    return {"versions": {n: v for n, v in versions.items() if v}, "machine": machine, "host": socket.gethostname()}
