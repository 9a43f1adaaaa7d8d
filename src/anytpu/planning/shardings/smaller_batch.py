"""`largest_part`: the largest equal part of a batch that fits, with the layout that needs the least memory.

Idea: a step that fits in no layout fits with fewer examples. A part is the batch divided by an integer, so that
gradients of the parts can be accumulated to those of the batch. The memory of the compiled step says which part to
compile next.

Rule: the part that is returned was compiled and fits. The sum of the gradients that accumulation keeps is estimated.
"""

from __future__ import annotations

import dataclasses
import math

import jax

from anytpu import units
from anytpu.errors import AnyTPUError
from anytpu.planning.jobs.settings import PlanSettings
from anytpu.planning.records.shardings import Sharding
from anytpu.planning.records.target import Target, limit_bytes
from anytpu.planning.shardings.candidates import weights_of
from anytpu.planning.shardings.depth import SearchedJob
from anytpu.planning.shardings.estimate import estimate, live_bytes_of
from anytpu.program.rematerialising import REMATS
from anytpu.sharding import trace_step
from anytpu.sharding.placing import specs_of

MAX_TRIES = 3
"""Maximum number of compilations."""


@dataclasses.dataclass(frozen=True)
class BatchPart:
    """A part of a batch that fits.

    Attributes:
        sharding: the layout with its prediction for the part.
        parts: number of parts of the batch.
        sum_bytes: bytes of one device for the sum of the gradients.
    """

    sharding: Sharding
    parts: int
    sum_bytes: int

    @property
    def text(self) -> str:
        """One sentence for the user: the batch that fits, and how to accumulate gradients."""
        sharding, prediction = self.sharding, self.sharding.prediction
        assert prediction is not None and prediction.memory is not None and prediction.batch_size is not None
        limit, peak = prediction.memory.limit_bytes, prediction.memory.peak_bytes
        fits = (
            f"A batch of {prediction.batch_size:,} fits with {sharding.title}: {units.format_bytes(peak)} of "
            f"{units.format_bytes(limit)}."
        )
        if peak + self.sum_bytes > limit:
            return f"{fits} The sum of gradients of {self.parts} such parts does not fit beside it."
        return (
            f"{fits} {self.parts} accumulation steps of it make the whole batch; the sum of the gradients takes at "
            f"most {units.format_bytes(self.sum_bytes)} more."
        )


def largest_part(job: SearchedJob, least: Sharding, target: Target, settings: PlanSettings) -> BatchPart | None:
    """Return the largest equal part of the batch that fits in a layout; None if it has no such part.

    Args:
        job: the job with the whole batch.
        least: the layout with the least memory, compiled, with the whole batch; it does not fit.
        target: the system.
        settings: settings of every prediction; a schedule is enough for the memory.
    """
    settings = dataclasses.replace(settings, stage="schedule")
    rows, prediction, limit = job.traced.program.rows, least.prediction, limit_bytes(target)
    if rows is None or not job.job.has_batches or prediction is None or prediction.memory is None:
        return None
    # 1. The form with the least memory: a training step computes its blocks again.
    remat = least.layout.remat
    if job.traced.program.mode == "train" and not remat:
        least = dataclasses.replace(least, layout=dataclasses.replace(least.layout, remat=REMATS[-1]))
    # 2. The parts that the batch can have.
    sum_bytes = _gradient_bytes(job, least)
    fixed, growing = least.state_bytes, max(prediction.memory.peak_bytes - least.state_bytes, 1)
    if least.layout.remat != remat:
        # The whole batch was compiled in another form.
        growing *= live_bytes_of(job.traced, least.layout.remat) / max(live_bytes_of(job.traced, remat), 1)
    possible = [parts for parts in range(2, rows + 1) if rows % parts == 0 and _divides(rows // parts, least)]
    # 3. Compile parts, smaller each time, until one fits. The growing memory is that of the last compilation.
    parts = 1
    for _ in range(MAX_TRIES):
        # By the last compilation; with room for the sum of the gradients if there can be.
        room = limit - fixed - (sum_bytes if limit - fixed > 2 * sum_bytes else 0)
        needed = max(growing * parts / max(room, 1), parts + 1)
        parts = next((count for count in possible if count >= needed), 0)
        if not parts:
            return None
        try:
            smaller = SearchedJob(job.job, trace_step(job.job.program(rows // parts)), rows // parts)
            part = smaller.predict(least.layout, target, dataclasses.replace(settings, progress=PlanSettings.progress))
        except AnyTPUError:
            return None
        sharding = dataclasses.replace(
            least, prediction=part, estimate_s=estimate(smaller.traced, least.layout, target).step_s, reason=""
        )
        settings.progress(
            f"{rows // parts:,} examples in {least.layout.name} on {target.name}: "
            f"{'fits' if part.fits else 'does not fit'}"
        )
        if part.fits:
            return BatchPart(sharding, parts, sum_bytes)
        if part.memory is None:
            return None
        growing = max(part.memory.peak_bytes - fixed, 1)
    return None


def _divides(rows: int, sharding: Sharding) -> bool:
    sizes = dict(sharding.layout.axes)
    return rows % math.prod(sizes[part] for part in sharding.layout.row_axes) == 0


def _gradient_bytes(job: SearchedJob, sharding: Sharding) -> int:
    """Return the bytes of one device for a gradient of each weight."""
    sizes, leaves = dict(sharding.layout.axes), jax.tree.leaves(job.traced.program.state)
    specs = specs_of(job.traced, sharding.layout)
    return sum(
        leaf.size * leaf.dtype.itemsize // math.prod(sizes[part] for parts in spec for part in parts)
        for leaf, spec, is_weight in zip(leaves, specs, weights_of(job.traced), strict=False)
        if is_weight
    )
