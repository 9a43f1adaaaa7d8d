"""A child process tries a jaxlib once before any loop is marked; a failed trial is logged once."""

from __future__ import annotations

import json
import logging
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from anytpu.engine import small_loops, trial, trial_child
from anytpu.engine.kernels import fast_kernels


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give each test an empty cache folder, and no result in memory."""
    monkeypatch.setenv("ANYTPU_CACHE_DIR", str(tmp_path))
    trial._has_passed_trial.cache_clear()
    yield
    trial._has_passed_trial.cache_clear()


def lowered() -> str:
    def doubled(x: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda _, x: x * 2 + x.sum(), x)

    with fast_kernels(layers=False):
        return jax.jit(lambda x: doubled(x)).lower(np.ones(4, "float32")).as_text()


def test_the_trial_runs_once_and_its_result_is_stored(monkeypatch: pytest.MonkeyPatch):
    assert small_loops.MARK in lowered()
    assert json.loads(trial.result_file().read_text()) == {"failed": ""}
    assert trial.result_file().name.startswith(f"jaxlib-{version('jaxlib')}-")
    trial._has_passed_trial.cache_clear()
    monkeypatch.setattr(trial, "_CHILD", "no_such_module")
    assert small_loops.MARK in lowered()


def child_that(folder: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """Replace the trial's child by a module of these lines."""
    (folder / "child_of_a_test.py").write_text("\n".join(("import os, signal, sys", *lines)))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setattr(trial, "_CHILD", "child_of_a_test")


BEGINS = f"print({trial.BEGAN!r}, flush=True)"
SLOW = (
    "Small loops run as XLA compiles them, up to twice as slow as with a jaxlib that anytpu can speed up; the results "
)
NO_RESULT = (
    "Small loops run as XLA compiles them in this process, up to twice as slow; the results are the same. The trial "
)


@pytest.mark.parametrize(
    ("end", "failed"),
    [
        ("os.abort()", "its process ended with SIGABRT (F1 XLA's last words)"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "its process ended with SIGSEGV (F1 XLA's last words)"),
        (f"os._exit({trial.FAILED})", "F1 XLA's last words"),
    ],
)
def test_a_failed_trial_is_logged_once_and_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, end: str, failed: str
):
    child_that(tmp_path, monkeypatch, BEGINS, 'os.write(2, b"F1 XLA\'s last words\\n")', end)
    with caplog.at_level(logging.WARNING, "anytpu"):
        for _ in range(2):
            assert small_loops.MARK not in lowered()
    assert json.loads(trial.result_file().read_text()) == {"failed": failed}
    assert [record.getMessage() for record in caplog.records] == [
        f"{SLOW}are the same. jaxlib {version('jaxlib')} failed the trial: {failed}"
    ]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (("import no_such_module",), "exit code 1 (ModuleNotFoundError: No module named 'no_such_module')"),
        (("sys.exit(0)",), "exit code 0 (no message)"),
        ((f"sys.exit({trial.FAILED})",), f"exit code {trial.FAILED} (no message)"),
        (("os.abort()",), "SIGABRT (no message)"),
        ((BEGINS, "raise MemoryError"), "exit code 1 (MemoryError)"),
        ((BEGINS, "os.kill(os.getpid(), signal.SIGKILL)"), "SIGKILL (no message)"),
        ((BEGINS, "os.kill(os.getpid(), signal.SIGTERM)"), "SIGTERM (no message)"),
        ((BEGINS, "os.write(2, b'std::bad_alloc')", "os.abort()"), "SIGABRT (std::bad_alloc)"),
    ],
)
def test_another_end_of_the_child_is_not_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, lines: tuple[str, ...], why: str
):
    child_that(tmp_path, monkeypatch, *lines)
    with caplog.at_level(logging.WARNING, "anytpu"):
        assert small_loops.MARK not in lowered()
    assert not trial.result_file().exists()
    assert [record.getMessage() for record in caplog.records] == [
        f"{NO_RESULT}of jaxlib {version('jaxlib')} has no result, and the next process tries again: its process ended "
        f"with {why}"
    ]


def test_flags_that_xla_cannot_read_are_no_fault_of_small_loops(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_no_such_flag=1")
    assert small_loops.MARK not in lowered()
    assert not trial.result_file().exists()


def test_modules_of_the_working_folder_are_not_the_childs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("random.py", "jax.py", "numpy.py"):
        (tmp_path / name).write_text("raise SystemExit('mine')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f":{tmp_path / 'elsewhere'}:")  # Python takes an empty entry as this folder.
    assert small_loops.MARK in lowered()


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ("INTERNAL: All or none\nmore", "XLA rejected the loops (INTERNAL: All or none)"),
        ("RESOURCE_EXHAUSTED: 1 GiB", ""),
    ],
)
def test_an_error_of_the_compilation_is_a_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], said: str, fault: str
):
    def refused(plain: Any) -> str:
        raise jax.errors.JaxRuntimeError(said)

    monkeypatch.setattr(trial_child, "_fault", refused)
    if fault:
        assert trial_child.main() == trial.FAILED
        assert capsys.readouterr() == (f"{trial.BEGAN}\n", f"{fault}\n")
    else:
        with pytest.raises(jax.errors.JaxRuntimeError):
            trial_child.main()


def test_a_timeout_is_not_a_result(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trial, "TIMEOUT_S", 0.001)
    assert small_loops.MARK not in lowered()
    assert not trial.result_file().exists()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"failed": 3}'])
def test_an_invalid_file_is_ignored(text: str):
    trial.result_file().parent.mkdir(parents=True)
    trial.result_file().write_text(text)
    assert trial._load_result() is None


def test_a_folder_in_which_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ANYTPU_CACHE_DIR", str(tmp_path / "file"))
    assert small_loops.MARK in lowered()
