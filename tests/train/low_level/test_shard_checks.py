"""The checks of `shard_checks.py` on every kind of backend."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import anytpu as tpu
from train.low_level.shard_checks import CHECKS

pytestmark = pytest.mark.usefixtures("quick_compilation")

SYSTEMS = [("virtual", 8), ("virtual", 1), ("twin", 3)]


@pytest.mark.parametrize(("kind", "cores"), SYSTEMS, ids=str)
@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_check(check, kind, cores):
    tpu.connect(kind, cores=cores)
    check()


@pytest.fixture(scope="module")
def mesh_failures() -> dict[str, str]:
    """What failed in a child process, in float64, by the name of the check."""
    forced = {
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_X64": "1",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "PJRT_NPROC": "16",
    }
    child = Path(__file__).with_name("mesh_child.py")
    ran = subprocess.run(
        [sys.executable, str(child)], env={**os.environ, **forced}, capture_output=True, text=True, timeout=500
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("check", CHECKS)
def test_check_in_float64_on_a_mesh(check, mesh_failures):
    failure = mesh_failures.get(check)
    assert failure is None, failure
