"""`Shardings`: the layouts of a job over a system, ranked, with the reason for each that was not compiled."""

from __future__ import annotations

import collections
import dataclasses
import math
import re
from typing import Any, ClassVar, Literal

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

from anytpu import units
from anytpu.errors import SettingError
from anytpu.planning.records.prediction import Prediction, memory_text, step_text
from anytpu.planning.records.shown import ShownRecord
from anytpu.planning.records.target import Stage, Target
from anytpu.program.placed import axes_text, partition_of
from anytpu.sharding import ModelLayout
from anytpu.sharding.searched import to_record

_SHOWN_WEIGHTS = 3

Rank = Literal["time", "cost"]
"""Order of shardings: by the time of an example, or by its cost."""


@dataclasses.dataclass(frozen=True)
class Sharding:
    """One layout of a job on one system.

    Attributes:
        layout: the layout; `tpu.connect` and `tpu.plan` take it.
        target: the system.
        estimate_s: time of a step from FLOPs, bytes and collectives alone, seconds; a rank, not a forecast.
        state_bytes: state and batch of one device, bytes.
        prediction: the prediction by the TPU compiler; None if it was not compiled.
        reason: why it was not compiled, or does not fit, a sentence; "" otherwise.
        remat_code: for a layout with rematerialisation, what the user writes to get it without anytpu, a sentence.
        stage: "code" if it was compiled completely, "schedule" if only up to its schedule; "" if it was not compiled.
    """

    layout: ModelLayout
    target: Target
    estimate_s: float
    state_bytes: int
    prediction: Prediction | None = None
    reason: str = ""
    remat_code: str = ""
    stage: Stage | Literal[""] = ""

    @property
    def step_s(self) -> float | None:
        """Predicted time of a step, seconds; None if it was not compiled or does not fit."""
        return self.prediction.step_s if self.prediction else None

    @property
    def title(self) -> str:
        """The layout, its mesh and its rematerialisation as text: "fsdp (data=8), rematerialised (by block)"."""
        remat = f", rematerialised ({self.layout.remat})" if self.layout.remat else ""
        return f"{self.layout.name} ({self.mesh}){remat}"

    @property
    def mesh(self) -> str:
        """The mesh as text: "data=4, model=2"."""
        return axes_text(self.layout.axes)

    @property
    def network_share(self) -> float | None:
        """Share of the step that devices wait for each other's data, from 0 to 1; None without a time."""
        if self.prediction is None or self.prediction.time is None:
            return None
        time = self.prediction.time
        total_s = sum(op.time_s for op in time.ops)
        return sum(op.time_s for op in time.ops if op.bound == "network") / total_s if total_s else 0.0

    @property
    def bound(self) -> str:
        """The kind of operation that takes most of the step, as `Kind` names it; "" without a time."""
        if self.prediction is None or self.prediction.time is None:
            return ""
        return next(iter(self.prediction.time.by(lambda op: "network" if op.kind == "collective" else op.kind)), "")

    @property
    def split(self) -> str:
        """The split arrays as text: "examples over data; 12 arrays over model"."""
        counts: collections.Counter[str] = collections.Counter()
        for spec in self.layout.specs.values():
            counts.update({part for parts in spec for part in parts})
        inner = [f"axis {axis} of the batch over {'+'.join(parts)}" for axis, parts in self.layout.inner.items()]
        arrays = [f"{count} {'array' if count == 1 else 'arrays'} over {part}" for part, count in counts.items()]
        sizes = dict(self.layout.axes)
        rows = [axis for axis in self.layout.row_axes if sizes[axis] > 1]
        examples = f"examples over {'+'.join(rows)}" if rows else "all examples on each device"
        return "; ".join([examples, *inner, *arrays, *self._largest()])

    def _largest(self) -> list[str]:
        """Return the partitions of the largest split weights as text."""
        layout = self.layout
        sizes = {name: math.prod(layout.shapes.get(name, ())) for name in layout.patterns}
        largest = sorted(sizes, key=lambda name: -sizes[name])[:_SHOWN_WEIGHTS]
        return [f"{name} {tuple(partition_of(layout.specs[name]))}" for name in largest]

    def to_record(self) -> dict[str, Any]:
        """Return every field as JSON values."""
        return {
            "layout": to_record(self.layout),
            "tpu": self.target.name,
            "split": self.split,
            "estimate_s": self.estimate_s,
            "state_bytes": self.state_bytes,
            "reason": self.reason,
            "remat_code": self.remat_code,
            "stage": self.stage,
            "prediction": self.prediction.to_record() if self.prediction else None,
        }


