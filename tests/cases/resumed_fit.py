"""Kind: a fit that continues takes another state than it had: a cut list, another input, a NaN, a wrong folder.

Right: the list of the uninterrupted fit, still one object; and a refusal by name of all that cannot be honoured.
"""

import anytpu as tpu  # isort: skip
from case import check_equal, finish  # isort: skip

import contextlib
import os
import tempfile
from typing import Any

import keras
import numpy as np

X = np.arange(192, dtype="float32").reshape(96, 2) / 100


class Watch(keras.callbacks.Callback):
    """Appends to a list of the program; ends the fit after some steps."""

    def __init__(self, seen: list, end_after: int = 0) -> None:
        super().__init__()
        self.seen, self._end_after = seen, end_after
        self.itself: list = []
        self.itself.append(self.itself)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append(batch)
        if len(self.seen) == self._end_after:
            raise KeyboardInterrupt


def fit(folder: str, x: Any = X, end_after: int = 0, bad: float = 0.0, **options: Any) -> str | list:
    """Return the list of the callback, or the name of the error."""
    seen: list = []
    with tpu.connect("virtual", cores=2).scope():
        model: Any = keras.Sequential([keras.layers.BatchNormalization(), keras.layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=1)
        model.build((None, 2))
    spoil = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: model.layers[0].moving_mean.assign([bad, bad]))
    options = {"batch_size": 16, "epochs": 2, "verbose": 0, "callbacks": [Watch(seen, end_after), spoil]} | options
    if isinstance(x, np.ndarray):
        options["y"] = x[:, :1]
    else:
        del options["batch_size"]
    saved = tpu.Checkpointer(folder, every_steps=1)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            model.fit(x, checkpoint_dir=saved, **options)
    except Exception as error:
        return type(error).__name__
    return seen


whole = fit(tempfile.mkdtemp())
folder = tempfile.mkdtemp()
fit(folder, end_after=4)
dataset = tpu.pipeline.Dataset.from_arrays((X, X[:, :1])).batch(16)
for name, x, options in (
    ("90 rows", X[:90], {}),
    ("a data set", dataset, {}),
    ("no shuffle", X, {"shuffle": False}),
):
    check_equal(name, "DataError", fit(folder, x, **options))
check_equal("the list of callback and program", whole, fit(folder))
check_equal("NaN in a moving mean", "NaNLossError", fit(tempfile.mkdtemp(), bad=np.nan))
os.chdir(tempfile.mkdtemp())
check_equal("gs:/b/run", ("FileError", []), (fit("gs:/b/run"), os.listdir(".")))
finish()
