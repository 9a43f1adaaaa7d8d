"""The child process: what it says when it fails, and that systems of the user's stay as they are."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

import anytpu as tpu
from anytpu.checking.runs import _reporting_devices, _run_child, cores_in_scope
from anytpu.errors import BackendError
from anytpu.system.lifecycle import current_system


def test_a_child_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "random.py").write_text("raise SystemExit('mine')")  # Not the child's, though in the working folder.
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BackendError) as caught:
        _run_child("sequential/train", tmp_path, 2, timeout_s=60)
    lines = str(caught.value).splitlines()
    assert lines[0] == (
        "the process that runs a step of 'sequential/train' on 2 devices ended with status 1. The end of its log:"
    )
    assert lines[-1] == (
        f"anytpu.errors.ProgramError: The program file '{tmp_path}/step.anytpu' cannot be read: No such file or "
        "directory."
    )


def test_systems_of_the_users_stay():
    strategy = tpu.connect("virtual", cores=3)
    with cores_in_scope(3) as other:
        assert other.system is not strategy.system
        assert tpu.get_strategy() is other
        assert other.num_replicas_in_sync == 3
    assert tpu.get_strategy().num_replicas_in_sync == 1
    assert strategy.system.is_running
    assert current_system() is strategy.system
    assert not other.system.is_running


def test_a_trace_here_sees_as_many_devices_as_there():
    before = jax.devices()
    with _reporting_devices(3):
        assert (jax.device_count(), jax.local_device_count()) == (3, 3)
        assert jax.devices() == jax.local_devices() == 3 * before[:1]
    assert jax.devices() == before and jax.device_count() == len(before)
