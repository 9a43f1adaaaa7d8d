"""The environment variables between `anytpu launch` and the processes that it starts."""

from __future__ import annotations

import pytest

from anytpu import _env
from anytpu._launched import LaunchedProcess
from anytpu.errors import SettingError

START = "start the program with `anytpu launch`, or unset ANYTPU_COORDINATOR, ANYTPU_PROCESSES and ANYTPU_PROCESS"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*LaunchedProcess.VARIABLES, "ANYTPU_CPU_DEVICES", "PJRT_NPROC", "PYTHONUNBUFFERED"):
        monkeypatch.delenv(name, raising=False)


def set_variables(monkeypatch: pytest.MonkeyPatch, *values: str) -> None:
    for name, value in zip(LaunchedProcess.VARIABLES, values, strict=True):
        monkeypatch.setenv(name, value)


def test_a_process_that_was_not_launched():
    assert _env.launched_process() is None
    assert _env.launched_cpu_devices() is None


@pytest.mark.parametrize("coordinator", ["127.0.0.1:4321", "host-0.cluster:1", "[::1]:65535"])
def test_a_launched_process(monkeypatch: pytest.MonkeyPatch, coordinator: str):
    process = LaunchedProcess(coordinator, processes=4, index=3)
    environment = _env.with_launched_process(process, cpu_devices=2)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert _env.launched_process() == process
    assert _env.launched_cpu_devices() == 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("h:1", "", ""), "ANYTPU_COORDINATOR is set, but ANYTPU_PROCESSES and ANYTPU_PROCESS are not"),
        (("h:1", "2", " "), "ANYTPU_COORDINATOR and ANYTPU_PROCESSES are set, but ANYTPU_PROCESS is not"),
        (("h", "2", "0"), "ANYTPU_COORDINATOR must be HOST:PORT, not 'h'"),
        ((":1", "2", "0"), "ANYTPU_COORDINATOR must be HOST:PORT, not ':1'"),
        (("h:0", "2", "0"), "ANYTPU_COORDINATOR must be HOST:PORT, not 'h:0'"),
        (("h:65536", "2", "0"), "ANYTPU_COORDINATOR must be HOST:PORT, not 'h:65536'"),
        (("h:\u0663", "2", "0"), "ANYTPU_COORDINATOR must be HOST:PORT, not 'h:\u0663'"),
        (("h:1", "0", "0"), "ANYTPU_PROCESSES must be a positive integer, not '0'"),
        (("h:1", "two", "0"), "ANYTPU_PROCESSES must be a positive integer, not 'two'"),
        (("h:1", "2", "2"), "ANYTPU_PROCESS must be an integer from 0 to 1, not '2'"),
        (("h:1", "2", "-1"), "ANYTPU_PROCESS must be an integer from 0 to 1, not '-1'"),
    ],
)
def test_bad_variables(monkeypatch: pytest.MonkeyPatch, values: tuple[str, ...], message: str):
    set_variables(monkeypatch, *values)
    with pytest.raises(SettingError) as caught:
        _env.launched_process()
    assert str(caught.value) == f"{message}: {START}"


@pytest.mark.parametrize("value", ["0", "-2", "1.5", "all"])
def test_a_bad_number_of_devices(monkeypatch: pytest.MonkeyPatch, value: str):
    monkeypatch.setenv("ANYTPU_CPU_DEVICES", value)
    with pytest.raises(SettingError) as caught:
        _env.launched_cpu_devices()
    assert str(caught.value) == (
        f"ANYTPU_CPU_DEVICES must be a positive integer, not {value!r}: unset ANYTPU_CPU_DEVICES"
    )


def test_the_environment_of_a_launched_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAX_PLATFORMS", "tpu")
    monkeypatch.setenv("TPU_LIBRARY_PATH", "/nowhere/libtpu.so")
    monkeypatch.setenv("MINE", "kept")
    environment = _env.with_launched_process(LaunchedProcess("h:1", 2, 0), cpu_devices=12)
    names = ("JAX_PLATFORMS", "ANYTPU_CPU_DEVICES", "PJRT_NPROC", "PYTHONUNBUFFERED", "MINE")
    assert [environment[name] for name in names] == ["cpu", "12", "24", "1", "kept"]
    assert "TPU_LIBRARY_PATH" not in environment
    assert _env.with_launched_process(LaunchedProcess("h:1", 2, 0), cpu_devices=2)["PJRT_NPROC"] == "16"
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    for processes, threads in [(2, "4"), (16, "1")]:
        process = LaunchedProcess("h:1", processes, 0)
        assert _env.with_launched_process(process, cpu_devices=1)["PJRT_NPROC"] == threads
    monkeypatch.setenv("PJRT_NPROC", "5")
    assert _env.with_launched_process(LaunchedProcess("h:1", 2, 0), cpu_devices=2)["PJRT_NPROC"] == "5"
