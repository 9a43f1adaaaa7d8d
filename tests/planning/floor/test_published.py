"""Floors of published steps lie below what was measured."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

import plan_cases
from anytpu.planning.floor.floor import by_floor
from anytpu.planning.jobs.settings import PlanSettings
from anytpu.planning.records.target import target_named
from anytpu.program import of

CASES = {case.name: case for case in plan_cases.CASES}


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("matmul_8192_v6e", 0.90),
        ("shmap_6.9b_v3-32", 0.52),
        ("maxtext_16b_v5e-256", 0.71),
        ("llama3_405b_v5p-1024", 0.82),
        ("torchprime_mixtral_16_v6e-4", 0.45),
        ("tpuchat_164m_v5e-1", 0.64),
    ],
)
def test_the_floor_is_a_part_of_what_was_measured(name: str, share: float):
    case = CASES[name]
    step, specs = case.build()
    found = by_floor(of(step, specs), target_named(case.target), PlanSettings(), "no compiler")
    assert found.time is not None
    assert found.time.step_s / case.measured_s == pytest.approx(share, abs=0.01)
    assert not found.time.unpriced
