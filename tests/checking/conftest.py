"""Processes that `tpu.check` starts fork from the server of `forked.py`; test_runs.py starts Python itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import forked


@pytest.fixture(autouse=True)
def forked_processes(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.path.name != "test_runs.py":
        monkeypatch.setattr(sys, "executable", str(forked.executable(tmp_path)))
