from __future__ import annotations

import pytest

from anytpu.bench import systems
from anytpu.system.cores import Address
from anytpu.system.probes import Found, Reason


@pytest.mark.parametrize(("gpus", "name"), [(1, "1 GPU"), (2, "2 GPUs")])
def test_what_is_there_and_what_is_not(gpus: int, name: str, monkeypatch: pytest.MonkeyPatch):
    absent = Reason("TPU", "this machine has no TPU chip")
    monkeypatch.setattr(systems, "probe_gpu", lambda cores: Found(Address("local", gpus), "GPU"))
    monkeypatch.setattr(systems, "probe_tpu", lambda cores: absent)
    here, reasons = systems.local_systems()
    assert [(one.name, one.address.kind, one.address.cores) for one in here] == [
        ("1 virtual core", "virtual", 1),
        ("8 virtual cores", "virtual", 8),
        (name, "local", gpus),
    ]
    assert reasons == (absent,)


def test_a_tpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(systems, "probe_gpu", lambda cores: Reason("GPU", "none"))
    monkeypatch.setattr(systems, "probe_tpu", lambda cores: Found(Address("local", 8), "TPU"))
    here, _ = systems.local_systems()
    assert here[-1].name == "8 TPU cores"
