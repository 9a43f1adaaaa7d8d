"""A battery: how valid files of a format are made, how one is read, and how they are damaged.

Idea: each file in `batteries/` describes one format as `BATTERIES`, a tuple of `Battery`; the rest of this folder does
the same to all of them.

    from anytpu.errors import AnyTPUError
    from fuzz.battery import Battery
    from fuzz.damage import TEXT

    BATTERIES = (Battery("prices", samples=lambda: [b"chip,..."], read=read_prices, suffix=".csv", damage=TEXT),)

Rule: a reader gives the right value or raises one of `refusals`; everything else is a fault. Where the right value of
damaged content is not known, a value that is read counts as "read", not as "right".
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fuzz.batteries
from anytpu.errors import AnyTPUError
from fuzz.damage import BYTES, Damage


@dataclasses.dataclass(frozen=True)
class Battery:
    """A format and its reader.

    Attributes:
        name: of the format, as `scripts/fuzz --battery` takes it.
        samples: returns the contents of valid files, the same ones at every call.
        read: reads one file completely and returns what it holds; it runs in a child process.
        suffix: how the name of a file ends.
        damage: the ways to damage the content of a file; a case applies one to three of them.
        resealed: ways that make the format's checksums right again, so that the damage reaches what lies behind them;
            half of the cases use one of these, if there are any.
        is_checked: whether the format has checksums: a file in `damage` that is read must then give what the sample
            gave, or it counts as wrong.
        names_file: whether a refusal must name the file.
        refusals: the errors that a reader may raise.
        limit_s: the seconds that a case may take.
        share: the part of the cases that are asked for which is run, above 0 and up to 1; for slow readers.
        parse: reads content that has no file, as `read` does with one. Then cases run in blocks, without files.
    """

    name: str
    samples: Callable[[], Sequence[bytes]]
    read: Callable[[Path], Any]
    suffix: str = ""
    damage: Sequence[Damage] = BYTES
    resealed: Sequence[Damage] = ()
    is_checked: bool = False
    names_file: bool = True
    refusals: tuple[type[Exception], ...] = (AnyTPUError,)
    limit_s: float = 10.0
    share: float = 1.0
    parse: Callable[[bytes], Any] | None = None

    def count(self, asked: int) -> int:
        """Return the number of cases to run when so many are asked for."""
        return max(1, round(asked * self.share))

    def case(self, seed: int, number: int, samples: Sequence[bytes]) -> Case:
        """Return a case by its number; the same seed and number always give the same one."""
        draw = random.Random(f"{self.name} {seed} {number}")
        sample = draw.randrange(len(samples))
        is_resealed = bool(self.resealed) and draw.random() < 0.5
        content = samples[sample]
        for damage in draw.choices(self.resealed if is_resealed else self.damage, k=draw.choice((1, 1, 1, 2, 3))):
            content = damage(content, draw)
        return Case(sample, content, is_resealed)


@dataclasses.dataclass(frozen=True)
class Case:
    """A damaged file.

    Attributes:
        sample: index of the sample that was damaged.
        content: of the file.
        is_resealed: whether its checksums were made right again.
    """

    sample: int
    content: bytes
    is_resealed: bool


def batteries() -> dict[str, Battery]:
    """Return every battery by its name."""
    modules = [
        importlib.import_module(f"fuzz.batteries.{found.name}")
        for found in pkgutil.iter_modules(fuzz.batteries.__path__)
    ]
    return {battery.name: battery for module in modules for battery in module.BATTERIES}
