from __future__ import annotations

import os
import subprocess
import threading

import pytest

from anytpu import _env
from anytpu.errors import SettingError
from anytpu.system.cores import Address, LogicalDevice
from anytpu.system.lifecycle import (
    current_system,
    experimental_connect_to_cluster,
    initialize_tpu_system,
    list_logical_devices,
    running_system,
    shutdown_tpu_system,
)
from anytpu.system.resolver import TPUClusterResolver
from forked import python

V2_8 = Address("virtual", 8, shape="v2-8")
CPU = LogicalDevice("/job:localhost/replica:0/task:0/device:CPU:0", "CPU")

pytestmark = pytest.mark.usefixtures("bare_machine")


def test_initialize_returns_the_topology():
    topology = initialize_tpu_system(TPUClusterResolver("v2-8"))
    assert (topology.mesh_shape, topology.num_tasks, topology.num_tpus_per_task) == ((2, 2, 1, 2), 1, 8)


@pytest.mark.skipif(_env.tpu_chips() > 0, reason="this machine has a TPU")
def test_a_tpu_that_jax_is_told_to_use_and_that_is_not_there():
    command = [*python(), "-c", "import anytpu; anytpu.connect()"]
    environment = {**os.environ, "JAX_PLATFORMS": "tpu"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.stderr.splitlines()[-1] == (
        "anytpu.errors.SettingError: JAX_PLATFORMS is 'tpu', and JAX cannot start that on this machine: it has no TPU "
        "chip. Type: unset JAX_PLATFORMS"
    )


def test_initialize_finds_a_system_by_itself():
    assert initialize_tpu_system().name == "v2-8"
    assert current_system() is running_system(V2_8)


def test_initialize_again_loses_nothing():
    first = initialize_tpu_system(TPUClusterResolver("v2-8"))
    system = current_system()
    assert initialize_tpu_system(TPUClusterResolver("v2-8")) is first
    assert initialize_tpu_system() is first
    assert current_system() is system
    assert system is not None
    assert system.is_running


def test_reset_clears():
    initialize_tpu_system(TPUClusterResolver("v2-8"))
    old = current_system()
    initialize_tpu_system(TPUClusterResolver("v2-8"), reset=True)
    new = current_system()
    assert old is not None
    assert new is not None
    assert (old is new, old.is_running, new.is_running) == (False, False, True)
    assert repr(old) == "System(Topology('v2-8': 8 virtual cores, 2x2x1 chips, 1 host), stopped)"
    assert repr(new) == "System(Topology('v2-8': 8 virtual cores, 2x2x1 chips, 1 host), running)"


def test_names_of_the_same_system_share_it():
    assert running_system(TPUClusterResolver("virtual").address) is running_system(TPUClusterResolver("v2-8").address)


def test_a_system_runs_without_initialize():
    assert running_system(Address("twin", 2)).is_running


def test_several_systems():
    two, three = running_system(Address("virtual", 2)), running_system(Address("virtual", 3))
    assert current_system() is three
    assert running_system(Address("virtual", 2)) is two
    assert current_system() is two
    shutdown_tpu_system(TPUClusterResolver("virtual", cores=2))
    assert (two.is_running, three.is_running) == (False, True)
    assert current_system() is three


def test_shutdown_without_a_resolver_stops_all():
    systems = [running_system(Address("virtual", count)) for count in (1, 2)]
    shutdown_tpu_system()
    assert [system.is_running for system in systems] == [False, False]
    assert current_system() is None


def test_shutdown_twice_does_nothing():
    shutdown_tpu_system(TPUClusterResolver("v2-8"))
    shutdown_tpu_system()


def test_callbacks_run_once_and_the_last_first():
    calls = []
    system = running_system(V2_8)
    system.on_shutdown(lambda: calls.append("first"))
    system.on_shutdown(lambda: calls.append("last"))
    shutdown_tpu_system()
    shutdown_tpu_system()
    assert calls == ["last", "first"]
    system.on_shutdown(lambda: calls.append("late"))
    assert calls == ["last", "first", "late"]


def test_a_callback_may_ask_for_the_system():
    seen = []
    system = running_system(V2_8)
    system.on_shutdown(lambda: seen.append((system.is_running, current_system())))
    shutdown_tpu_system()
    assert seen == [(False, None)]


def test_all_callbacks_run_even_when_one_raises():
    calls = []

    def bad() -> None:
        raise OSError("disk full")

    system = running_system(V2_8)
    system.on_shutdown(lambda: calls.append("first"))
    system.on_shutdown(bad)
    with pytest.raises(OSError, match="disk full"):
        shutdown_tpu_system()
    assert calls == ["first"]
    assert current_system() is None


def test_threads_get_the_same_system():
    systems = []
    barrier = threading.Barrier(8)

    def start() -> None:
        barrier.wait()
        systems.append(running_system(Address("virtual", 5)))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(system) for system in systems}) == 1


