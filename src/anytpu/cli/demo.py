"""`anytpu demo`: trains a small network on handwritten digits over all cores, a plain client of the public API."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anytpu.cli.command import Command, add_system_arguments, positive_integer

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console

# The smallest network and the shortest training that reach 98.6 % or more with each of five seeds.
EPOCHS = 20
BATCH = 64
LEARNING_RATE = 0.005
SEED = 7
PICTURES = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give a parser --tpu, --cores, --epochs and --output."""
    add_system_arguments(parser)
    parser.add_argument(
        "--epochs", metavar="N", type=positive_integer, default=EPOCHS, help="epochs to train (default: %(default)s)"
    )
    parser.add_argument(
        "--output",
        metavar="FOLDER",
        type=Path,
        default=Path("anytpu-demo"),
        help="where to save the weights (default: ./%(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Show the cores, train, save, load, and show what the network reads."""
    import anytpu
    from anytpu.report.terminal import open_console

    console = open_console()
    resolver = anytpu.TPUClusterResolver(arguments.tpu, cores=arguments.cores)
    show_devices(console, resolver)
    strategy = anytpu.TPUStrategy(resolver)
    train, test = anytpu.pipeline.digits()
    model = fit(console, strategy, train, arguments.epochs)
    accuracy = model.evaluate(*test, verbose=0, return_dict=True)["accuracy"]
    console.print(f"Test accuracy {accuracy:.1%}, on {len(test[0])} digits that it has not seen.\n", soft_wrap=True)
    path = save(console, model, arguments.output)
    fresh = load(console, strategy, path, test, accuracy)
    show_digits(console, fresh, *test)
    return 0


def show_devices(console: Console, resolver: Any) -> None:
    """Start the system, and print its cores and why there are no others."""
    import anytpu
    from anytpu.report.devices import headline, names_line, reason_lines

    topology = anytpu.initialize_tpu_system(resolver)
    console.print(headline(topology), style="bold", soft_wrap=True)
    devices = [one for one in anytpu.list_logical_devices() if one.device_type != "CPU"]
    lines = [f"  {names_line(devices)}"]
    if resolver.reasons:
        lines += ["Looked for before, and not found:", *reason_lines(resolver.reasons, console.width)]
    console.print("\n".join(lines), end="\n\n", soft_wrap=True)


def make_model(epochs: int, steps: int) -> Any:
    """Return a compiled network; call it in a strategy's scope.

    Args:
        epochs: epochs that it will be trained, over which the learning rate falls to 0.
        steps: steps of an epoch.
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


def fit(console: Console, strategy: Any, train: tuple[np.ndarray, np.ndarray], epochs: int) -> Any:
    """Return a network trained on all cores, with a progress bar."""
    import keras

    from anytpu.report.progress import ProgressBar

    x, y = train
    keras.utils.set_random_seed(SEED)
    with strategy.scope():
        model = make_model(epochs, steps=-(-len(x) // BATCH))
    cores = strategy.num_replicas_in_sync
    console.print(
        f"Training {model.count_params():,} weights on {len(x):,} handwritten digits, {BATCH} a step over "
        f"{cores} {'virtual ' * strategy.cluster_resolver.is_virtual}core{'s' * (cores != 1)}",
        soft_wrap=True,
    )
    bar = ProgressBar(examples=len(x), console=console)
    try:
        model.fit(x, y, batch_size=BATCH, epochs=epochs, verbose=0, callbacks=[bar])
    finally:
        bar.close()
    return model


def save(console: Console, model: Any, folder: Path) -> Path:
    """Save the weights, say where, and return the path.

    Raises:
        SettingError: the folder cannot be made or written.
    """
    from anytpu import units
    from anytpu.errors import SettingError

    path = folder / "digits.weights.h5"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        model.save_weights(path)
    except OSError as error:
        reason = error.strerror or error
        raise SettingError(f"cannot write {str(path)!r}: {reason}; name another folder with --output") from error
    console.print(f"Saved the weights to {path} ({units.format_bytes(path.stat().st_size)}).", soft_wrap=True)
    return path


def load(console: Console, strategy: Any, path: Path, test: tuple[np.ndarray, np.ndarray], accuracy: float) -> Any:
    """Load the weights into a fresh network, say whether it is as good as the one that was saved, and return it."""
    with strategy.scope():
        fresh = make_model(epochs=1, steps=1)
    fresh.load_weights(path)
    loaded = fresh.evaluate(*test, verbose=0, return_dict=True)["accuracy"]
    verdict = "the same" if loaded == accuracy else f"not the {accuracy:.1%} that it was"
    console.print(f"Loaded them into a fresh network: test accuracy {loaded:.1%}, {verdict}.\n", soft_wrap=True)
    return fresh


def show_digits(console: Console, model: Any, x: np.ndarray, y: np.ndarray) -> None:
    """Print a few digits of different kinds, those that the network gets wrong first, with what it reads."""
    import numpy as np

    from anytpu.report.digits import gallery
    from anytpu.report.terminal import is_ascii_only

    read = model.predict(x, verbose=0).argmax(axis=-1)
    order = np.argsort(read == y, kind="stable")
    _, firsts = np.unique(y[order], return_index=True)
    chosen = order[np.sort(firsts)[:PICTURES]]
    for line in gallery(x[chosen], read[chosen].tolist(), y[chosen].tolist(), is_ascii_only(console)):
        console.print(line, soft_wrap=True)


COMMAND = Command(
    name="demo",
    summary="train a small network on handwritten digits over all cores",
    description="""\
Train a small convolutional network on real handwritten digits, over all cores that
are found; without a TPU or a GPU they are 8 virtual ones, made of the CPU. Then
save the weights, load them into a fresh network, and show what it reads.
""",
    add_arguments=add_arguments,
    run=run,
)
