from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.commands import anytpu


@pytest.mark.timeout(300)
def test_the_demo_reads_98_percent(tmp_path: Path):
    run = anytpu("demo", "--tpu", "v2-8", folder=tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stderr == "anytpu: the 8 cores are virtual: simulated on this machine's CPU (v2-8).\n"
    lines = run.stdout.splitlines()
    assert lines[:4] == [
        "v2-8: 8 virtual cores, simulated on this machine's CPU",
        "  /job:worker/replica:0/task:0/device:TPU:0 to TPU:7",
        "",
        "Training 14,698 weights on 1,438 digits, 64 per step on 8 virtual cores",
    ]
    assert [line for line in lines if line.startswith("epoch ")][-1].startswith("epoch 20/20  loss 0.")
    (accuracy,) = [line for line in lines if line.startswith("Test accuracy ")]
    assert float(accuracy.split()[2].rstrip("%,")) >= 98.0
    assert "Saved the weights to anytpu-demo/digits.weights.h5 (200 KiB)." in lines
    assert [line for line in lines if line.endswith("%, the same.")] != []
    assert lines[-1].count("read as ") == 4
    assert (tmp_path / "anytpu-demo" / "digits.weights.h5").is_file()


def test_a_folder_that_cannot_be_made(tmp_path: Path):
    (tmp_path / "file").write_text("")
    run = anytpu("demo", "--tpu", "virtual", "--output", "file", folder=tmp_path)
    assert run.returncode == 2
    assert run.stdout == ""
    assert run.stderr == "anytpu: cannot make the folder 'file': File exists; name another, --output\n"


def test_a_disk_without_room(tmp_path: Path):
    """On a real file system of 64 KiB, which h5py would fill until it crashes."""
    room = tmp_path / "room"
    room.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", room], capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")
    try:
        run = anytpu("demo", "--tpu", "virtual", "--cores", "2", "--epochs", "1", "--output", str(room))
    finally:
        subprocess.run(["umount", room], check=True)
    assert run.returncode == 2
    assert "Training 14,698 weights on 1,438 digits, 64 per step on 2 virtual cores" in run.stdout.splitlines()
    assert [line for line in run.stdout.splitlines() if line.startswith("epoch 1/1  loss ")] != []
    assert run.stderr.splitlines()[-1] == (
        f"anytpu: the weights, up to 1.11 MiB, cannot be written to '{room}/digits.weights.h5': No space left on "
        "device; name another folder, --output"
    )


def test_a_limit_of_the_size_of_files(tmp_path: Path):
    """The free space says nothing of such a limit, nor of a quota."""
    command = [sys.executable, "-m", "anytpu", "demo", "--tpu", "virtual", "--cores", "1", "--epochs", "1"]
    # In a shell: a preexec_fn would fork this process, whose JAX has threads.
    limited = ["sh", "-c", 'ulimit -f 200 && exec "$@"', "sh", *command, "--output", str(tmp_path)]
    # Or Python cuts off what it compiles.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    run = subprocess.run(limited, capture_output=True, text=True, env=environment)
    assert run.returncode == 2
    assert run.stderr.splitlines()[-1] == (
        f"anytpu: the weights, up to 1.11 MiB, cannot be written to '{tmp_path}/digits.weights.h5': File too large; "
        "name another folder, --output"
    )
    assert list(tmp_path.iterdir()) == []
