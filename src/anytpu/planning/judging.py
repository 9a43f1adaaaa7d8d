"""What is to be said of a prediction: what to change, and of what does not fit, what would."""

from __future__ import annotations

import dataclasses

from anytpu.planning.advice import advice_for, rematerialisation
from anytpu.planning.asking import ask, ask_largest
from anytpu.planning.job import Job, weights_of
from anytpu.planning.records import Advice, Prediction
from anytpu.planning.wish import Wish


def judged(job: Job, batch_size: int | None, found: Prediction, wish: Wish, tries: bool) -> Prediction:
    """Return a prediction with advice; of what does not fit, also with the largest batch that does.

    Args:
        job: what was planned.
        batch_size: the batch that was asked for, or None for the job's own.
        found: what was predicted.
        wish: what holds for every prediction.
        tries: compile changed programs to see what they gain.
    """
    weights, saving = weights_of(job.program(batch_size)), None
    if not found.fits and job.has_batches and found.batch_size and found.memory:
        found, saving = _smaller(job, found, weights, wish)

    def predict(batch: int | None, precision: str | None) -> Prediction:
        changed = job if precision is None else job.with_precision(precision)
        return ask(changed, batch, found.target, wish)

    advice = advice_for(found, weights, predict if tries else None, job.has_batches, job.is_model)
    return dataclasses.replace(found, advice=(*advice, *filter(None, [saving])))


def _smaller(
    job: Job, found: Prediction, weights: dict[str, tuple[int, ...]], wish: Wish
) -> tuple[Prediction, Advice | None]:
    """Return the prediction with the largest batch that fits, and what rematerialisation would save."""
    assert found.batch_size is not None
    largest = ask_largest(job, found.target, wish, most=found.batch_size)
    layers = sum(len(shape) > 1 for name, shape in weights.items() if name.endswith("kernel"))
    trains = found.mode == "train"
    saving = rematerialisation(found.batch_size, layers, largest.tried) if trains else None
    return dataclasses.replace(found, largest_batch=largest.batch_size), saving
