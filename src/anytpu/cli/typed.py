"""What was typed after `anytpu plan`, checked before anything takes time.

Idea: to load Keras and the user's file takes seconds, a plan minutes; a name that is written wrong can be told at once.

Rule: what is checked here loads neither JAX nor Keras.
"""

from __future__ import annotations

import argparse

from anytpu.cli.outputs import check_file, check_folder
from anytpu.planning.prices import read_prices
from anytpu.planning.target import target_named


def check(arguments: argparse.Namespace) -> None:
    """Look at the names of systems, the prices, and where the files go.

    Raises:
        UnknownTPUError: there is no such system.
        SettingError: the prices cannot be read, or a file or a folder cannot be written there.
    """
    for name in arguments.tpu if not arguments.scaling else ():  # which takes a chip alone too, "v3"
        target_named(name)
    if arguments.prices:
        read_prices(arguments.prices)
    for option in ("html", "json"):
        check_file(f"--{option}", getattr(arguments, option), f"plan.{option}")
    for option in ("svg", "png"):
        check_folder(f"--{option}", getattr(arguments, option))
