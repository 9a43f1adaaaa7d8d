"""Starts a process that runs cases of the exact grid: devices and dtype are settled before JAX starts."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from exact.grid import Case, Result
from forked import python

_ROOT = Path(__file__).parents[2]


def environment(backend: str, dtype: str) -> dict[str, str]:
    """Return the environment of a process for cases of this backend and dtype.

    Eight devices that are forced out of a CPU wait for each other, so the pool has to have a thread for each and more.
    """
    several = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "PJRT_NPROC": "16"}
    return {
        **os.environ,
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_X64": "1" if dtype == "float64" else "0",
        "PYTHONPATH": os.pathsep.join([str(_ROOT / "tests"), str(_ROOT / "src")]),
        **(several if backend == "local" else {}),
    }


def run(cases: Iterable[Case], variables: Mapping[str, str] | None = None) -> Iterator[Result]:
    """Run cases of one backend and dtype in a process of their own, and yield each result when it is there.

    Args:
        cases: the cases; those of one size that differ in their cores should stand together, then they share an oracle.
        variables: environment variables of the process besides those of the backend and dtype.
    """
    listed = list(cases)
    (backend,), (dtype,) = {case.backend for case in listed}, {case.dtype for case in listed}
    with subprocess.Popen(
        [*python(), "-m", "exact.child", json.dumps([dataclasses.asdict(case) for case in listed])],
        env={**environment(backend, dtype), **(variables or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout and child.stderr
        for line in child.stdout:
            fields = json.loads(line)
            yield Result(**{**fields, "case": Case(**fields["case"])})
        complaint = child.stderr.read()
    assert child.returncode == 0, f"the process of the cases ended with {child.returncode}:\n{complaint[-4000:]}"
