"""Port notebooks: the code cells are one program, so an import in the first cell holds in the last.

Idea: join the cells with a marker before each, port the text, and split it at the markers. Lines that are not Python,
such as `%matplotlib inline` and `!pip install`, become comments meanwhile.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

from anytpu.errors import PortError
from anytpu.files.opening import MAX_TEXT_BYTES
from anytpu.migrate.port.program import Ported, ported

_MARK = re.compile(r"^__cell__\((\d+)\)\n?", re.MULTILINE)
MAGIC = re.compile(r"^(\s*)([%!].*)$", re.MULTILINE)
"""Matches the lines of a notebook that are not Python."""
_RUNS_PYTHON = re.compile(r"\s*%%(time|timeit|capture|prun|memit|mprun|heat)\b")
"""Matches the magics of a whole cell that run the cell as Python."""
_ASIDE = re.compile(r"pass  # aside: (.*)$", re.MULTILINE)


def ported_notebook(text: str, name: str) -> tuple[Ported, str]:
    """Port the code cells of a notebook.

    Args:
        text: the notebook's JSON text.
        name: the notebook's name in error texts.

    Returns:
        The code of all cells, before and after, and the new text of the file.

    Raises:
        PortError: the text is not a notebook, or its code is not Python.
    """
    notebook = _read(text, name)
    cells = [cell for cell in notebook["cells"] if _is_python(cell)]
    codes = [MAGIC.sub(r"\1pass  # aside: \2", "".join(cell["source"])) for cell in cells]
    joined = "".join(f"__cell__({number})\n{code}\n" for number, code in enumerate(codes, 1))
    program = ported(joined, f"the code of {name}")
    if not program.is_changed:
        return _shown(program), text
    parts = _MARK.split(program.new)[1:]
    for number, code in zip(parts[::2], parts[1::2], strict=True):
        _set(cells[int(number) - 1], _ASIDE.sub(r"\1", code).rstrip("\n"))
    end = "\n" if text.endswith("\n") else ""
    return _shown(program), json.dumps(notebook, indent=1, ensure_ascii=False) + end


def _read(text: str, name: str) -> dict[str, Any]:
    from anytpu.files.json_text import read_json  # It loads NumPy, and most files are no notebooks.

    try:
        notebook = read_json(text, MAX_TEXT_BYTES)
        if isinstance(notebook["cells"], list) and all(map(_is_cell, notebook["cells"])):
            return notebook
    except (ValueError, KeyError, TypeError):
        pass
    raise PortError(f"{name} is not a notebook: it must be JSON with a list of cells, as Jupyter writes it")


def _is_cell(cell: Any) -> bool:
    """Return whether a cell's source is a string or a list of strings that UTF-8 can encode."""
    if not isinstance(cell, dict) or not isinstance(cell.get("source"), str | list):
        return False
    return all(map(_is_text, cell["source"] if isinstance(cell["source"], list) else [cell["source"]]))


def _is_text(line: Any) -> bool:
    try:
        return isinstance(line, str) and bool(line.encode() or True)
    except UnicodeEncodeError:  # A lone surrogate, which JSON can escape but UTF-8 cannot encode.
        return False


def _is_python(cell: dict[str, Any]) -> bool:
    code = "".join(cell["source"])
    is_magic = code.lstrip().startswith("%%") and not _RUNS_PYTHON.match(code)
    return cell.get("cell_type") == "code" and not is_magic


def _set(cell: dict[str, Any], code: str) -> None:
    if code != "".join(cell["source"]).rstrip("\n"):
        cell["source"] = code.splitlines(keepends=True) if isinstance(cell["source"], list) else code


def _shown(program: Ported) -> Ported:
    """Return the program for display: a comment at each cell's start, and the magics restored."""
    starts = tuple(n for n, line in enumerate(program.old.splitlines(), 1) if _MARK.match(line))
    old, new = (_ASIDE.sub(r"\1", _MARK.sub(r"# cell \1\n", text)) for text in (program.old, program.new))
    shown = dataclasses.replace(program, old=old, new=new, cells=starts)
    placed = []
    for finding in program.findings:
        cell, line = shown.cell_and_line(finding.line)
        placed.append(dataclasses.replace(finding, line=line, cell=cell))
    return dataclasses.replace(shown, findings=tuple(placed))
