"""Check the arguments of `anytpu plan` before its long work.

Idea: loading Keras and the user's file takes seconds, a plan minutes; a misspelt name can be reported at once.

Rule: these checks load neither JAX nor Keras.
"""

from __future__ import annotations

import argparse

from anytpu.cli.outputs import check_file, check_folder
from anytpu.planning.prices import read_prices
from anytpu.planning.target import target_named


def check(arguments: argparse.Namespace) -> None:
    """Check the names of the systems, the prices file, and the output paths.

    Raises:
        UnknownTPUError: there is no such system.
        SettingError: the prices cannot be read, or an output path cannot be written.
    """
    for name in arguments.tpu if not arguments.scaling else ():  # --scaling also takes a chip without a size, "v3"
        target_named(name)
    if arguments.prices:
        read_prices(arguments.prices)
    for option in ("html", "json"):
        check_file(f"--{option}", getattr(arguments, option), f"plan.{option}")
    for option in ("svg", "png"):
        check_folder(f"--{option}", getattr(arguments, option))
