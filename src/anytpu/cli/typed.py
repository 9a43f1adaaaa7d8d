"""What was typed after `anytpu plan`, checked before anything takes time.

Idea: to load Keras and the user's file takes seconds, a plan minutes; a name that is written wrong can be told at once.

Rule: what is checked here loads neither JAX nor Keras.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from anytpu.errors import SettingError
from anytpu.planning.prices import read_prices
from anytpu.planning.target import target_named

_GPUS = ("gpu", "local")


def check(arguments: argparse.Namespace) -> None:
    """Look at the names of systems, the prices, and where the files go.

    Raises:
        UnknownTPUError: there is no such system.
        SettingError: the prices cannot be read, or a file or a folder cannot be written there.
    """
    for name in arguments.tpu:
        if name not in _GPUS and not arguments.scaling:  # which takes a chip alone too, "v3", and names its slices
            target_named(name)
    if arguments.prices:
        read_prices(arguments.prices)
    for option in ("html", "json"):
        _check_file(option, getattr(arguments, option))
    for option in ("svg", "png"):
        _check_folder(option, getattr(arguments, option))


def _check_file(option: str, path: Path | None) -> None:
    if path is None:
        return
    if path.is_dir():
        raise SettingError(f"--{option} {path} is a folder; name a file in it: --{option} {path / f'plan.{option}'}")
    if not path.parent.is_dir():
        raise SettingError(
            f"--{option} {path}: there is no folder {str(path.parent)!r}; make it: mkdir -p {path.parent}"
        )
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise SettingError(f"--{option} {path} cannot be written; name a file elsewhere: --{option} {_elsewhere(path)}")


def _check_folder(option: str, path: Path | None) -> None:
    """Check a folder, which is made where it is missing, with those above it."""
    if path is None:
        return
    there = next(one for one in (path, *path.absolute().parents) if one.exists())
    if not there.is_dir():
        raise SettingError(f"--{option} {path}: {str(there)!r} is no folder; name one, which is made: --{option} plots")
    if not os.access(there, os.W_OK | os.X_OK):
        raise SettingError(
            f"--{option} {path} cannot be written; name a folder elsewhere: --{option} {_elsewhere(path)}"
        )


def _elsewhere(path: Path) -> Path:
    return Path("~") / path.name
