"""The decisions of a rendezvous, as functions of greetings."""

from __future__ import annotations

import dataclasses
import json

import pytest

from anytpu.system import join_rules
from anytpu.system.join_rules import Greeting

FIRST = Greeting(0, 4, "box0", {"jax": "0.10.2", "Python": "3.12.3"}, "secret")


def test_a_greeting_travels():
    assert join_rules.parse_greeting(FIRST.line()) == FIRST
    assert "secret" not in repr(FIRST)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"GET / HTTP/1.1\r",
        b"\x16\x03\x01\x02\x00",
        b"[1, 2]",
        b"{}",
        b'{"anytpu": 2}',
        b"[" * 4000,
        FIRST.line().replace(b'"anytpu": 1', b'"anytpu": 2'),
        FIRST.line().replace(b'"index": 0', b'"index": "0"'),
        FIRST.line().replace(b'"0.10.2"', b"[" * 900 + b"]" * 900),
        FIRST.line().replace(b'"token"', b'"tokens"'),
    ],
)
def test_a_line_of_another_form(line: bytes):
    assert join_rules.parse_greeting(line) is None


def test_control_characters_of_a_name_are_not_printed():
    line = json.dumps({"anytpu": 1, **dataclasses.asdict(FIRST), "name": "a\x1b[2Jb"}).encode()
    greeting = join_rules.parse_greeting(line)
    assert greeting is not None
    assert greeting.name == r"a\x1b[2Jb"


@pytest.mark.parametrize(("token", "is_right"), [("secret", True), ("Secret", False), (None, False), ("é", False)])
def test_the_token(token: str | None, is_right: bool):
    assert join_rules.has_token(dataclasses.replace(FIRST, token=token), "secret") is is_right
    assert join_rules.has_token(dataclasses.replace(FIRST, token=token), None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"index": 2}, None),
        (
            {"index": 2, "processes": 3},
            "host 2 (box) was started for 3 hosts, and host 0 (box0) for 4. Start every host with the same number of "
            "processes",
        ),
        ({"index": 4}, "the index of a host (box) is 4; it must be 0 to 3"),
        (
            {"index": 1},
            "two hosts have the index 1: box1 and box. Start each host with its own index, 0 to 3",
        ),
        (
            {"index": 2, "versions": {"jax": "0.10.1", "Python": "3.12.3"}},
            "host 2 (box) has jax 0.10.1, and host 0 (box0) has jax 0.10.2. Install the same versions on every host",
        ),
        (
            {"index": 2, "versions": {"jax": "0.10.2"}},
            "host 2 (box) has Python None, and host 0 (box0) has Python 3.12.3. Install the same versions on every "
            "host",
        ),
    ],
)
def test_refusals(changes: dict[str, object], message: str | None):
    greeting = dataclasses.replace(FIRST, name="box", **changes)
    assert join_rules.refusal(greeting, FIRST, {0: "box0", 1: "box1"}) == message


def test_missing_hosts_are_named():
    assert join_rules.missing_text({3, 1}, 4, 300.0) == (
        "hosts 1 and 3 of 4 did not come within 300 s. Start every host with the same address, and each with its own "
        "index"
    )
