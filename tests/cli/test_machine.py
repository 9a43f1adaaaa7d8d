from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path

import pytest

from anytpu import units
from anytpu.cli import machine as cli_machine
from anytpu.cli.machine import WORKER_PORTS, Machine, look_at_machine, versions
from anytpu.report.checks import SystemCheck
from anytpu.system.probes import Reason
from source_tree import ROOT

MACHINE = Machine(
    system="Made Up Linux",
    cpu="a CPU, 2 cores usable",
    memory_bytes=8 * units.GIB,
    disk_bytes=20 * units.GIB,
    folder=Path("/made/up"),
    ports_taken=(),
    versions={"python": "3.11.7", "anytpu": "0.1.0", "jax": "0.10.2", "keras": "3.15.1", "numpy": "2.4.6"},
    settings={},
    tpu_chips=0,
    has_nvidia=False,
)
XLA = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}


def machine(**changes) -> Machine:
    return dataclasses.replace(MACHINE, **changes)


def test_a_good_machine_has_nothing_to_type():
    checks = list(cli_machine.check_machine(MACHINE, Path("/no/keras.json")))
    assert [check for check in checks if check.status != "ok" or check.command] == []
    assert [check.name for check in checks] == [
        "system",
        "versions",
        "memory",
        "disk",
        "ports",
        "Keras backend",
        "libtpu",
        "PJRT_NPROC",
    ]


def test_a_version_that_does_not_fit():
    required = ["jax<0.12,>=0.10", "keras<3.16,>=3.15", "libtpu>=9; extra == 'plan'"]
    assert cli_machine.check_versions({"jax": "0.12.1", "keras": "3.15.1", "libtpu": "0.1"}, required) == SystemCheck(
        "failed", "versions", "jax 0.12.1 is installed, <0.12,>=0.10 is needed", "pip install 'jax<0.12,>=0.10'"
    )


def test_little_memory_and_disk():
    little = machine(memory_bytes=units.GIB // 2, disk_bytes=units.GIB // 4)
    assert cli_machine.check_memory(little) == SystemCheck(
        "warning", "memory", "512 MiB free; training may need more", "free -h"
    )
    assert cli_machine.check_disk(little) == SystemCheck(
        "warning", "disk", "256 MiB free in /made/up; weights and checkpoints may not fit", "df -h '/made/up'"
    )
    assert cli_machine.check_memory(machine(memory_bytes=None)).status == "ok"


def test_ports_that_are_taken():
    assert cli_machine.check_ports([8470, 8472]) == SystemCheck(
        "warning",
        "ports",
        "8470, 8472: another program uses these, so a TPU worker cannot; training here needs no worker",
        "ss -ltnp 'sport >= 8470 and sport <= 8476'",
    )


def test_keras_on_another_backend(tmp_path: Path):
    saved = tmp_path / "keras.json"
    assert cli_machine.check_keras_backend({"KERAS_BACKEND": "torch"}, saved) == SystemCheck(
        "failed",
        "Keras backend",
        "KERAS_BACKEND=torch makes Keras use torch; anytpu needs jax",
        "export KERAS_BACKEND=jax",
    )
    saved.write_text('{"backend": "tensorflow"}')
    assert cli_machine.check_keras_backend({"KERAS_BACKEND": "jax"}, saved) == SystemCheck(
        "ok",
        "Keras backend",
        f"jax, if anytpu is imported before keras; keras alone takes 'tensorflow' from {saved}",
    )
    for text in ('{"backend": "jax"}', "[]", "not JSON"):
        saved.write_text(text)
        assert cli_machine.check_keras_backend({}, saved) == SystemCheck("ok", "Keras backend", "jax")


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        (
            {"tpu_chips": 4},
            SystemCheck(
                "failed",
                "libtpu",
                "this machine has 4 TPU chips, but their driver libtpu is not installed",
                "pip install 'anytpu[tpu]'",
            ),
        ),
        ({}, SystemCheck("ok", "libtpu", "not installed, and this machine has no TPU chip that needs it")),
        (
            {"versions": {"libtpu": "0.0.51"}},
            SystemCheck("ok", "libtpu", "0.0.51, for planning only: no TPU chip here"),
        ),
        (
            {"versions": {"libtpu": "0.0.51"}, "tpu_chips": 1},
            SystemCheck("ok", "libtpu", "0.0.51, drives the TPU chips of this machine"),
        ),
    ],
)
def test_libtpu(changes: dict, check: SystemCheck):
    assert cli_machine.check_libtpu(machine(**changes)) == check


def test_threads_for_host_devices():
    assert cli_machine.check_threads(XLA) == SystemCheck(
        "warning",
        "PJRT_NPROC",
        "not set, and XLA_FLAGS requests 8 host devices: all-reduces over them can hang",
        "export PJRT_NPROC=16",
    )
    assert cli_machine.check_threads({**XLA, "PJRT_NPROC": "15"}).status == "warning"
    assert cli_machine.check_threads({**XLA, "PJRT_NPROC": "16"}) == SystemCheck(
        "ok", "PJRT_NPROC", "16, enough for the 8 host devices that XLA_FLAGS requests"
    )


def test_a_place_that_had_none_is_a_warning_where_there_is_something_unused():
    lost = [Reason("TPU_NAME", "'x' is no slice"), Reason("TPU", "no chip"), Reason("GPU", "no plugin")]
    assert list(cli_machine.check_reasons(lost, machine(has_nvidia=True))) == [
        SystemCheck("warning", "looked for", "TPU_NAME: 'x' is no slice", "unset TPU_NAME"),
        SystemCheck("ok", "looked for", "TPU: no chip"),
        SystemCheck("warning", "looked for", "GPU: no plugin"),
    ]


def test_an_extra_is_never_more_than_a_hint():
    checks = {check.name: check for check in cli_machine.check_extras()}
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert list(checks) == [f"extra {name}" for name in metadata["project"]["optional-dependencies"]]
    assert {check.status for check in checks.values()} <= {"ok", "optional"}
    assert checks["extra plan"].status == "ok"
    assert checks["extra plan"].finding == "installed, for planning without a TPU"


def test_versions_of_what_is_installed():
    assert list(versions(["keras", "no-such-package"])) == ["keras"]


def test_this_machine():
    here = look_at_machine()
    assert here.memory_bytes is None or here.memory_bytes > 0
    assert here.disk_bytes > 0
    assert here.versions["anytpu"]
    assert set(here.ports_taken) <= set(WORKER_PORTS)
    assert here.settings["KERAS_BACKEND"] == "jax"