def test_it_says_once_that_the_cores_are_virtual(capsys: pytest.CaptureFixture[str]):
    running_system(Address("virtual", 1))
    running_system(V2_8)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "anytpu: the 1 core is virtual: simulated on this machine's CPU (1 virtual core).\n"


def test_the_line_of_the_default_system():
    program = "import anytpu.system as s; [s.initialize_tpu_system(s.TPUClusterResolver('virtual')) for _ in range(3)]"
    run = subprocess.run([*python(), "-c", program], capture_output=True, text=True)
    assert run.returncode == 0
    assert run.stderr == "anytpu: the 8 cores are virtual: simulated on this machine's CPU (v2-8).\n"


def test_the_twin_says_nothing(capsys: pytest.CaptureFixture[str]):
    running_system(Address("twin", 8))
    assert capsys.readouterr().err == ""


# list_logical_devices


def test_devices_before_anything_is_initialised():
    devices = list_logical_devices("TPU")
    assert devices[3] == LogicalDevice("/job:worker/replica:0/task:0/device:TPU:3", "TPU", virtual=True)
    assert len(devices) == 8
    assert current_system() is None


def test_devices_of_the_system_in_use():
    initialize_tpu_system(TPUClusterResolver("virtual", cores=2))
    assert list_logical_devices() == [
        CPU,
        LogicalDevice("/job:worker/replica:0/task:0/device:TPU:0", "TPU", virtual=True),
        LogicalDevice("/job:worker/replica:0/task:0/device:TPU:1", "TPU", virtual=True),
    ]
    assert (list_logical_devices("CPU"), list_logical_devices("GPU")) == ([CPU], [])


def test_devices_are_numbered_by_host():
    initialize_tpu_system(TPUClusterResolver("v5e-16"))
    names = [device.name.removeprefix("/job:worker/replica:0/") for device in list_logical_devices("TPU")]
    assert names[:5] == [*(f"task:0/device:TPU:{number}" for number in range(4)), "task:1/device:TPU:0"]
    assert len(names) == 16


def test_a_device_type_that_does_not_exist():
    with pytest.raises(SettingError) as error:
        list_logical_devices("tpu")
    assert str(error.value) == "device_type must be one of TPU, GPU, CPU, or None for all, not 'tpu'"


# experimental_connect_to_cluster


def test_connecting_to_what_is_here_does_nothing():
    experimental_connect_to_cluster(TPUClusterResolver("v2-8"))
    assert current_system() is None


@pytest.mark.parametrize("call", [initialize_tpu_system, shutdown_tpu_system, experimental_connect_to_cluster])
def test_what_is_no_resolver(call):
    with pytest.raises(SettingError) as error:
        call("v2-8")
    assert str(error.value) == "resolver must be a TPUClusterResolver, not 'v2-8'; write TPUClusterResolver(\"\")"


def test_connecting_to_none():
    with pytest.raises(SettingError) as error:
        experimental_connect_to_cluster(None)  # pyright: ignore[reportArgumentType]
    assert str(error.value) == 'resolver must be a TPUClusterResolver, not None; write TPUClusterResolver("")'


def test_virtual_cores_instead_of_a_named_tpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TPU_NAME", "my-tpu")
    resolver = TPUClusterResolver("")
    with pytest.warns(UserWarning) as warned:
        initialize_tpu_system(resolver)
    assert [str(warning.message) for warning in warned] == [
        "this program runs on virtual cores of the CPU. TPU_NAME: 'my-tpu' is not the name of a slice such as "
        '"v2-8", nor "local", nor the address of an anytpu worker. To get a TPU: anytpu docs getting_a_tpu'
    ]
    assert warned[0].filename == __file__


def test_virtual_cores_instead_of_a_gpu_that_jax_cannot_use(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_env, "has_nvidia", lambda: True)
    monkeypatch.setattr(_env, "has_cuda_plugin", lambda: False)
    with pytest.warns(UserWarning) as warned:
        initialize_tpu_system(TPUClusterResolver(""))
    assert [str(warning.message) for warning in warned] == [
        "this program runs on virtual cores of the CPU. GPU: there is an NVIDIA GPU, but JAX has no CUDA plugin: "
        'pip install "anytpu[gpu]"'
    ]
