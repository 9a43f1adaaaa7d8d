import dataclasses

import pytest

from anytpu.errors import PlanError
from anytpu.planning.limits import limit_bytes
from anytpu.planning.target import target_named
from anytpu.system.chips import CHIPS
from anytpu.units import GIB


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        ("v2-8", 7.48),
        ("v3-8", 15.48),
        ("v4-8", 30.75),
        ("v5e-8", 15.75),
        ("v5p-8", 95.74),
        ("v6e-8", 31.25),
        ("v7x-8", 94.75),
    ],
)
def test_what_the_compiler_says_beside_its_refusal(name: str, gib: float):
    assert limit_bytes(target_named(name)) / GIB == pytest.approx(gib, abs=0.006)


def test_a_core_of_v4_alone_has_half():
    single = dataclasses.replace(target_named("v4-8"), chip_config=None)
    assert limit_bytes(single) / GIB == pytest.approx(15.25, abs=0.006)


def test_a_chip_whose_limit_is_not_known():
    with pytest.raises(PlanError) as caught:
        limit_bytes(dataclasses.replace(target_named("v2-8"), chip=CHIPS["v1"]))
    assert str(caught.value) == (
        "what the TPU compiler lets a program use of a v1 is not known; it is for v2, v3, v4, v5e, v5p, v6e, v7x"
    )
