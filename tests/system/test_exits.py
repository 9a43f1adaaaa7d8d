"""`ScriptEnd`: how the script of a process ended, as an exit handler sees it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

START = """
import atexit, contextlib, sys
from anytpu.system.exits import ScriptEnd
def begin():
    end = ScriptEnd()
    end.watch()
    atexit.register(lambda: print(end.failure()))
begin()
def leave(status):
    sys.exit(status)
def catch():
    try:
        leave(3)
    except SystemExit:
        return
"""


@pytest.mark.parametrize(
    ("statements", "status", "failure"),
    [
        pytest.param("leave(1)", 1, "sys.exit(1)", id="a failure"),
        pytest.param("leave('no rows')", 1, "sys.exit('no rows')", id="a message"),
        pytest.param("with contextlib.ExitStack(): leave(2)", 2, "sys.exit(2)", id="inside a with block of the module"),
        pytest.param("try: leave(2)\nfinally: print(end='')", 2, "sys.exit(2)", id="inside a try block of the module"),
        pytest.param("catch()", 0, "None", id="caught, and the script continues"),
        pytest.param("leave(0)", 0, "None", id="success"),
        pytest.param("leave(None)", 0, "None", id="success without a status"),
        pytest.param("leave(75)", 75, "None", id="the run is saved, and the program stops"),
        pytest.param("", 0, "None", id="the end of the script"),
    ],
)
def test_the_end_of_a_script(tmp_path: Path, statements: str, status: int, failure: str):
    script = tmp_path / "script.py"
    script.write_text(f"{START}{statements}\n")

    done = subprocess.run([sys.executable, script], capture_output=True, text=True)

    assert (done.returncode, done.stdout) == (status, f"{failure}\n")
