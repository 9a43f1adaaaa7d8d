"""Small programs: what each becomes, and what the porter says of it.

A file of `cases` has a case after each line `==`, with its title. Lines after `-` are those of the old program, and
lines after `+` those of the new one. Indented lines are in both. `!` is a finding; one that ends in `...` goes on. A
file that begins with `== given` has lines that stand before each of its cases.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from anytpu.migrate.port import ported

FOLDER = Path(__file__).parent / "cases"
BEGINS = "begins = 0\n"
"""The line between what is given and a case."""


@dataclasses.dataclass(frozen=True)
class Case:
    title: str
    old: str
    new: str
    findings: tuple[str, ...]


def cases_of(text: str) -> Iterator[Case]:
    title = ""
    for part in re.split(r"^==", text, flags=re.MULTILINE)[1:]:
        first, *lines = part.rstrip("\n").split("\n")
        title = first.strip() or title
        old, new = ("".join(f"{line[2:]}\n" for line in lines if line[:1] in (sign, " ", "")) for sign in "-+")
        yield Case(title, old, new, tuple(line[2:] for line in lines if line.startswith("!")))


def faults_of(case: Case, given: str) -> Iterator[str]:
    above = given + BEGINS if given else ""
    outcome = ported(above + case.old)
    new = outcome.new.partition(BEGINS)[2] if given else outcome.new
    if new != case.new:
        yield f"becomes {new}"
    lines = above.count("\n")
    findings = [f"{found.line - lines}: {found.kind}: {found.old}: {found.advice}" for found in outcome.findings]
    shown = [
        known if known.endswith("...") and found.startswith(known[:-3]) else found
        for found, known in zip(findings, case.findings, strict=False)
    ]
    if (*shown, *findings[len(shown) :]) != case.findings:
        yield f"says {findings}"
    if not outcome.by_hand and ported(outcome.new).is_changed:
        yield "is ported twice"
    compile(outcome.new, case.title, "exec")


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.txt")))
def test_each_case_becomes_what_its_file_says(name: str):
    cases = list(cases_of((FOLDER / f"{name}.txt").read_text()))
    given = cases.pop(0).old if cases[0].title == "given" else ""
    assert cases
    faults = [f"{case.title}:\n{case.old}{fault}" for case in cases for fault in faults_of(case, given)]
    assert not faults, "\n".join(faults)
