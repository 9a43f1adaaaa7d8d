"""`Trial`: run a ported program for a few steps in a process of its own, and find its first failure.

Rule: the trial works in a copy of the program's folder, so that it neither overwrites weights nor leaves checkpoints.
Large files are linked, and copied before a change. A change outside of the copy is refused (trial_files.py).
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from anytpu.migrate.port.notebook import MAGIC
from anytpu.migrate.port.program import Ported

LIMIT_S = 300
"""Seconds after which a trial ends; a program that has not failed by then has passed."""
MAX_COPIED_BYTES = 16 * 2**20
"""Size of a file from which it is linked into the copy of the folder."""
MAX_FILES = 20_000


@dataclasses.dataclass(frozen=True)
class Trial:
    """The result of a trial.

    Attributes:
        error: the first failure, as "class: message"; "" if there was none.
        line: its line in the old program or notebook cell, from 1; 0 if there was none.
        cell: the notebook's code cell, from 1; 0 for a program.
        old: the old code of that line.
        new: the new code of the line that failed.
        is_listed: whether the failure is at a line that is listed to port by hand.
        seconds: the time limit that ended the trial; 0 if the program ended by itself.
    """

    error: str = ""
    line: int = 0
    cell: int = 0
    old: str = ""
    new: str = ""
    is_listed: bool = False
    seconds: int = 0


def tried(program: Ported, path: Path, limit_s: int = LIMIT_S, others: Mapping[Path, Ported] | None = None) -> Trial:
    """Run a ported program for a few steps.

    Args:
        program: the program.
        path: the file that it was read from; its folder is the working folder.
        limit_s: seconds after which the trial ends.
        others: other programs, which this one may import: they are ported beside it.
    """
    with tempfile.TemporaryDirectory(prefix="anytpu-port-") as temporary:
        # 1. A copy of the folder, or of that of the whole package, with the new program in the place of the old one.
        folder, home = Path(temporary) / "folder", path.resolve().parent
        while (home / "__init__.py").is_file():
            home = home.parent
        _copy(home, folder)
        for other, beside in (others or {}).items():
            if other.suffix == ".py" and other.resolve().is_relative_to(home):
                (folder / other.resolve().relative_to(home)).write_text(beside.new, encoding="utf-8")
        target = (folder / path.resolve().relative_to(home)).with_suffix(".py")
        target.unlink(missing_ok=True)
        target.write_text(MAGIC.sub(r"\1pass  # \2", program.new), encoding="utf-8")
        # 2. Run it in another process, for a limited time.
        result = Path(temporary) / "result.json"
        command = [sys.executable, "-m", "anytpu.migrate.port.trial_run", str(result), str(folder), str(target)]
        with open(Path(temporary) / "output", "wb") as output:
            try:
                run = subprocess.run(
                    command, cwd=target.parent, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=limit_s
                )
            except subprocess.TimeoutExpired:
                return Trial(seconds=limit_s)
        # 3. Read its failure, if there is one.
        if not result.is_file():
            last = (Path(temporary) / "output").read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            return Trial(error=f"the process ended with status {run.returncode}: {''.join(last)}", line=1)
        outcome = json.loads(result.read_text(encoding="utf-8"))
    return _located(program, outcome["line"], outcome["error"]) if outcome else Trial()


def _located(program: Ported, new_line: int, error: str) -> Trial:
    """Return a failure beside the old line that it came from."""
    line = old_line(program, new_line)
    old, new = program.old.splitlines(), program.new.splitlines()
    failed = new[new_line - 1].strip() if 0 < new_line <= len(new) else ""
    cell, line_in_cell = program.cell_and_line(line)
    listed = {(finding.cell, finding.line) for finding in program.by_hand}
    return Trial(
        error=error,
        line=line_in_cell,
        cell=cell,
        old=old[line - 1].strip() if 0 < line <= len(old) else "",
        new=failed,
        is_listed=_is_of_tensorflow(program, error, failed) or (cell, line_in_cell) in listed,
    )


def _is_of_tensorflow(program: Ported, error: str, line: str) -> bool:
    """Return whether a failure comes from a listed line, though it is at another: an import, or a call by Keras."""
    missing = re.match(r"ImportError: cannot import name '(\w+)'|ModuleNotFoundError: No module named 'keras\.", error)
    if missing is None:
        return " is TensorFlow's" in error
    names = [missing[1]] if missing[1] else re.findall(r"\w+", line.partition(" import ")[2])
    return any(name in finding.old for name in names for finding in program.by_hand)


def old_line(program: Ported, new_line: int) -> int:
    """Return the line of the old text that a line of the new text came from."""
    matcher = difflib.SequenceMatcher(None, program.old.splitlines(), program.new.splitlines(), autojunk=False)
    for _, old_start, old_end, new_start, new_end in matcher.get_opcodes():
        if new_start < new_line <= new_end:
            return min(old_start + new_line - new_start, max(old_end, old_start + 1))
    return new_line


def _copy(source: Path, folder: Path) -> None:
    """Copy the files of a folder; link the large ones."""
    count = 0
    for root, folders, files in os.walk(source):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in ("__pycache__", "venv")]
        target = folder / Path(root).relative_to(source)
        target.mkdir(parents=True, exist_ok=True)
        for name in files:
            count += 1
            path = Path(root) / name
            if count > MAX_FILES or not path.is_file():
                continue
            if path.stat().st_size > MAX_COPIED_BYTES:
                os.symlink(path.resolve(), target / name)
            else:
                shutil.copyfile(path, target / name)
