"""The file of a lock: its text, and files that are no lock."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

import plan_samples
from anytpu.errors import SettingError
from anytpu.planning.records import Buffer, MemoryUse, OpTime, Plan, read_lock
from anytpu.planning.records import lock as lock_module
from anytpu.units import GIB, MIB
from planning.predictions import prediction

OPS = (
    OpTime("fusion.1", "fusion", "matmul", 0.0123456, layer="conv1", source="net.py:4"),
    OpTime("fusion.2", "fusion", "vector", 0.001, layer="conv1", is_backward=True),
    OpTime("copy.3", "copy", "memory", 0.0004),
    OpTime("fusion.4", "fusion", "collective", 0.002, 3, bytes=3e6, layer="conv1", collective="all-reduce"),
    OpTime("all-reduce.1", "all-reduce", "collective", 0.0, bytes=1e6, collective="all-reduce"),
    OpTime("20 further blocks", "blocks", "collective", 0.001, bytes=2e6, layer="20 further blocks"),
    OpTime("host dispatch", "host", "host", 0.0001),
)
BUFFERS = (
    Buffer("conv1/kernel", "state", 2 * MIB, 2 * MIB, "f32[512,1024]"),
    Buffer("conv1 output", "temporary", MIB, MIB, "f32[256,1024]", "conv1", "net.py:4"),
    Buffer("conv1 gradient", "temporary", MIB, MIB, "f32[256,1024]", "conv1"),
    Buffer("fusion.9", "temporary", 4096, 4096, "f32[1024]"),
)
MEMORY = MemoryUse(int(2.55 * GIB), int(15.75 * GIB), buffers=BUFFERS)
TEXT = """\
{
 "anytpu": "%s",
 "job": "net",
 "lock_format": 1,
 "steps": [
  {
   "basis": "compiled",
   "batch": 1024,
   "buffers_mib": {
    "(outside of layers)": 0.0039,
    "conv1": 2,
    "conv1/kernel": 2
   },
   "collective_calls": {
    "20 further blocks": 1,
    "all-reduce": 4
   },
   "collectives_mib": {
    "20 further blocks": 1.907,
    "all-reduce": 3.815
   },
   "from_ms": 13.48,
   "layers_ms": {
    "(host)": 0.1,
    "(outside of layers)": 0.4,
    "20 further blocks": 1,
    "conv1": 15.35
   },
   "layout": "mesh data=8; 2 x whole",
   "limit_mib": 16128,
   "memory_mib": 2611,
   "mode": "train",
   "predicted_by": "the TPU compiler (libtpu 0.0.0)",
   "step_ms": 16.85,
   "to_ms": 20.21,
   "tpu": "v3-8"
  }
 ]
}
"""


def plan() -> Plan:
    return Plan("net", (prediction(OPS, MEMORY, layout="mesh data=8; 2 x whole"),))


def test_the_text_of_a_lock(tmp_path: Path):
    path = plan().lock(tmp_path / "plan.lock")
    assert path.read_text() == TEXT % lock_module.lock_of("net", ()).anytpu
    assert read_lock(path) == lock_module.lock_of("net", plan())
    assert [file.name for file in tmp_path.iterdir()] == ["plan.lock"]


@pytest.mark.parametrize("name", ["five", "one", "swept", "without_run", "hostile", "bare", "floors"])
def test_every_plan_is_read_as_it_was_written(name: str, tmp_path: Path):
    sample = getattr(plan_samples, name)()
    path = sample.lock(tmp_path / "plan.lock")
    assert read_lock(path) == lock_module.lock_of(sample.job, (*sample.predictions, *sample.sweep))
    assert "Infinity" not in path.read_text()
    assert sample.check_lock(path, step_percent=0, memory_percent=0).holds


def test_what_has_no_upper_bound(tmp_path: Path):
    step = lock_module.locked(plan_samples.unbounded(plan_samples.one()["v3-8"]))
    assert (step.to_ms, step.certainty) == (None, "a time without upper bound")
    assert step.from_ms is not None and math.isfinite(step.from_ms)


def refusal(path: Path) -> str:
    with pytest.raises(SettingError) as raised:
        read_lock(path)
    return str(raised.value)


def written(path: Path, **changes: object) -> Path:
    """Write a lock in which names of its first step, or of the file, have another value."""
    record = json.loads(plan().lock(path).read_text())
    for name, value in changes.items():
        (record if name in record else record["steps"][0])[name] = value
    path.write_text(json.dumps(record))
    return path


def test_a_lock_that_is_missing(tmp_path: Path):
    path = tmp_path / "plan.lock"
    assert refusal(path) == f"there is no lock {str(path)!r}; write it: anytpu plan ... --lock {path}"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Expecting value: line 1 column 1 (char 0)"),
        ("{\n<<<<<<< HEAD\n", "Expecting property name enclosed in double quotes: line 2 column 1 (char 2)"),
        ("[1]", "it is no lock of a plan: it has no 'lock_format'"),
        ('{"format": 1, "job": "net"}', "it is no lock of a plan: it has no 'lock_format'"),
        (
            '{"lock_format": 2, "anytpu": "9.0.0"}',
            "its format 2 is of the newer anytpu '9.0.0': update anytpu",
        ),
        ('{"lock_format": "1"}', "'lock_format' is '1', not 1"),
        ('{"lock_format": 1}', "it has no list of 'steps'"),
        ('{"lock_format": 1, "steps": []}', "'job' is missing"),
        (
            '{"lock_format": 1, "job": "net", "anytpu": "0.1.0", "steps": [7]}',
            "step 1: it is 7, not an object of names and values",
        ),
        ("[" * 100_000, "it nests too deeply"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_lock(text: str, why: str, tmp_path: Path):
    path = tmp_path / "plan.lock"
    path.write_text(text)
    assert refusal(path) == (
        f"the lock {str(path)!r} cannot be read ({why}); write it again: anytpu plan ... --lock {path}"
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"step_ms": "16 ms"}, "step 1: 'step_ms' is '16 ms', not a number of 0 or more or null"),
        ({"step_ms": -1.0}, "step 1: 'step_ms' is -1.0, not a number of 0 or more or null"),
        ({"batch": 1.5}, "step 1: 'batch' is 1.5, not a positive integer or null"),
        ({"layers_ms": {"conv1": None}}, "step 1: 'layers_ms' is {'conv1': None}, not names and numbers"),
        ({"layers_ms": ["conv1"]}, "step 1: 'layers_ms' is ['conv1'], not names and numbers"),
        ({"tpu": "\x1b[2J"}, "step 1: 'tpu' is '\\x1b[2J', not a text of one line"),
    ],
)
def test_a_field_that_was_damaged(changes: dict[str, object], why: str, tmp_path: Path):
    assert f"({why});" in refusal(written(tmp_path / "plan.lock", **changes))


def test_a_number_that_was_deleted(tmp_path: Path):
    path = plan().lock(tmp_path / "plan.lock")
    path.write_text(path.read_text().replace('   "step_ms": 16.85,\n', ""))
    assert "(step 1: 'step_ms' is missing);" in refusal(path)


def test_a_lock_that_is_no_file(tmp_path: Path):
    os.mkfifo(tmp_path / "plan.lock")
    assert "(Is a named pipe);" in refusal(tmp_path / "plan.lock")


def test_a_lock_that_cannot_be_written(tmp_path: Path):
    path = tmp_path / "no" / "plan.lock"
    with pytest.raises(SettingError) as raised:
        plan().lock(path)
    assert str(raised.value) == f"the lock cannot be written to {str(path)!r}: No such file or directory"
