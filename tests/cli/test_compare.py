from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

import pytest

from anytpu.cli.compare import job_named
from anytpu.cli.entry import main
from anytpu.errors import SettingError
from cli.commands import anytpu

JOB = """\
    import keras
    import numpy as np

    ROWS = 24


    def small(strategy):
        \"\"\"Halve a number.\"\"\"
        x = np.ones((ROWS, 1), "float32")
        with strategy.scope():
            model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        return model, x, x / 2, 8
    """


def test_a_job_of_ones_own(tmp_path: Path):
    (tmp_path / "mine.py").write_text(textwrap.dedent(JOB))
    run = anytpu("compare", "mine.py:small", "--rounds", "1", "--json", "numbers.json", folder=tmp_path)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert lines[:2] == ["Halve a number", "24 examples an epoch, 8 a step"]
    assert "The first epoch includes compilation. The others: 1 epoch." in lines
    record = json.loads((tmp_path / "numbers.json").read_text())
    names = [measurement["name"] for measurement in record["measurements"]]
    assert names[:2] == ["1 virtual core", "8 virtual cores"]
    assert [len([line for line in lines if line.strip().startswith(name)]) for name in names] == [2] * len(names)
    assert record["measurements"][0]["speed_up"] == 1.0


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "digit",
            "there is no job 'digit'; the jobs are digits, iris, imdb, mnist, or your own function, path.py:function",
        ),
        ("no.py:job", "there is no file 'no.py'; name a function in a file, like bench.py:job"),
        ("mine.py:large", "mine.py has no function 'large'; it has 'small'"),
        ("mine.py:ROWS", "mine.py has no function 'ROWS'; it has 'small'"),
    ],
)
def test_a_job_that_is_not_there(word: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "mine.py").write_text(textwrap.dedent(JOB))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SettingError) as caught:
        job_named(word)
    assert str(caught.value) == message


def test_a_job_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "mine.py").write_text(
        "def broken(strategy):\n    raise ValueError('no data')\n\n\ndef alone():\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert main(["compare", "mine.py:broken"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "anytpu: mine.py, line 2, in broken: ValueError: no data; --traceback shows the whole traceback"
    )
    assert main(["compare", "mine.py:alone"]) == 2
    assert capsys.readouterr().err == ("anytpu: a job takes one argument, the strategy: alone() does not\n")
