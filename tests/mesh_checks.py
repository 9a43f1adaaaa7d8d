"""Eight host devices of a child process, and checks that it runs on a mesh of them, in float64."""

from __future__ import annotations

import json
import os
import subprocess
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from forked import python

EIGHT_DEVICES = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    # With fewer threads than devices an all-reduce waits for itself.
    "PJRT_NPROC": "16",
}
"""The environment of a process with 8 host devices."""


def failures_of_child(child: Path, *words: str, **settings: str) -> dict[str, str]:
    """Run a child process on 8 host devices, and return what it prints last: the failures by name, as JSON.

    Args:
        child: the program.
        words: its arguments.
        settings: further variables of its environment.
    """
    forced = {**EIGHT_DEVICES, "KERAS_BACKEND": "jax", "JAX_ENABLE_X64": "1"}
    ran = subprocess.run(
        [*python(), str(child), *words],
        env={**os.environ, **forced, **settings},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def failures_of(checks: Mapping[str, Callable[..., Any]], *arguments: Any) -> dict[str, str]:
    """Run checks, and return the traceback of each that fails, by its name."""
    failures = {}
    for name, check in checks.items():
        try:
            check(*arguments)
        except Exception:
            failures[name] = traceback.format_exc()
    return failures
