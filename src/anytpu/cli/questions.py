"""Which question `anytpu plan` was asked, and whether everything that was typed has a part in its answer.

Rule: an option that a question would leave aside is refused, never dropped: who typed it would take the answer for
another one.
"""

from __future__ import annotations

import argparse

from anytpu.errors import SettingError

_FILES = ("html", "json", "svg", "png")
_RUN = ("steps_per_execution", "input_rate", "examples", "epochs", "prices")

LEFT_ASIDE = {
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
"""What has no part in the answer to a question, by the question; the first of them that was typed is the one asked."""

_SAYS = {
    "check": "compares one training step on 1 core and on many",
    "max_batch": "prints the largest batch that fits",
    "scaling": "plans the batch of --batch, grown with each slice",
}


def check_question(arguments: argparse.Namespace, usual_tpu: list[str]) -> None:
    """Refuse options that the question leaves aside.

    Args:
        arguments: everything that was typed.
        usual_tpu: the systems where none is named.

    Raises:
        SettingError: there are some; the message names them.
    """
    question = next((one for one in LEFT_ASIDE if getattr(arguments, one)), None)
    if question is None:
        return
    typed = [_option(one) for one in LEFT_ASIDE[question] if getattr(arguments, one) not in (None, False, [])]
    if typed:
        has, them = ("has", "it") if len(typed) == 1 else ("have", "them")
        raise SettingError(
            f"{_option(question)} {_SAYS[question]}: {', '.join(typed)} {has} no part in it; leave {them} out, or ask "
            f"without {_option(question)}"
        )
    if question == "scaling":
        _check_chip(arguments.tpu, arguments.scaling, usual_tpu)


def _check_chip(tpu: list[str], cores: list[int], usual_tpu: list[str]) -> None:
    slices = ",".join(map(str, cores))
    if len(tpu) > 1 and tpu != usual_tpu:
        chip = tpu[0].partition("-")[0]
        raise SettingError(
            f"--scaling plans larger slices of one TPU, and --tpu names {len(tpu)}: {', '.join(tpu)}; name one, and "
            f"ask for each: --tpu {chip} --scaling {slices}"
        )
    if ":" in tpu[0]:
        chip, _, single = tpu[0].partition(":")
        chip = chip.partition("-")[0]
        names = ",".join(f"{chip}-{number}:{single}" for number in cores)
        raise SettingError(
            f"--scaling takes the chip alone, and {tpu[0]!r} says how its cores run; plan the slices by name instead: "
            f"--tpu {names}"
        )


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
