from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from anytpu.cli import doctor
from anytpu.cli.machine import look_at_machine
from cli.commands import anytpu


def line_of(name: str, text: str) -> str:
    return next(line for line in text.splitlines() if line[9:].startswith(name))


def test_virtual_cores_pass():
    run = anytpu("doctor", "--tpu", "virtual", "--cores", "3")
    assert run.returncode == 0, run.stdout
    assert line_of("found", run.stdout) == (
        "ok       found          3 virtual cores: 3 virtual cores, simulated on this"
    )
    assert line_of("small step", run.stdout).startswith(
        "ok       small step     multiplied on 3 cores and all-reduced,"
    )
    assert run.stdout.splitlines()[-1].endswith("next: anytpu demo")


def test_a_check_that_failed_ends_with_1_and_the_others_are_shown():
    run = anytpu("doctor", "--tpu", "v2-9")
    assert run.returncode == 1
    assert line_of("found", run.stdout).startswith("failed   found          'v2-9' is not a TPU that exists:")
    assert line_of("extra plan", run.stdout) == "ok       extra plan     installed, for planning without a TPU"
    assert run.stdout.splitlines()[-1].endswith("1 failed; fix the failed checks, the first one first")


def test_a_step_that_raises_is_a_check_that_failed(monkeypatch: pytest.MonkeyPatch):
    def broken(strategy):
        raise RuntimeError("the compiler\nrefused.")

    monkeypatch.setattr(doctor, "try_cores", broken)
    *_, check = doctor.system_checks("virtual", 2, look_at_machine())
    assert (check.status, check.name, check.finding) == ("failed", "small step", "the compiler refused")
    assert check.command == "anytpu env"


def test_optional_packages_that_are_broken(tmp_path: Path):
    for name in ("anytpu_kernels", "tensorflow", "onnx"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('a broken wheel')\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    run = anytpu("doctor", "--tpu", "virtual", COLUMNS="1000", PYTHONPATH=path)
    assert (run.returncode, run.stderr) == (0, run.stderr), run.stdout
    assert line_of("kernels", run.stdout).endswith("anytpu_kernels cannot be loaded: a broken wheel")


def test_a_folder_that_was_removed(tmp_path: Path):
    command = f"cd {tmp_path} && rmdir {tmp_path} && exec {sys.executable} -P -m anytpu doctor --tpu virtual"
    run = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert line_of("machine", run.stdout).startswith("failed   machine"), run.stdout
    assert run.returncode == 1 and "Traceback" not in run.stderr


BAD_FLAGS = (
    "XLA cannot read XLA_FLAGS='--xla_bogus=1' and would end this process: Unknown flag in XLA_FLAGS: --xla_bogus=1. "
    "Take that flag out, or: unset XLA_FLAGS"
)


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("XLA_FLAGS", "--xla_bogus=1", BAD_FLAGS),
        ("JAX_ENABLE_X64", "banana", "JAX_ENABLE_X64 must be 1 or 0, not 'banana': unset JAX_ENABLE_X64"),
    ],
)
def test_settings_that_end_jax_are_a_check_that_failed(tmp_path: Path, name: str, value: str, found: str):
    settings = {"COLUMNS": "1000", "ANYTPU_CACHE_DIR": str(tmp_path), name: value}
    run = anytpu("doctor", "--tpu", "virtual", folder=tmp_path, **settings)
    assert run.returncode == 1, run.stderr
    assert " ".join(run.stdout.split()).startswith(f"failed settings {' '.join(found.split())}"), run.stdout
    assert line_of("memory", run.stdout) and line_of("extra dev", run.stdout)
    other = anytpu("devices", folder=tmp_path, **settings)
    assert (other.returncode, other.stdout, other.stderr) == (2, "", f"anytpu: {found}\n")


def test_flags_that_xla_reads_are_tried_once(tmp_path: Path):
    flags = {"XLA_FLAGS": "--xla_cpu_enable_fast_math=false", "ANYTPU_CACHE_DIR": str(tmp_path)}
    for _ in range(2):
        run = anytpu("devices", "--tpu", "virtual", folder=tmp_path, **flags)
        assert run.returncode == 0, run.stderr
    assert len(list((tmp_path / "xla_flags").iterdir())) == 1
