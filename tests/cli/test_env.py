from __future__ import annotations

import importlib.metadata
import json
import platform
import re

import pytest

from anytpu.cli import env
from anytpu.cli.env import to_json, to_markdown
from cli.commands import anytpu


def test_markdown():
    run = anytpu("env", TPU_NAME="v2-8")
    assert (run.returncode, run.stderr) == (0, "")
    headings = [line for line in run.stdout.splitlines() if line.startswith("#")]
    assert headings == ["### Versions", "### Machine", "### Devices", "### Environment variables"]
    assert "| found | v2-8: 8 virtual cores, simulated on this machine's CPU |" in run.stdout
    assert re.search(r"^\| TPU_NAME +\| v2-8 +\|$", run.stdout, re.MULTILINE)


def test_json():
    told = json.loads(anytpu("env", "--json", TPU_NAME="v2-8").stdout)
    assert set(told) == {"versions", "machine", "devices", "environment_variables"}
    assert told["versions"]["python"] == platform.python_version()
    assert told["versions"]["keras"] == importlib.metadata.version("keras")
    assert told["devices"] == {"found": "v2-8: 8 virtual cores, simulated on this machine's CPU"}
    assert told["environment_variables"]["TPU_NAME"] == "v2-8"
    assert told["machine"]["CPU"].endswith("cores usable")


def test_what_goes_wrong_is_part_of_the_report(monkeypatch: pytest.MonkeyPatch):
    def broken(*_):
        raise RuntimeError("JAX cannot start")

    monkeypatch.setattr("anytpu.TPUClusterResolver", broken, raising=False)
    assert env.devices() == {"failed": "RuntimeError: JAX cannot start"}


def test_a_value_cannot_break_the_table():
    assert to_markdown({"Devices": {"failed": "a | b\nc"}}).splitlines()[-1] == "| failed | a \\| b c |"


def test_an_empty_section_says_none():
    assert to_markdown({"Versions": {}, "Machine": {}}) == "### Versions\n\nnone\n\n### Machine\n\nnone"


def test_json_has_the_same_values():
    assert json.loads(to_json({"Versions": {"jax": "0.10.2"}})) == {"versions": {"jax": "0.10.2"}}
