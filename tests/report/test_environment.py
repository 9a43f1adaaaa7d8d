from __future__ import annotations

import json

from anytpu.report.environment import to_json, to_markdown


def test_a_value_cannot_break_the_table():
    assert to_markdown({"Devices": {"failed": "a | b\nc"}}).splitlines()[-1] == "| failed | a \\| b c |"


def test_an_empty_section_says_none():
    assert to_markdown({"Versions": {}, "Machine": {}}) == "### Versions\n\nnone\n\n### Machine\n\nnone"


def test_json_has_the_same_values():
    assert json.loads(to_json({"Versions": {"jax": "0.10.2"}})) == {"versions": {"jax": "0.10.2"}}
