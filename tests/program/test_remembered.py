from __future__ import annotations

import gc
import weakref

import pytest

from anytpu.program.remembered import Remembered


class Thing:
    pass


def test_a_value_lives_as_long_as_its_object():
    kept, thing, value = Remembered(), Thing(), Thing()
    gone = weakref.ref(value)
    assert kept.keep(thing, value) is value
    assert kept.get(thing) is value
    del value, thing
    assert (len(kept), gone()) == (0, None)


def test_objects_count_by_identity():
    class Same(Thing):
        def __eq__(self, other):
            return True

        __hash__ = None  # pyright: ignore[reportAssignmentType]

    kept, one, other = Remembered(), Same(), Same()
    kept.keep(one, 1)
    assert kept.get(other) is None
    kept.keep(other, 2)
    assert (kept.get(one), kept.get(other)) == (1, 2)


def test_a_new_value_takes_the_place_of_the_old_one():
    kept, thing = Remembered(), Thing()
    kept.keep(thing, 1)
    kept.keep(thing, 2)
    assert (kept.get(thing), len(kept)) == (2, 1)
    del thing
    assert len(kept) == 0


def test_an_object_at_the_address_of_one_that_is_gone():
    kept = Remembered()
    for number in range(20):
        thing = Thing()
        assert kept.get(thing) is None
        kept.keep(thing, number)
        del thing
    assert len(kept) == 0


def test_what_is_kept_is_dropped_with_its_keeper():
    kept, thing, value = Remembered(), Thing(), Thing()
    kept.keep(thing, value)
    gone = weakref.ref(value)
    del kept, value
    gc.collect()
    assert gone() is None


def test_an_object_that_cannot_be_weakly_referenced():
    with pytest.raises(TypeError):
        Remembered().keep(1, 2)
