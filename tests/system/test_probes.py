from __future__ import annotations

import pytest

from anytpu import _env
from anytpu.system import probes
from anytpu.system.cores import Address
from anytpu.system.probes import Reason, probe_gpu, probe_tpu, probe_variable, virtual_address
from anytpu.system.workers import WorkerAddress
from system.fake_devices import GPU, TPU


def with_devices(monkeypatch: pytest.MonkeyPatch, **devices: list[GPU]) -> None:
    def devices_of(platform: str) -> list[GPU]:
        if platform not in devices:
            raise RuntimeError(f"Unable to initialize backend {platform!r}: no driver\nand a second line")
        return devices[platform]

    monkeypatch.setattr(probes, "devices_of", devices_of)


def no_jax(platform: str) -> list[GPU]:
    raise AssertionError("JAX was started")


def test_nothing_there(bare_machine: pytest.MonkeyPatch):
    bare_machine.setattr(probes, "devices_of", no_jax)
    assert probe_tpu(None) == Reason("TPU", "this machine has no TPU chip")
    assert probe_gpu(None) == Reason("GPU", "this machine has no NVIDIA GPU, or its driver is not loaded")


def test_a_tpu(bare_machine: pytest.MonkeyPatch):
    bare_machine.setattr(_env, "tpu_chips", lambda: 1)
    bare_machine.setattr(_env, "has_libtpu", lambda: True)
    with_devices(bare_machine, tpu=[TPU(0), TPU(1)])
    assert probe_tpu(None) == Address("local", 2)
    assert probe_tpu(1) == Address("local", 1)
    assert probe_tpu(3) == Reason("TPU", "this machine has 2 of its cores, and 3 were asked for")


def test_a_tpu_without_libtpu(bare_machine: pytest.MonkeyPatch):
    bare_machine.setattr(_env, "tpu_chips", lambda: 1)
    bare_machine.setattr(_env, "has_libtpu", lambda: False)
    assert probe_tpu(None) == Reason(
        "TPU", 'there is a TPU chip, but libtpu is not installed: pip install "anytpu[tpu]"'
    )


def test_a_gpu(bare_machine: pytest.MonkeyPatch):
    bare_machine.setattr(_env, "has_nvidia", lambda: True)
    bare_machine.setattr(_env, "has_cuda_plugin", lambda: True)
    with_devices(bare_machine, gpu=[GPU(0)])
    assert probe_gpu(None) == Address("local", 1)


def test_a_gpu_without_the_plugin(bare_machine: pytest.MonkeyPatch):
    bare_machine.setattr(_env, "has_nvidia", lambda: True)
    bare_machine.setattr(_env, "has_cuda_plugin", lambda: False)
    bare_machine.setattr(probes, "devices_of", no_jax)
    assert probe_gpu(None) == Reason(
        "GPU", 'there is an NVIDIA GPU, but JAX has no CUDA plugin: pip install "anytpu[gpu]"'
    )


def test_a_gpu_that_jax_cannot_start(bare_machine: pytest.MonkeyPatch):
    bare_machine.setattr(_env, "has_nvidia", lambda: True)
    bare_machine.setattr(_env, "has_cuda_plugin", lambda: True)
    with_devices(bare_machine)
    assert probe_gpu(None) == Reason(
        "GPU", "there is one, but JAX cannot use it: Unable to initialize backend 'gpu': no driver"
    )


@pytest.mark.parametrize("chosen", [("cpu",), ("cpu", "tpu")])
def test_a_gpu_that_the_user_keeps_from_jax(bare_machine: pytest.MonkeyPatch, chosen: tuple[str, ...]):
    bare_machine.setattr(_env, "has_nvidia", lambda: True)
    bare_machine.setattr(_env, "has_cuda_plugin", lambda: True)
    bare_machine.setattr(_env, "jax_platforms", lambda: chosen)
    bare_machine.setattr(probes, "devices_of", no_jax)
    assert probe_gpu(None) == Reason("GPU", f"there is one, but JAX_PLATFORMS={','.join(chosen)!r} keeps JAX from it")


@pytest.mark.parametrize("chosen", [("cuda",), ("gpu", "cpu")])
def test_a_gpu_that_the_user_chose(bare_machine: pytest.MonkeyPatch, chosen: tuple[str, ...]):
    bare_machine.setattr(_env, "has_nvidia", lambda: True)
    bare_machine.setattr(_env, "has_cuda_plugin", lambda: True)
    bare_machine.setattr(_env, "jax_platforms", lambda: chosen)
    with_devices(bare_machine, gpu=[GPU(0)])
    assert probe_gpu(None) == Address("local", 1)


def test_a_virtual_tpu_is_always_found():
    assert virtual_address(None) == virtual_address(8) == Address("virtual", 8, shape="v2-8")
    assert virtual_address(3) == Address("virtual", 3)


def test_a_variable_that_names_a_slice(bare_machine: pytest.MonkeyPatch):
    address = Address("virtual", 32, shape="v3-32")
    assert probe_variable("TPU_NAME", "v3-32", None) == address
    assert probe_variable("TPU_NAME", "v3-32", 32) == address
    assert probe_variable("TPU_NAME", "v3-32", 8) == Reason("TPU_NAME", "'v3-32' has 32 cores, and 8 were asked for")


def test_a_variable_that_says_local(bare_machine: pytest.MonkeyPatch):
    assert probe_variable("TPU_NAME", "local", None) == Reason(
        "TPU_NAME",
        "'local', but this machine has no TPU chip; this machine has no NVIDIA GPU, or its driver is not loaded",
    )
    bare_machine.setattr(_env, "has_nvidia", lambda: True)
    bare_machine.setattr(_env, "has_cuda_plugin", lambda: True)
    with_devices(bare_machine, gpu=[GPU(0)])
    assert probe_variable("TPU_NAME", "local", None) == Address("local", 1)


@pytest.mark.parametrize("value", ["grpc://10.25.167.66:8470", "10.25.167.66:8470", "grpc://10.25.167.66"])
def test_a_variable_with_the_address_of_a_worker(value: str):
    worker = WorkerAddress("10.25.167.66:8470")
    assert probe_variable("TPU_NAME", value, 4) == Address("grpc", 4, worker=worker)
    assert probe_variable("COLAB_TPU_ADDR", value, None) == Reason(
        "COLAB_TPU_ADDR", "'10.25.167.66:8470' would be a server of TensorFlow; TPU_NAME names an anytpu worker"
    )


def test_a_variable_with_a_bad_address_of_a_worker():
    assert probe_variable("TPU_NAME", "grpc://box:99999", None) == Reason(
        "TPU_NAME", "the port of the worker 'grpc://box:99999' must be from 1 to 65535"
    )


@pytest.mark.parametrize("value", ["my-tpu", "v2-9", "virtual", "grpc://a:1,grpc://b:2", "projects/p/tpus/t"])
def test_a_variable_that_names_nothing(value: str):
    assert probe_variable("TPU_NAME", value, None) == Reason(
        "TPU_NAME",
        f'{value!r} is not the name of a slice such as "v2-8", nor "local", nor the address of an anytpu worker',
    )


def test_a_reason_reads_as_a_line():
    assert str(Reason("TPU", "this machine has no TPU chip")) == "TPU: this machine has no TPU chip"
