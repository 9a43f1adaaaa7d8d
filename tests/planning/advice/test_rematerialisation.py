"""What rematerialisation would save."""

from __future__ import annotations

from anytpu.planning.advice.rematerialisation import rematerialisation
from anytpu.planning.records import Memory
from planning.predictions import MIB


def points(*batches: int) -> list[tuple[int, Memory]]:
    """Return memories of 100 MiB and 1 MiB for each example, of at most 600 MiB."""
    return [(batch, Memory((100 + batch) * MIB, 600 * MIB)) for batch in batches]


def test_what_it_says():
    advice = rematerialisation(1024, 64, points(256, 512))
    assert advice is not None
    assert advice.text == (
        "Rematerialise: jax.checkpoint around each block of layers computes activations again instead of keeping them."
    )
    assert advice.evidence == (
        "1 GiB grow with the batch; keeping every 8th of 64 layers leaves about 356 MiB of 600 MiB, which fits, for "
        "about a third more computation (a rule of thumb, not compiled)."
    )


def test_where_it_is_not_enough():
    advice = rematerialisation(4096, 16, points(256, 512))
    assert advice is not None
    assert "about 2.1 GiB of 600 MiB, which still does not fit," in advice.evidence


def test_where_it_would_not_help():
    assert rematerialisation(1024, 3, points(256, 512)) is None
    assert rematerialisation(1024, 64, points(256)) is None
