from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from anytpu.errors import AnyTPUError, SettingError, TPUNotFoundError, UnknownTPUError
from anytpu.system import probes
from anytpu.system.cores import Address
from anytpu.system.probes import Reason
from anytpu.system.resolver import TPUClusterResolver
from anytpu.system.topologies import known_slices
from anytpu.system.workers import WorkerAddress
from system.fake_devices import GPU

NO_TPU = Reason("TPU", "this machine has no TPU chip")
NO_GPU = Reason("GPU", "this machine has no NVIDIA GPU, or its driver is not loaded")
V2_8 = Address("virtual", 8, shape="v2-8")


@pytest.mark.parametrize("tpu", ["", None, "  "])
def test_a_machine_with_nothing_gives_a_virtual_tpu(bare_machine: pytest.MonkeyPatch, tpu: str | None):
    resolver = TPUClusterResolver(tpu)
    assert resolver.address == V2_8
    assert resolver.reasons == (NO_TPU, NO_GPU)
    assert resolver.is_virtual
    assert repr(resolver) == "TPUClusterResolver(virtual: 8 virtual cores, shape v2-8)"


def test_cores_of_a_virtual_tpu(bare_machine: pytest.MonkeyPatch):
    assert TPUClusterResolver("", cores=3).address == Address("virtual", 3)
    assert TPUClusterResolver("virtual", cores=3).address == Address("virtual", 3)
    assert TPUClusterResolver("virtual", cores=8).address == TPUClusterResolver("virtual").address == V2_8
    assert TPUClusterResolver("twin").address == Address("twin", 8)
    assert TPUClusterResolver("twin", cores=np.int64(2)).address == Address("twin", 2)
    assert repr(TPUClusterResolver("virtual", cores=3)) == "TPUClusterResolver(virtual: 3 virtual cores)"


def test_shapes():
    assert TPUClusterResolver("v2-8").address == V2_8
    assert TPUClusterResolver("v2-8", cores=8).address == V2_8
    assert TPUClusterResolver("v5litepod-16").address == Address("virtual", 16, shape="v5e-16")
    assert TPUClusterResolver("v4-8").num_accelerators() == {"TPU": 4}


