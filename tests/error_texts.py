"""The text of an error, for tests that compare it as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from anytpu.errors import AnyTPUError


def error_text(
    call: Callable[..., Any], *arguments: Any, kind: type[BaseException] = AnyTPUError, **options: Any
) -> str:
    """Call a function with arguments, and return the text of the error of a kind that it must raise."""
    with pytest.raises(kind) as caught:
        call(*arguments, **options)
    return str(caught.value)
