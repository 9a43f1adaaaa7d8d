"""The README is true: short, and each of its Python blocks prints what the block after it says."""

from __future__ import annotations

import dataclasses
import doctest
import re
import subprocess

import pytest

from forked import python
from source_tree import ROOT

README = ROOT / "README.md"
MAX_LINES = 120
FENCE = re.compile(r"^```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Block:
    """A Python program of the README: its first line, its text, and what it prints (None: nothing is said of that)."""

    line: int
    code: str
    output: str | None

    def __str__(self) -> str:
        return f"line {self.line}"


def blocks_of(readme: str) -> list[Block]:
    """Return the Python blocks. A `text` block that comes next is the output; "..." in it stands for anything."""
    fences = list(FENCE.finditer(readme))
    found = []
    for fence, after in zip(fences, [*fences[1:], None], strict=True):
        if fence["language"] == "python":
            output = after["text"] if after and after["language"] in ("text", "") else None
            found.append(Block(readme.count("\n", 0, fence.start()) + 2, fence["text"], output))
    return found


def test_blocks_are_found():
    program = "Try\n```python\nprint(1)\n```\nIt prints\n```text\n1\n```\n```python\npass\n```\n```bash\nls\n```\n"
    assert blocks_of(program) == [Block(3, "print(1)\n", "1\n"), Block(10, "pass\n", None)]


def test_readme_is_short():
    lines = len(README.read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_LINES, f"README.md:{lines}: {lines} lines, {MAX_LINES} at most"


def test_readme_shows_a_program_and_its_output():
    assert any(block.output for block in blocks_of(README.read_text(encoding="utf-8"))), (
        "README.md: no program with its output"
    )


@pytest.mark.parametrize("block", blocks_of(README.read_text(encoding="utf-8")), ids=str)
def test_readme_program_prints_what_it_says(block: Block, tmp_path):
    command = [*python(), "-W", "error", "-c", block.code]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, f"README.md:{block.line}: the program fails:\n{run.stderr}"
    if block.output is not None:
        same = doctest.OutputChecker().check_output(block.output, run.stdout, doctest.ELLIPSIS)
        assert same, f"README.md:{block.line}: it prints\n{run.stdout}\nand the README says\n{block.output}"
