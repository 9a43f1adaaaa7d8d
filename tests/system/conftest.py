"""A machine whose chips the tests choose: what hangs on a machine is the seam here."""

from __future__ import annotations

import pytest

from anytpu import _env
from anytpu.system import lifecycle


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No TPU, no GPU, nothing in the environment, no system that runs."""
    for name in (*_env.TPU_VARIABLES, "JAX_PLATFORMS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(_env, "tpu_chips", lambda: 0)
    monkeypatch.setattr(_env, "has_nvidia", lambda: False)
    monkeypatch.setattr(_env, "other_plugins", lambda: ())
    monkeypatch.setattr(_env, "jax_platforms", lambda: ())
    monkeypatch.setattr(lifecycle, "_running", {})
    monkeypatch.setattr(lifecycle, "_announced", False)
    return monkeypatch
