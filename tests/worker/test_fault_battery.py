"""A sample of `scripts/fault_worker.py`, which makes the faults of networks and programs."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

BATTERY = Path(__file__).parents[2] / "scripts" / "fault_worker.py"


@pytest.fixture(scope="module")
def battery() -> Any:
    spec = importlib.util.spec_from_file_location(BATTERY.stem, BATTERY)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[BATTERY.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("case", "scale"), [("half_open", 0.02), ("half_calls", 1.0), ("noise", 0.02), ("small_calls", 0.02)]
)
def test_a_fault(battery: Any, case: str, scale: float):
    assert battery.run_case(case, argparse.Namespace(scale=scale, seed=0, minutes=0))["faults"] == []