@dataclasses.dataclass(frozen=True)
class Shardings(ShownRecord):
    """The layouts of a job, best first: compiled ones that fit, then the others by their estimate.

    Attributes:
        job: name of the job.
        candidates: the layouts.
        rank: what the compiled ones are ordered by.
        notes: further notes, a sentence each.

    Example:
        >>> found = tpu.find_layouts(model, tpu="v5e-8", batch_size=64)  # doctest: +SKIP
        >>> found.best.layout.name, found.best.step_s  # doctest: +SKIP
        ('fsdp', 0.0761)
    """

    report_name: ClassVar = "shardings"
    noun: ClassVar = "the layouts"

    job: str
    candidates: tuple[Sharding, ...]
    rank: Rank = "time"
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Return two lines: the best layout, and the method that prints the rest."""
        compiled = [candidate for candidate in self.candidates if candidate.prediction is not None]
        best = f"none of {len(compiled)} compiled layouts fits"
        if self._best is not None and self._best.prediction is not None:
            prediction = self._best.prediction
            memory = f", {memory_text(prediction.memory)}" if prediction.memory else ""
            best = f"{self._best.title} {step_text(prediction)}{memory}"
        return (
            f"<Shardings of {self.job}: {best}; {len(compiled)} of {len(self.candidates)} layouts compiled.\n"
            "found.show() prints them.>"
        )

    def __iter__(self) -> Any:
        return iter(self.candidates)

    def __len__(self) -> int:
        return len(self.candidates)

    @property
    def _best(self) -> Sharding | None:
        return next((candidate for candidate in self.candidates if candidate.step_s is not None), None)

    @property
    def best(self) -> Sharding:
        """The first layout that was compiled and fits.

        Raises:
            SettingError: none fits; the message says how much memory the smallest needs, and what holds it.
        """
        if self._best is None:
            compiled = sum(candidate.prediction is not None for candidate in self.candidates)
            said = "fits" if not compiled or compiled == len(self.candidates) else f"fits of the {compiled} compiled"
            raise SettingError(" ".join([f"no layout of {self.job} {said}.", *self.notes]))
        return self._best

    @property
    def layout(self) -> ModelLayout:
        """The layout of the best: `tpu.connect(..., layout=found)` uses it."""
        return self.best.layout

    def shardings(self, mesh: Any = None) -> dict[str, NamedSharding]:
        """Return the sharding of each array of the state by its name, for JAX code.

        Args:
            mesh: a `jax.sharding.Mesh` or `AbstractMesh` with the axes of the layout; None: an abstract one, which
                names no devices.

        Raises:
            SettingError: `mesh` is no mesh, or has other axes.

        Example:
            >>> found.shardings()["dense/kernel"].spec  # doctest: +SKIP
            PartitionSpec(None, 'data')
            >>> mesh = jax.make_mesh((8,), ("data",))  # doctest: +SKIP
            >>> jax.device_put(kernel, found.shardings(mesh)["dense/kernel"])  # doctest: +SKIP
        """
        names, sizes = zip(*self.layout.axes, strict=True)
        if mesh is None:
            mesh = AbstractMesh(sizes, names, (AxisType.Auto,) * len(names))
        if not isinstance(mesh, AbstractMesh | Mesh):
            raise SettingError(f"mesh must be a jax.sharding.Mesh, not {type(mesh).__name__}")
        if dict(mesh.shape) != dict(self.layout.axes):
            found = axes_text(list(mesh.shape.items()))
            raise SettingError(
                f"the layout is over the mesh {axes_text(self.layout.axes)}, not over {found}: make it with "
                f"jax.make_mesh({sizes!r}, {names!r})"
            )
        return {name: NamedSharding(mesh, partition_of(spec)) for name, spec in self.layout.specs.items()}

    def layout_map(self, device_mesh: Any = None) -> Any:
        """Return the weights' partitions as a `keras.distribution.LayoutMap`, to use with Keras alone.

        Args:
            device_mesh: a `keras.distribution.DeviceMesh` with the axes of the layout; None makes one of this machine's
                devices.

        Raises:
            SettingError: this machine has another number of devices, or the mesh has other axes.

        Example:
            >>> parallel = keras.distribution.ModelParallel(layout_map=found.layout_map())  # doctest: +SKIP
            >>> keras.distribution.set_distribution(parallel)  # doctest: +SKIP
        """
        import keras

        axes = dict(self.layout.axes)
        if device_mesh is None:
            device_mesh = keras.distribution.DeviceMesh(tuple(axes.values()), list(axes), self._keras_devices())
        if not isinstance(device_mesh, keras.distribution.DeviceMesh):
            raise SettingError(f"device_mesh must be a keras.distribution.DeviceMesh, not {type(device_mesh).__name__}")
        if dict(zip(device_mesh.axis_names, map(int, device_mesh.shape), strict=True)) != axes:
            raise SettingError(f"the layout is over the mesh {axes_text(self.layout.axes)}, not over {device_mesh!r}")
        mapping = keras.distribution.LayoutMap(device_mesh)
        for name in self.layout.patterns:
            spec = self.layout.specs[name]
            # Keras searches its keys in names, where "dense/kernel" would match "my_dense/kernel" too.
            mapping[f"^{re.escape(name)}$"] = tuple(partition_of(spec))
        return mapping

    def _keras_devices(self) -> list[str]:
        devices = [f"{device.platform}:{device.id}" for device in jax.devices()]
        if len(devices) != self.layout.devices:
            raise SettingError(
                f"the layout is for {self.layout.devices} devices, and this machine has {len(devices)}. Call "
                "layout_map() there, or pass a keras.distribution.DeviceMesh"
            )
        return devices

    def to_record(self) -> dict[str, Any]:
        """Return every field as JSON values."""
        return {
            "format": 1,
            "job": self.job,
            "rank": self.rank,
            "notes": list(self.notes),
            "candidates": [candidate.to_record() for candidate in self.candidates],
        }


def missing_memory(candidate: Sharding, limit_bytes: int) -> str:
    """Return a sentence on the memory that a layout lacks."""
    memory = candidate.prediction.memory if candidate.prediction else None
    needed = memory.peak_bytes if memory else candidate.state_bytes
    least = "" if memory else "at least "
    return (
        f"it needs {least}{units.format_bytes(needed)} a device, and {candidate.target.name} has "
        f"{units.format_bytes(limit_bytes)}: {units.format_bytes(needed - limit_bytes)} are missing."
    )
