"""What an error says, whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def refusal(kind: type[Exception], call: Callable[..., Any], /, *arguments: Any, **options: Any) -> str:
    """The text of the error of this kind that a call raises."""
    with pytest.raises(kind) as caught:
        call(*arguments, **options)
    return str(caught.value)
