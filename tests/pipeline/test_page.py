"""The page docs/datasets.md: its blocks run as one program, and print what it says."""

from __future__ import annotations

import contextlib
import io
import re
from typing import Any

from anytpu.pipeline import Dataset
from source_tree import ROOT

PAGE = (ROOT / "docs/datasets.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"```python\n(.*?)```\n```text\n(.*?)```", re.DOTALL)


def test_each_block_prints_what_the_page_says():
    names: dict[str, Any] = {}
    blocks = BLOCK.findall(PAGE)
    assert len(blocks) == PAGE.count("```python")
    for code, output in blocks:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, names)
        assert printed.getvalue() == output


def test_the_table_names_every_method():
    table = PAGE[PAGE.index("| sources") : PAGE.index("`num_parallel_calls`")]
    named = set(re.findall(r"`(\w+)", table))
    own = {"is_batched", "is_endless", "left", "numbers", "on_host", "position", "resume"}
    assert {name for name in dir(Dataset) if not name.startswith("_")} - own == named - {"len"}
