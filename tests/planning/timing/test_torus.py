from anytpu.planning.target import target_named
from anytpu.planning.timing.torus import Side, span_of


def span(name, count, stride=1):
    return span_of(target_named(name), tuple(range(0, count * stride, stride)))


def test_a_slice_smaller_than_the_pod_has_lines():
    assert span("v5e-16", 16).sides == (Side(4, False), Side(4, False))
    assert span("v5e-16", 16).links == 2


def test_a_side_as_long_as_the_pod_is_a_ring():
    found = span("v5e-256", 256)
    assert found.sides == (Side(16, True), Side(16, True))
    assert (found.links, found.hops, found.chips) == (4, 16, 256)


def test_whole_cubes_have_rings():
    assert span("v5p-128", 64).links == 6
    assert span("v5p-64", 32).links == 3


def test_cores_of_one_chip_are_no_chips_of_their_own():
    found = span("v3-8", 8)
    assert (found.chips, found.cores, found.share) == (4, 2, 1.0)
    assert span("v3-8", 2).chips == 1


def test_groups_of_one_core_of_each_chip_share_its_links():
    found = span("v7x-8", 4, stride=2)
    assert (found.chips, found.cores, found.share, found.links) == (4, 1, 0.5, 1.0)


def test_a_group_fills_sides_of_the_grid_where_it_can():
    assert span("v5p-128", 16).sides == (Side(4, True), Side(4, True))
    assert span("v5e-256", 16).sides == (Side(16, True),)


def test_a_group_that_fills_no_side_is_a_block_of_lines():
    assert span("v5e-256", 4).sides == (Side(2, False), Side(2, False))
    assert span("v5e-256", 8).sides == (Side(4, False), Side(2, False)) or span("v5e-256", 8).chips == 8