def test_the_environment_is_looked_at_first_and_in_order(bare_machine: pytest.MonkeyPatch):
    bare_machine.setenv("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "v5e-4")
    bare_machine.setenv("COLAB_TPU_ADDR", "10.0.0.2:8470")
    bare_machine.setenv("TPU_NAME", "node-7")
    resolver = TPUClusterResolver(tpu="")
    assert resolver.address == Address("virtual", 4, shape="v5e-4")
    assert [reason.source for reason in resolver.reasons] == ["TPU_NAME", "COLAB_TPU_ADDR"]
    bare_machine.setenv("TPU_NAME", "v3-8")
    assert TPUClusterResolver(tpu="").address.shape == "v3-8"


def test_a_bad_variable_is_a_reason_not_an_error(bare_machine: pytest.MonkeyPatch):
    bare_machine.setenv("TPU_NAME", "node-7")
    resolver = TPUClusterResolver()
    assert resolver.address == V2_8
    assert "\n".join(map(str, resolver.reasons)) == (
        'TPU_NAME: \'node-7\' is not the name of a slice such as "v2-8", nor "local", nor the address of an anytpu '
        "worker\n"
        "TPU: this machine has no TPU chip\n"
        "GPU: this machine has no NVIDIA GPU, or its driver is not loaded"
    )


def test_an_explicit_name_does_not_look_at_the_environment(bare_machine: pytest.MonkeyPatch):
    bare_machine.setenv("TPU_NAME", "v3-8")
    assert TPUClusterResolver("virtual").address == V2_8


def test_local_where_there_is_nothing(bare_machine: pytest.MonkeyPatch):
    with pytest.raises(TPUNotFoundError) as error:
        TPUClusterResolver("local")
    assert str(error.value) == (
        "no accelerator was found on this machine.\n"
        "  TPU: this machine has no TPU chip\n"
        "  GPU: this machine has no NVIDIA GPU, or its driver is not loaded\n"
        'For a virtual TPU write "virtual" in the place of "local": tpu.connect("virtual"), or --tpu virtual. '
        "To get a TPU: anytpu docs getting_a_tpu"
    )


def test_the_2020_kaggle_idiom(bare_machine: pytest.MonkeyPatch):
    try:
        tpu = TPUClusterResolver("local")
    except ValueError:
        tpu = None
    assert tpu is None


def test_local_finds_the_gpu(bare_machine: pytest.MonkeyPatch):
    monkeypatch = bare_machine
    monkeypatch.setattr(probes._env, "has_nvidia", lambda: True)
    monkeypatch.setattr(probes._env, "has_cuda_plugin", lambda: True)
    monkeypatch.setattr(probes, "devices_of", lambda platform: [GPU(0), GPU(1)])
    resolver = TPUClusterResolver("local")
    assert (resolver.address, resolver.reasons) == (Address("local", 2), (NO_TPU,))
    assert (resolver.is_virtual, repr(resolver)) == (False, "TPUClusterResolver(local: 2 cores)")
    assert TPUClusterResolver("local", cores=1).address == Address("local", 1)
    with pytest.raises(TPUNotFoundError) as error:
        TPUClusterResolver("local", cores=3)
    assert "GPU: this machine has 2 of its cores, and 3 were asked for" in str(error.value)


@pytest.mark.parametrize("name", ["my-tpu", "locale", "v2", "grpc://", "projects/p/tpus/t"])
def test_an_unknown_name(name: str):
    with pytest.raises(UnknownTPUError) as error:
        TPUClusterResolver(name)
    assert str(error.value) == (
        f'{name!r} is not a TPU that anytpu knows. Known are: "" to look for one, "local", "virtual", '
        f'the slices {known_slices()}, and the address of a worker, "grpc://host:port".'
    )
    assert isinstance(error.value, ValueError)


def test_a_name_that_is_nearly_one_of_a_slice():
    with pytest.raises(UnknownTPUError) as error:
        TPUClusterResolver("v5e8")
    assert str(error.value) == (
        '\'v5e8\' is not a TPU that anytpu knows. Did you mean "v5e-8"? Known are: "" to look for one, "local", '
        f'"virtual", the slices {known_slices()}, and the address of a worker, "grpc://host:port".'
    )


def test_a_slice_that_does_not_exist():
    with pytest.raises(UnknownTPUError) as error:
        TPUClusterResolver("v2-9")
    assert str(error.value) == (
        '\'v2-9\' is not a TPU that exists: the number counts TensorCores, and the nearest are "v2-8" and "v2-32". '
        'For any number of virtual cores write "virtual" and give cores.'
    )


def test_a_token_is_in_no_message(bare_machine: pytest.MonkeyPatch):
    name = "grpc://a b:1?token=a-secret"
    with pytest.raises(UnknownTPUError) as caught:
        TPUClusterResolver(name)
    assert "secret" not in str(caught.value)
    bare_machine.setenv("TPU_NAME", name)
    assert "secret" not in "".join(map(str, TPUClusterResolver("").reasons))


@pytest.mark.parametrize("name", ["grpc://10.0.0.2:8470", "grpc://10.0.0.2", "10.0.0.2:8470"])
def test_the_address_of_a_worker(name: str):
    resolver = TPUClusterResolver(name, cores=4)
    assert resolver.address == Address("grpc", 4, worker=WorkerAddress("10.0.0.2:8470"))
    assert repr(resolver) == "TPUClusterResolver(grpc://10.0.0.2:8470)"
    assert not resolver.is_virtual
    assert (resolver.master(), resolver.cluster_spec()) == ("grpc://10.0.0.2:8470", {"worker": ["10.0.0.2:8470"]})


@pytest.mark.parametrize("cores", [0, -1, True, False, 2.0, "8", [8]])
def test_cores_that_are_no_count(cores: object):
    with pytest.raises(SettingError) as error:
        TPUClusterResolver("virtual", cores=cores)  # pyright: ignore[reportArgumentType]
    assert str(error.value) == f"cores must be a positive integer, or None for all that there are, not {cores!r}"


def test_too_many_cores():
    with pytest.raises(SettingError) as error:
        TPUClusterResolver("virtual", cores=10**9)
    assert str(error.value) == "cores must be at most 4096 for a virtual TPU, not 1000000000"


def test_too_many_cores_of_whatever_is_there(bare_machine: pytest.MonkeyPatch):
    with pytest.raises(SettingError) as error:
        TPUClusterResolver("", cores=4097)
    assert str(error.value) == "cores must be at most 4096 for a virtual TPU, not 4097"


def test_cores_that_the_shape_does_not_have():
    with pytest.raises(SettingError) as error:
        TPUClusterResolver("v2-8", cores=3)
    assert str(error.value) == (
        "'v2-8' has 8 cores, so cores must be 8 or left out, not 3; "
        'for 3 virtual cores write TPUClusterResolver("virtual", cores=3)'
    )


@pytest.mark.parametrize("tpu", [8, b"v2-8", ["v2-8"]])
def test_a_name_that_is_no_string(tpu: object):
    with pytest.raises(SettingError) as error:
        TPUClusterResolver(tpu)  # pyright: ignore[reportArgumentType]
    assert str(error.value) == f'tpu must be a string such as "", "local", "virtual" or "v2-8", not {tpu!r}'


def test_the_old_methods():
    resolver = TPUClusterResolver("v2-8")
    assert (resolver.master(), resolver.get_master(), resolver.cluster_spec()) == ("", "", {})
    assert (resolver.get_job_name(), resolver.num_accelerators()) == ("worker", {"TPU": 8})


def test_finding_a_virtual_tpu_does_not_start_jax():
    program = """
import sys
from typing import Any
from anytpu.system import TPUClusterResolver, initialize_tpu_system, list_logical_devices
initialize_tpu_system(TPUClusterResolver("v2-8"))
assert len(list_logical_devices("TPU")) == 8
print(sorted({"jax", "keras", "numpy"} & set(sys.modules)))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, "[]\n"), run.stderr


def test_every_error_is_ours():
    for tpu, cores in [("v2-9", None), ("x", None), ("virtual", 0), ("grpc://a:0", None)]:
        with pytest.raises(AnyTPUError):
            TPUClusterResolver(tpu, cores)


def test_numerics_are_part_of_the_address():
    of_a_tpu = TPUClusterResolver("v2-8", numerics="tpu")
    assert of_a_tpu.address == Address("virtual", 8, shape="v2-8", numerics="tpu")
    assert repr(of_a_tpu) == "TPUClusterResolver(virtual: 8 virtual cores, shape v2-8, numerics tpu)"
    assert TPUClusterResolver("v2-8").address.numerics == "machine"
    assert TPUClusterResolver("", cores=3, numerics="tpu").address.numerics == "tpu"


@pytest.mark.parametrize("numerics", ["bfloat16", None, ""])
def test_numerics_that_are_refused(numerics: Any):
    with pytest.raises(SettingError) as caught:
        TPUClusterResolver("v2-8", numerics=numerics)
    assert str(caught.value) == (
        'numerics must be "machine", for float32 products as this machine computes them, or "tpu", for operands '
        f"rounded to bfloat16 as on a TPU, not {numerics!r}"
    )
