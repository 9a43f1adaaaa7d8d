"""The options of the commands of planning: their table, the values that they take, and the check of what was typed.

Rule: an option is parsed under the name of the public function's keyword argument. So a command passes what was typed
on as it is (`settings_of`). Each command has the options of its function only, so none is ever ignored. This file loads
neither JAX nor Keras.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from anytpu.cli.command import positive_integer
from anytpu.cli.outputs import check_file, check_folder
from anytpu.errors import SettingError

_FILES = ("html", "json", "lock")
_FOLDERS = ("svg", "png")
_OF_COMMANDS = ("command", "run", "traceback", "version", "job", "sequence", "lora", "split", "check", "tolerance")


def _table() -> dict[str, dict[str, Any]]:
    """Return each option with the arguments of `add_argument`."""
    count = {"metavar": "N", "type": positive_integer}
    return {
        "--tpu": {"metavar": "NAMES", "type": names},
        "--batch": {**count, "dest": "batch_size", "help": "examples per step, over all devices"},
        "--sequence": {**count, "help": "tokens of an example of a language model (default: 1024)"},
        "--lora": {**count, "metavar": "RANK", "help": "train LoRA adapters of this rank of a language model"},
        "--precision": {
            "choices": ("float32", "bfloat16"),
            "help": "make the Keras model in this precision, not its own",
        },
        "--batch-axis": {
            "metavar": "AXES",
            "type": axes,
            "help": "the example axis of a JAX function's batch: one, or one per array, none for an array without "
            "examples: 3,0,none (default: the axis that a sharding splits over the data, else 0)",
        },
        "--split": {
            "metavar": "NUMBERS",
            "type": numbers,
            "help": "indices, from 0, of the arguments of a .mlir file whose rows are split",
        },
        "--infer": {
            "dest": "mode",
            "action": "store_const",
            "const": "infer",
            "help": "a prediction, not a training step",
        },
        "--layout": {
            "metavar": "LAYOUT",
            "help": "data (split the examples over the devices), fsdp (split the weights too), or the file that anytpu "
            "shard --json wrote",
        },
        "--mesh": {
            "metavar": "SIZES",
            "type": mesh,
            "help": "axes of the layout's mesh: data=4,model=2, or data=-1,model=2, where -1 fills the system "
            "(default: data)",
        },
        "--steps-per-execution": {**count, "help": "steps started by one call of the host"},
        "--input-rate": {
            "dest": "input_examples_per_s",
            "metavar": "N",
            "type": positive_number,
            "help": "examples per second of the input",
        },
        "--examples": {**count, "help": "examples per epoch"},
        "--epochs": {**count, "help": "epochs of the run"},
        "--prices": {"metavar": "FILE", "type": Path, "help": "a CSV of prices that overrides anytpu's own"},
        "--timeout": {
            "dest": "timeout_s",
            "metavar": "S",
            "type": positive_number,
            "default": 600.0,
            "help": "limit of one compilation; after it a plan has the compiler's schedule, else a lower bound; a "
            "longer one brings both (default: 600 seconds)",
        },
        "--no-cache": {
            "dest": "use_cache",
            "action": "store_false",
            "help": "do not reuse compiled programs from the disk",
        },
        "--html": {"metavar": "FILE", "type": Path, "help": "write a self-contained page"},
        "--json": {"metavar": "FILE", "type": Path, "help": "write all numbers"},
        "--svg": {"metavar": "FOLDER", "type": Path, "help": "write the plots as SVG"},
        "--png": {"metavar": "FOLDER", "type": Path, "help": "write the plots as PNG"},
    }


MODEL = ("--sequence", "--lora", "--precision")
STEP = (*MODEL, "--batch-axis", "--split")
LAYOUT = ("--layout", "--mesh")
RUN = ("--examples", "--epochs", "--prices")
COMPILER = ("--timeout", "--no-cache")


def add(group: Any, *options: str, **changes: Any) -> None:
    """Add options of the table to a parser or a group of it.

    Args:
        group: the parser, or a group.
        *options: names of options.
        **changes: further arguments of `add_argument`, or other ones, for each of these options.
    """
    table = _table()
    for option in options:
        group.add_argument(option, **(table[option] | changes))


def add_systems(group: Any, default: str) -> None:
    """Add --tpu with its default."""
    add(group, "--tpu", default=names(default), help=f"the systems (default: {default})")


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the typed options that are keyword arguments of the public function."""
    own = (*_OF_COMMANDS, *_FILES, *_FOLDERS)
    return {name: value for name, value in vars(arguments).items() if name not in own}


