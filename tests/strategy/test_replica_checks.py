"""The checks of `replica_checks.py` and `loop_checks.py` on every kind of backend."""

from __future__ import annotations

from pathlib import Path

import pytest

import anytpu as tpu
from mesh_checks import failures_of_child
from strategy.loop_checks import LOOP_CHECKS
from strategy.replica_checks import CHECKS

ALL = {**CHECKS, **LOOP_CHECKS}

# The child below runs them on virtual cores too.
SYSTEMS = [*(pytest.param("virtual", cores, marks=pytest.mark.battery) for cores in (1, 8)), ("twin", 2)]


@pytest.mark.parametrize(("kind", "cores"), SYSTEMS, ids=lambda value: str(value))
@pytest.mark.filterwarnings("ignore:.* those of a replica that got some of its rows only are approximate")
@pytest.mark.parametrize("check", ALL.values(), ids=ALL)
def test_check(check, kind, cores):
    check(tpu.connect(kind, cores=cores))


@pytest.fixture(scope="module")
def mesh_failures(request: pytest.FixtureRequest) -> dict[str, str | None]:
    """What became in a child process, in float64, of the checks that pytest runs here, by "kind/check"."""
    items = [item for item in request.session.items if item.path == request.path and "[" in item.name]
    parameters = [item.callspec.params for item in items if "mesh" in item.name.partition("[")[0]]
    names = [f"{each['kind']}/{each['check']}" for each in parameters]
    return dict.fromkeys(names) | failures_of_child(Path(__file__).with_name("mesh_child.py"), *names)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["local", "virtual"])
@pytest.mark.parametrize("check", ALL)
def test_check_in_float64_on_a_mesh_and_on_virtual_cores(check, kind, mesh_failures):
    failure = mesh_failures[f"{kind}/{check}"]
    assert failure is None, failure
