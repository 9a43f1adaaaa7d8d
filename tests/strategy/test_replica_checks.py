"""The checks of `replica_checks.py` and `loop_checks.py` on every kind of backend."""

from __future__ import annotations

from pathlib import Path

import pytest

import anytpu as tpu
from mesh_checks import failures_of_child
from strategy.loop_checks import LOOP_CHECKS
from strategy.replica_checks import CHECKS

ALL = {**CHECKS, **LOOP_CHECKS}

SYSTEMS = [pytest.param("virtual", 1, marks=pytest.mark.battery), ("virtual", 8), ("twin", 2)]


@pytest.mark.parametrize(("kind", "cores"), SYSTEMS, ids=lambda value: str(value))
@pytest.mark.filterwarnings("ignore:.* those of a replica that got some of its rows only are approximate")
@pytest.mark.parametrize("check", ALL.values(), ids=ALL)
def test_check(check, kind, cores):
    check(tpu.connect(kind, cores=cores))


@pytest.fixture(scope="module")
def mesh_failures() -> dict[str, str]:
    """What failed in a child process, in float64, by "kind/check"."""
    # The shards are tested, not LLVM's code.
    return failures_of_child(Path(__file__).with_name("mesh_child.py"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["local", "virtual"])
@pytest.mark.parametrize("check", ALL)
def test_check_in_float64_on_a_mesh_and_on_virtual_cores(check, kind, mesh_failures):
    failure = mesh_failures.get(f"{kind}/{check}")
    assert failure is None, failure
