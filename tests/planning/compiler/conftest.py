from __future__ import annotations

from pathlib import Path

import pytest

import recorded_compilations


@pytest.fixture(autouse=True)
def compiler_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """No recorded answers."""
    monkeypatch.setattr(recorded_compilations, "is_used", False)


@pytest.fixture(autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for each test; returns the folder in which its answers lie."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("ANYTPU_CACHE_DIR", str(folder))
    return folder / "plan"
