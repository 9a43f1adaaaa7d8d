from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import FileError
from anytpu.train.checkpoint import Checkpoints
from anytpu.train.checkpoint.manifest import digest_of
from cli.commands import anytpu


def test_a_list_of_checkpoints(tmp_path: Path):
    saved = tpu.Checkpointer(tmp_path / "run7", every_steps=1, keep=2)
    for step in saved.steps(3, state={"a": np.zeros(1000)}):
        saved.report(val_loss=step / 2)
    run = anytpu("checkpoints", "run7", folder=tmp_path)
    assert (run.returncode, run.stderr) == (0, "")
    lines = [re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", line) for line in run.stdout.splitlines()]
    assert lines[0].split() == ["step", "saved", "size", "state", "made", "by", "metrics"]
    assert [re.split(r"  +", line) for line in lines[1:]] == [
        ["2", "TIME", re.split(r"  +", lines[1])[2], "verified", "Checkpointer", "val_loss 0.5"],
        ["3", "TIME", re.split(r"  +", lines[2])[2], "verified", "Checkpointer", "val_loss 1"],
    ]
    (tmp_path / "run7" / "3" / "arrays.bin").write_bytes(b"")
    run = anytpu("checkpoints", "run7", folder=tmp_path)
    assert run.returncode == 1
    assert re.search(r"^3 .* damaged +-$", run.stdout, re.MULTILINE)
    assert re.search(r"^step 3: its arrays.bin has 0 bytes, and [\d,]+ were written$", run.stdout, re.MULTILINE)
    manifest = tmp_path / "run7" / "2" / "manifest.json"
    manifest.write_text('{"kind": "anytpu checkpoint", "format": 2}')
    run = anytpu("checkpoints", "run7", folder=tmp_path)
    assert run.returncode == 1
    assert re.search(r"^2 .* unreadable +-$", run.stdout, re.MULTILINE)
    assert "step 2: its manifest.json is of format 2, and this release of anytpu reads formats up to 1" in run.stdout


def test_there_is_no_checkpoint(tmp_path: Path):
    run = anytpu("checkpoints", "run7", folder=tmp_path)
    assert run.returncode == 2
    assert run.stderr == ("anytpu: there is no folder 'run7': pass the checkpoint_dir of a fit, or a model_dir\n")
    assert anytpu("checkpoints", ".", folder=tmp_path).stdout == "There is no checkpoint in ..\n"


def test_the_texts_of_a_checkpoint_do_nothing_to_a_terminal(tmp_path: Path):
    escape = "\x1b]0;owned\x07\x1b[2J\r\n9  forged"
    made = {"by": escape, "model": escape, "epoch": [escape], "cores": 8}
    hosts: list[Any] = [
        {"made": made, "metrics": {escape: 0.5, "text": escape}},
        {"made": [escape], "metrics": 7},
        {"made": {}},
    ]
    for step, host in enumerate(hosts, start=1):
        Checkpoints(tmp_path).save(step, {escape: np.zeros(3)}, host=host)
    damaged = tmp_path / "4"
    damaged.mkdir()
    fields = {"kind": "anytpu checkpoint", "format": 1, "step": 4, "host": None}
    fields["arrays"] = [{"name": escape, "shape": [1], "dtype": escape, "offset_bytes": 0, "digest": escape}]
    content = json.dumps({**fields, "digest": digest_of(json.dumps(fields, indent=1).encode())}, indent=1)
    (damaged / "manifest.json").write_text(content)
    run = anytpu("checkpoints", str(tmp_path))
    assert (run.returncode, run.stderr) == (1, "")
    rows = [line[: line.index(" ")] for line in run.stdout.splitlines()]
    assert rows == ["step", "1", "2", "3", "4", "step"]
    assert all(char.isprintable() for char in run.stdout.replace("\n", ""))
    assert "?]0;owned??[2J??9 forged, model ?]0;owned" in run.stdout
    with pytest.raises(FileError) as raised:
        list(tpu.Checkpointer(tmp_path).steps(3, state={"a": 1}))
    assert str(raised.value).isprintable()
