"""`LoopPrograms`: notices that a resumed custom loop trains with other programs than before.

Idea: the body of a loop may call any number of programs, some of them rarely. So the digests of all training programs
that were compiled within the loop are saved. If the first ones of a resumed loop are all unknown, the program changed.

Rule: a shape of the batch that is new on as many cores proves nothing: it may be the last batch of an epoch.
"""

from __future__ import annotations

import logging
from typing import Any, Self

import jax

from anytpu.program.program import Program
from anytpu.program.program_digest import program_digest
from anytpu.strategy.strategy import compile_listeners

LOG = logging.getLogger("anytpu")


class LoopPrograms:
    """The training programs that are compiled within one loop. A context manager.

    Args:
        saved: those of the checkpoint that the loop continues: [cores, shapes of the batch] by digest.
        where: the checkpoint's folder.
    """

    def __init__(self, saved: dict[str, Any], where: str) -> None:
        self._saved, self._where = saved, where
        self._found: dict[str, Any] = {}
        self._is_checked = not saved

    def __enter__(self) -> Self:
        """Record the programs that are compiled from now on."""
        compile_listeners.append(self._add)
        return self

    def __exit__(self, *_: object) -> None:
        """Record no more."""
        compile_listeners.remove(self._add)

    def state(self) -> dict[str, Any]:
        """Return all programs since the beginning of the run, as `saved`."""
        return self._saved | self._found

    def check(self) -> None:
        """After the body of the loop: warn if all programs that it compiled are unknown."""
        if self._is_checked or not self._found:
            return
        self._is_checked = True
        cores, then = ({each[0] for each in programs.values()} for programs in (self._found, self._saved))
        shapes_known = any(each in self._saved.values() for each in self._found.values())
        if self._found.keys() & self._saved.keys() or not (shapes_known or not cores & then):
            return
        LOG.warning(
            "The checkpoint %s was made by other programs: the digests of the steps were %s, and are %s now. The loop "
            "continues with the programs of now",
            self._where,
            _text(self._saved),
            _text(self._found),
        )
        self._saved = {}

    def _add(self, cores: int, program: Program) -> None:
        if program.mode == "train":
            self._found[program_digest(program)] = [
                cores,
                [list(leaf.shape) for leaf in jax.tree.leaves(program.batch)],
            ]


def _text(programs: dict[str, Any]) -> str:
    return ", ".join(f"{digest} on {cores} cores" for digest, (cores, _) in programs.items())
