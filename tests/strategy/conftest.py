from __future__ import annotations

from typing import Any

import pytest

import anytpu as tpu


@pytest.fixture
def strategy() -> Any:
    """A strategy of its own on two virtual cores."""
    return tpu.connect("virtual", cores=2)
