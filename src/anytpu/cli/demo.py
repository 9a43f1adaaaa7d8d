"""`anytpu demo`: train a digit classifier on all cores, save it, load it, and show predictions.

Idea: it uses the public API only, as a user's program would, and prints each step.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anytpu
from anytpu import units
from anytpu.cli.command import Command, add_system_arguments, positive_integer
from anytpu.errors import SettingError
from anytpu.files.replacing import replaced

if TYPE_CHECKING:
    import keras
    import numpy as np
    from rich.console import Console

    Rows = tuple[np.ndarray, np.ndarray]

EPOCHS = 20
FOLDER = Path("anytpu-demo")
# With these and 20 epochs, each of five seeds reaches 98.6 % test accuracy or more.
BATCH = 64
LEARNING_RATE = 0.005
SEED = 7
PICTURES = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --tpu, --cores, --epochs and --output."""
    add_system_arguments(parser)
    parser.add_argument(
        "--epochs", metavar="N", type=positive_integer, default=EPOCHS, help="epochs to train (default: %(default)s)"
    )
    parser.add_argument(
        "--output", metavar="FOLDER", type=Path, default=FOLDER, help="where to save the weights (default: %(default)s)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Train, save, load, and show predictions."""
    from anytpu.report.terminal import open_console, say

    resolver = anytpu.TPUClusterResolver(arguments.tpu, cores=arguments.cores)
    console, path = open_console(), weights_path(arguments.output)
    show_cores(console, resolver)
    strategy = anytpu.TPUStrategy(resolver)
    train, test = anytpu.pipeline.digits()
    model = trained(console, strategy, train, arguments.epochs)
    accuracy = accuracy_on(model, test)
    say(console, f"Test accuracy {accuracy:.1%}, on {len(test[0])} digits that were not trained on.\n")
    save(model, path)
    say(console, f"Saved the weights to {path} ({units.format_bytes(path.stat().st_size)}).")
    fresh = loaded(strategy, path)
    again = accuracy_on(fresh, test)
    verdict = "the same" if again == accuracy else f"not the {accuracy:.1%} of before"
    say(console, f"Loaded them into a fresh network: test accuracy {again:.1%}, {verdict}.\n")
    show_digits(console, fresh, *test)
    return 0


def save(model: Any, path: Path) -> None:
    """Save a model's weights.

    Raises:
        SettingError: the disk has no room for them, or the file cannot be written.
    """
    needed_bytes = 2 * sum(variable.value.nbytes for variable in model.variables) + units.MIB
    try:
        with replaced(path, ".weights.h5") as unfinished:
            # h5py ends the process with a segmentation fault if a disk is full or a limit reached: ask for room before.
            with unfinished.open("wb") as file:
                file.write(bytes(needed_bytes))
                file.flush()
                os.fsync(file.fileno())
            model.save_weights(unfinished)
    except OSError as error:
        raise SettingError(
            f"the weights, up to {units.format_bytes(needed_bytes)}, cannot be written to {str(path)!r}: "
            f"{error.strerror or error}; name another folder, --output"
        ) from error


def weights_path(folder: Path) -> Path:
    """Make the folder and return the path of the weights in it.

    Raises:
        SettingError: the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(
            f"cannot make the folder {str(folder)!r}: {error.strerror}; name another, --output"
        ) from error
    return folder / "digits.weights.h5"


def show_cores(console: Console, resolver: anytpu.TPUClusterResolver) -> None:
    """Start the system, and print its cores and the reasons why other systems were not used."""
    from anytpu.report.devices import headline, names_line, reason_lines
    from anytpu.report.terminal import say

    topology = anytpu.initialize_tpu_system(resolver)
    say(console, headline(topology), style="bold")
    devices = [device for device in anytpu.list_logical_devices() if device.device_type != "CPU"]
    lines = [f"  {names_line(devices)}"]
    if resolver.reasons:
        lines += ["Tried before, and not found:", *reason_lines(resolver.reasons, console.width)]
    say(console, "\n".join([*lines, ""]))


def compiled(epochs: int = 1, steps: int = 1) -> keras.Model:
    """Return a compiled network of two convolutions; call it in a strategy's scope.

    Args:
        epochs: number of training epochs, over which the learning rate falls to 0.
        steps: number of steps per epoch.
    """
    import keras
    from keras import layers

    model = keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.4),
            layers.Dense(10, activation="softmax"),
        ]
    )
    rate: Any = keras.optimizers.schedules.CosineDecay(LEARNING_RATE, epochs * steps)
    model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def trained(console: Console, strategy: anytpu.TPUStrategy, train: Rows, epochs: int) -> keras.Model:
    """Return a network trained on all cores; a terminal shows one bar over all epochs, a log file a line for each."""
    import keras
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from anytpu.report.terminal import say

    x, y = train
    keras.utils.set_random_seed(SEED)
    with strategy.scope():
        model: Any = compiled(epochs, steps=-(-len(x) // BATCH))
    cores, virtual = strategy.num_replicas_in_sync, "virtual " * strategy.cluster_resolver.is_virtual
    size = f"{model.count_params():,} weights on {len(x):,} digits"
    say(console, f"Training {size}, {BATCH} per step on {cores} {virtual}{'core' if cores == 1 else 'cores'}")
    columns = (BarColumn(24), TaskProgressColumn(), TextColumn("{task.description}"), TimeRemainingColumn(True, True))
    # No refresh thread: it would draw during a step, and continue after an exception in the middle of a fit.
    with Progress(*columns, console=console, auto_refresh=False, disable=not console.is_terminal) as bar:
        task = bar.add_task("compiling", total=epochs)

        def show(epoch: int, logs: dict[str, Any]) -> None:
            metrics = "  ".join(f"{name} {logs[name]:.4f}" for name in ("loss", "accuracy"))
            text = f"epoch {epoch + 1:>{len(str(epochs))}}/{epochs}  {metrics}"
            bar.update(task, advance=1, description=text, refresh=True)
            if not console.is_terminal:
                say(console, text)

        shown = keras.callbacks.LambdaCallback(on_epoch_end=show)
        model.fit(x, y, batch_size=BATCH, epochs=epochs, verbose=0, callbacks=[shown])
    return model


def loaded(strategy: anytpu.TPUStrategy, path: Path) -> keras.Model:
    """Return a fresh network with the weights of a file."""
    with strategy.scope():
        fresh = compiled()
        fresh.optimizer.build(fresh.trainable_variables)  # the file has the optimizer's state too
    fresh.load_weights(path)
    return fresh


def accuracy_on(model: Any, rows: Rows) -> float:
    """Return a network's accuracy on images, 0 to 1."""
    return model.evaluate(*rows, verbose=0, return_dict=True)["accuracy"]


def show_digits(console: Console, model: Any, x: np.ndarray, y: np.ndarray) -> None:
    """Print a few digits of different classes with their predictions: correct ones, then a wrong one, if any."""
    import numpy as np

    from anytpu.report.digits import gallery

    predicted = model.predict(x, verbose=0).argmax(axis=-1)
    wrong = np.flatnonzero(predicted != y)[:1]
    right = np.flatnonzero((predicted == y) & ~np.isin(y, y[wrong]))
    _, firsts = np.unique(y[right], return_index=True)
    chosen = np.append(right[np.sort(firsts)[: PICTURES - len(wrong)]], wrong)
    for line in gallery(x[chosen], predicted[chosen].tolist(), y[chosen].tolist()):
        console.print(line, no_wrap=True, overflow="crop", crop=True)


COMMAND = Command(
    name="demo",
    summary="train a small network on handwritten digits on all cores",
    description="""\
Train a small convolutional network on real handwritten digits, on all cores of this
machine. Without a TPU or a GPU these are 8 virtual cores of the CPU. Then save the
weights, load them into a fresh network, and show its predictions.
""",
    add_arguments=add_arguments,
    run=run,
)
