from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import anytpu as tpu


@pytest.fixture
def strategy() -> Any:
    """A strategy on four virtual cores, which are the system in use."""
    return tpu.connect("virtual", cores=4)


@pytest.fixture
def nothing_set() -> Iterator[None]:
    """Forget the number of shards that a test sets by hand."""
    from anytpu.migrate.low_level import session

    token = session._SET.set(None)
    yield
    session._SET.reset(token)
