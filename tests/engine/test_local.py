"""The local backend over several hosts: what it refuses. What it computes is in the battery of the backends."""

from __future__ import annotations

import pytest

import anytpu as tpu
from anytpu.errors import HostsError


def test_a_system_for_one_process_is_refused_in_one_of_several(monkeypatch: pytest.MonkeyPatch):
    for name, value in {"COORDINATOR": "127.0.0.1:8476", "PROCESSES": "4", "PROCESS": "1"}.items():
        monkeypatch.setenv(f"ANYTPU_{name}", value)

    with pytest.raises(HostsError) as caught:
        tpu.connect("v2-8")

    assert str(caught.value) == (
        "this process is one of 4 (anytpu launch), and 'v2-8' is a system for one process: each would train a model of "
        "its own. Write tpu.connect(), which uses the devices of all"
    )