def check_typed(arguments: argparse.Namespace) -> None:
    """Check the names of the systems, the prices, the lock and the output paths, before the long work.

    Raises:
        UnknownTPUError: there is no such system.
        SettingError: the prices or the lock cannot be read, or an output path cannot be written.
    """
    # Imported here: they load NumPy, which `--help` does not need.
    from anytpu.planning.costs.prices import read_prices
    from anytpu.planning.records import read_lock
    from anytpu.planning.records.target import target_named

    typed = vars(arguments)
    cores = typed.get("cores")
    for name in [f"{arguments.tpu}-{count}" for count in cores] if cores else typed.get("tpu", ()):
        target_named(name)
    if typed.get("prices"):
        read_prices(arguments.prices)
    if typed.get("check"):
        read_lock(arguments.check)
    elif typed.get("tolerance"):
        raise SettingError("--tolerance is that of a comparison with a lock; name the lock: --check plan.lock")
    for option in _FILES:
        check_file(f"--{option}", typed.get(option), f"plan.{option}")
    for option in _FOLDERS:
        check_folder(f"--{option}", typed.get(option))


def names(text: str) -> list[str]:
    """Parse comma-separated names.

    Raises:
        argparse.ArgumentTypeError: there is no name.
    """
    stripped = [name for name in (part.strip() for part in text.split(",")) if name]
    if not stripped:
        raise argparse.ArgumentTypeError(f"must be one or more names separated by commas, not {text!r}")
    return stripped


def chip(text: str) -> str:
    """Parse the chip of slices of several sizes: "v3", or one of its slices, "v3-8".

    Raises:
        argparse.ArgumentTypeError: there are several, or it has a core mode.
    """
    if len(names(text)) > 1 or ":" in text:
        raise argparse.ArgumentTypeError(
            f"must be one chip without a core mode, such as v3, not {text!r}; plan other slices by name: anytpu plan "
            "--tpu v4-8:cores,v4-32:cores"
        )
    return text.strip().partition("-")[0]


def positive_integers(text: str) -> list[int]:
    """Parse comma-separated positive integers.

    Raises:
        argparse.ArgumentTypeError: a part is not a positive integer.
    """
    return [positive_integer(part) for part in names(text)]


def percentages(text: str) -> list[float]:
    """Parse one or two comma-separated percentages, of 0 or more.

    Raises:
        argparse.ArgumentTypeError: they are more, or one is not a percentage.
    """
    parts = names(text)
    try:
        values = [float(part) for part in parts]
    except ValueError:
        values = []
    if not 1 <= len(values) <= 2 or not all(0 <= value < float("inf") for value in values):
        raise argparse.ArgumentTypeError(f"must be one or two percentages, such as 5,2, not {text!r}")
    return values


def numbers(text: str) -> list[int]:
    """Parse comma-separated indices, from 0.

    Raises:
        argparse.ArgumentTypeError: a part is not an index.
    """
    if not all(part.isdecimal() for part in names(text)):
        raise argparse.ArgumentTypeError(f"must be integers from 0 separated by commas, not {text!r}")
    return [int(part) for part in names(text)]


def mesh(text: str) -> dict[str, int]:
    """Parse the sizes of mesh axes: "data=4,model=2"; -1 is the size that fills the system.

    Raises:
        argparse.ArgumentTypeError: a part is not a name and a size, or an axis has two sizes.
    """
    parts = [part.partition("=") for part in names(text)]
    if any(not name or not (size == "-1" or (size.isdecimal() and int(size))) for name, _, size in parts):
        raise argparse.ArgumentTypeError(f"must be names with sizes, like data=4,model=2, not {text!r}")
    axes = [name for name, _, _ in parts]
    for name in axes:
        if axes.count(name) > 1:
            raise argparse.ArgumentTypeError(f"must give each axis one size, and {text!r} gives {name!r} several")
    return {name: int(size) for name, _, size in parts}


def axes(text: str) -> list[int | None]:
    """Parse comma-separated axes: integers, or "none".

    Raises:
        argparse.ArgumentTypeError: a part is neither.
    """
    try:
        return [None if part == "none" else int(part) for part in names(text)]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be axes separated by commas, like 3,0,none, not {text!r}") from None


def positive_number(text: str) -> float:
    """Parse a positive, finite number.

    Raises:
        argparse.ArgumentTypeError: the text is not a positive number.
    """
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a positive number, not {text!r}")
    return value
