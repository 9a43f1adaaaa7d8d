"""The program of test_resume.py: trains in a folder, and tells when a save begins. Run as a process of its own."""

from __future__ import annotations

import sys
from typing import Any

import anytpu as tpu  # isort: skip
from estimator_samples import arrays, estimator, model_fn


class Telling:
    """Says when a save begins, and when it is done."""

    def begin(self) -> None:
        pass

    def before_save(self, session: Any, step: int) -> None:
        print(f"saving {step}", flush=True)

    def after_save(self, session: Any, step: int) -> None:
        print(f"saved {step}", flush=True)

    def end(self, session: Any, step: int) -> None:
        pass


def shuffled(params: dict[str, Any]) -> Any:
    dataset = tpu.pipeline.Dataset.from_arrays(arrays()).shuffle(seed=5).repeat()
    return dataset.batch(params["batch_size"], drop_remainder=True)


def run(folder: str, max_steps: int, listener: Any = None) -> Any:
    # Five steps a save, and a loop of two: the loops of a resumed run are others.
    settings = {"save_checkpoints_steps": 5, "tf_random_seed": 11, "keep_checkpoint_max": 3}
    one = estimator(folder, model_fn, loop=2, run=settings)
    return one.train(shuffled, max_steps=max_steps, saving_listeners=[listener] if listener else None)


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]), Telling())
