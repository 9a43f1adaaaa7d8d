"""`device`: names of devices, and the core that each names."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from anytpu.engine import device, placement
from anytpu.errors import SettingError
from anytpu.system import Address, TPUClusterResolver
from anytpu.system.lifecycle import System, initialize_tpu_system, list_logical_devices, shutdown_tpu_system
from anytpu.system.machine import topology_of_devices
from system.fake_devices import GPU

HINT = "tpu.list_logical_devices() lists them all"


@pytest.fixture(autouse=True)
def four_hosts():
    """A virtual slice of 32 cores on four hosts, the system in use."""
    resolver = TPUClusterResolver("v3-32")
    initialize_tpu_system(resolver)
    yield
    shutdown_tpu_system(resolver)


def error_of(name) -> str:
    with pytest.raises(SettingError) as caught, device(name):
        pass
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("/TPU:3", 3),
        ("TPU:3", 3),
        ("/device:TPU:3", 3),
        ("/tpu:31", 31),
        ("/TPU", 0),
        ("/job:worker/replica:0/task:0/device:TPU:3", 3),
        ("/job:worker/replica:0/task:1/device:TPU:3", 11),
    ],
)
def test_names_of_cores(name: str, index: int):
    with device(name) as core:
        assert (core.index, core.virtual) == (index, True)
        array = jnp.ones(3)
    assert array.devices() == {jax.local_devices(backend="cpu")[0]}


def test_every_device_that_is_listed():
    names = [device.name for device in list_logical_devices("TPU")]
    indices = []
    for name in names:
        with device(name) as core:
            indices.append(core.index)
    assert indices == list(range(32))


@pytest.mark.parametrize("name", ["/CPU:0", "CPU", "/job:localhost/replica:0/task:0/device:CPU:0"])
def test_the_cpu_is_real(name: str):
    with device(name) as core:
        assert (core.platform, core.virtual) == ("cpu", False)
        assert jnp.ones(3).sum() == 3


def test_a_block_within_a_block():
    with device("/TPU:1"), device("/CPU:0"):
        pass
    with device("/TPU:2") as core:
        assert core.index == 2


@pytest.mark.parametrize("name", ["", "TPU:-1", "/TPU:1.5", "/XPU:0", "TPU:0:0", "/job:worker/TPU:0", 3, None])
def test_not_a_name(name):
    assert error_of(name) == f'a device is named like "/TPU:0", "/GPU:0" or "/CPU:0", not {name!r}'


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("/TPU:32", "this system has /TPU:0 to /TPU:31"),
        ("/CPU:1", "this system has /CPU:0 to /CPU:0"),
        ("/GPU:0", "this system has no GPU"),
        ("/job:worker/replica:0/task:1/device:TPU:8", "host 1 of this system has /TPU:0 to /TPU:7"),
        ("/job:worker/replica:0/task:4/device:TPU:0", "host 4 of this system has no TPU"),
    ],
)
def test_no_such_device(name: str, there: str):
    assert error_of(name) == f"there is no device {name!r}: {there}. {HINT}"


def test_an_error_in_the_block_is_its_own():
    with pytest.raises(ValueError, match=r"^mine$"), device("/TPU:0"):
        raise ValueError("mine")
    assert jnp.ones(2).sum() == 2


def test_a_gpu_in_the_place_of_a_tpu(monkeypatch: pytest.MonkeyPatch):
    topology = topology_of_devices([GPU(0), GPU(1)])
    monkeypatch.setattr(placement, "current_system", lambda: System(Address("local"), topology))
    monkeypatch.setattr(placement, "_jax_device", lambda core: jax.devices()[0])
    for name in ("/TPU:1", "/GPU:1"):
        with device(name) as core:
            assert (core.index, core.platform) == (1, "gpu")
    assert error_of("/TPU:2") == f"there is no device '/TPU:2': this system has /TPU:0 to /TPU:1. {HINT}"
