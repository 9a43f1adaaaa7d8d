"""Check that all options of `anytpu plan` apply to the requested question.

Rule: an option that does not apply is refused, never ignored: the user would misread the answer.
"""

from __future__ import annotations

import argparse

from anytpu.errors import SettingError

_FILES = ("html", "json", "svg", "png")
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
        "no_cache",
        *_FILES,
    ),
    "max_batch": ("batch", *_RUN, "advise", "sweep_batch", "scaling", *_FILES),
    "scaling": ("sweep_batch",),
}
"""Question -> the options that do not apply to it. The first question given on the command line is answered."""

_SAYS = {
    "check": "compares one training step on 1 core and on many",
    "max_batch": "prints the largest batch that fits",
    "scaling": "plans the batch of --batch, grown with each slice",
}


def check_question(arguments: argparse.Namespace, usual_tpu: list[str]) -> None:
    """Refuse options that do not apply to the question.

    Args:
        arguments: the parsed command line.
        usual_tpu: the default systems.

    Raises:
        SettingError: there are such options; the message names them.
    """
    question = next((name for name in UNUSED_OPTIONS if getattr(arguments, name)), None)
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
