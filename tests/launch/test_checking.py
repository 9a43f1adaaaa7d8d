from __future__ import annotations

import os
from pathlib import Path

import pytest

from anytpu.errors import SettingError
from anytpu.launch.checking import check_checkpoint_dir, check_file
from anytpu.launch.jobs import engine_named


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of programs that come before the machine's."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_tool(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    "error",
    [
        "The connection to the server localhost:8080 was refused - did you specify the right host or port?",
        "Unable to connect to the server: dial tcp: lookup cluster: no such host",
        "dial tcp 127.0.0.1:8080: connect: connection refused",
    ],
)
def test_a_cluster_that_does_not_answer_is_no_fault_of_the_file(tools: Path, error: str):
    write_tool(tools / "kubectl", f"echo '{error}'; exit 1")
    (tools / "job").touch()
    with pytest.raises(SettingError) as caught:
        check_file(engine_named("jobset"), "job")
    assert str(caught.value) == (
        "JobSet on GKE cannot be reached, so 'job' was not checked. `kubectl apply --dry-run=server -f job` says:\n"
        f"{error}"
    )


def test_a_check_never_submits_a_job_of_xpk(tools: Path):
    write_tool(tools / "xpk", 'echo "$@" >> calls')
    call = 'xpk workload create "${options[@]}"'
    for text in ("", call, f'{call} "$@"\necho', f'{call}\n{call} "$@"', f'# {call} "$@"'):
        (tools / "job").write_text(f"{text}\n")
        with pytest.raises(SettingError) as caught:
            check_file(engine_named("xpk"), "job")
        assert str(caught.value) == (
            "the check runs 'job' with --dry-run, and the file would ignore it and submit the job. End each call of "
            'xpk, and the last line, with "$@"'
        )
    assert not (tools / "calls").exists()
    (tools / "job").write_text(f'{call} "$@"\n\n')
    check_file(engine_named("xpk"), "job")
    assert (tools / "calls").read_text() == "workload create --dry-run --skip-validation\n"


def test_a_url_of_a_file_is_a_folder_of_this_machine(tmp_path: Path):
    check_checkpoint_dir(engine_named("slurm"), f"file://{tmp_path}/run")
    with pytest.raises(SettingError) as caught:
        check_checkpoint_dir(engine_named("skypilot"), "file:///tmp/run")
    assert str(caught.value) == (
        "the hosts of SkyPilot share no disk, so the checkpoints cannot be in 'file:///tmp/run'. Name a bucket, like "
        "--checkpoint-dir gs://BUCKET/FOLDER"
    )
