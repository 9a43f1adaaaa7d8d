"""Check the arguments of `anytpu plan` before its long work: the question, the names, the paths.

Idea: loading Keras and the user's file takes seconds, a plan minutes; a misspelt name can be reported at once.

Rule: an option that does not apply to the question is refused, never ignored: the user would misread the answer. These
checks load neither JAX nor Keras.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from anytpu.cli.outputs import check_file, check_folder
from anytpu.errors import SettingError
from anytpu.planning.costs.prices import read_prices
from anytpu.planning.records import read_lock
from anytpu.planning.records.target import target_named

_FILES = ("html", "json", "lock", "svg", "png")
_RUN = ("steps_per_execution", "input_rate", "examples", "epochs", "prices")

UNUSED_OPTIONS = {
    "check": (
        "infer",
        "precision",
        "batch_axis",
        *_RUN,
        "advise",
        "sweep_batch",
        "scaling",
        "max_batch",
        "ways",
        "answer",
        "no_cache",
        "tolerance",
        *_FILES,
    ),
    "max_batch": ("batch", *_RUN, "advise", "sweep_batch", "scaling", "ways", "answer", "check", "tolerance", *_FILES),
    "scaling": ("sweep_batch", "ways", "answer"),
    "ways": ("infer", *_RUN[:-1], "advise", "sweep_batch", "answer", "check", "tolerance", *_FILES),
    "answer": ("lora", "precision", "batch_axis", *_RUN[:-1], "advise", "sweep_batch", "check", "tolerance", *_FILES),
}
"""Question -> the options that do not apply to it. The first question given on the command line is answered."""

_SAYS = {
    "check": "compares one training step on 1 core and on many",
    "max_batch": "prints the largest batch that fits",
    "scaling": "plans the batch of --batch, grown with each slice",
    "ways": "prints the training step with each change",
    "answer": "prints the answers of a language model",
}


def check_question(arguments: argparse.Namespace, usual_tpu: list[str]) -> None:
    """Refuse options that do not apply to the question.

    Args:
        arguments: the parsed command line.
        usual_tpu: the default systems.

    Raises:
        SettingError: there are such options; the message names them.
    """
    lock = arguments.check if isinstance(arguments.check, Path) else None
    question = next((name for name in UNUSED_OPTIONS if getattr(arguments, name) not in (None, False, lock)), None)
    if question is None:
        return
    unused = [_option(name) for name in UNUSED_OPTIONS[question] if getattr(arguments, name) not in (None, False, [])]
    if unused:
        does, them = ("does", "it") if len(unused) == 1 else ("do", "them")
        raise SettingError(
            f"{_option(question)} {_SAYS[question]}: {', '.join(unused)} {does} not apply; leave {them} out, or leave "
            f"out {_option(question)}"
        )
    if question == "scaling":
        _check_chip(arguments.tpu, arguments.scaling, usual_tpu)


def check_typed(arguments: argparse.Namespace) -> None:
    """Check the names of the systems, the prices file, and the output paths.

    Raises:
        UnknownTPUError: there is no such system.
        SettingError: the prices or the lock cannot be read, or an output path cannot be written.
    """
    if isinstance(arguments.check, Path):
        if arguments.lock:
            raise SettingError(
                f"--check {arguments.check} compares with a lock, and --lock {arguments.lock} writes one; run one "
                "command for each"
            )
        read_lock(arguments.check)
    elif arguments.tolerance:
        raise SettingError("--tolerance is that of a comparison with a lock; name the lock: --check plan.lock")
    for name in arguments.tpu if not arguments.scaling else ():  # --scaling also takes a chip without a size, "v3"
        target_named(name)
    if arguments.prices:
        read_prices(arguments.prices)
    for option in ("html", "json", "lock"):
        check_file(f"--{option}", getattr(arguments, option), f"plan.{option}")
    for option in ("svg", "png"):
        check_folder(f"--{option}", getattr(arguments, option))


def _check_chip(tpu: list[str], cores: list[int], usual_tpu: list[str]) -> None:
    slices = ",".join(map(str, cores))
    if len(tpu) > 1 and tpu != usual_tpu:
        chip = tpu[0].partition("-")[0]
        raise SettingError(
            f"--scaling plans larger slices of one TPU, but --tpu names {len(tpu)}: {', '.join(tpu)}; run one command "
            f"per TPU: --tpu {chip} --scaling {slices}"
        )
    if ":" in tpu[0]:
        chip, _, single = tpu[0].partition(":")
        chip = chip.partition("-")[0]
        names = ",".join(f"{chip}-{count}:{single}" for count in cores)
        raise SettingError(
            f"--scaling takes a chip without a core mode, not {tpu[0]!r}; plan the slices by name instead: "
            f"--tpu {names}"
        )


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
