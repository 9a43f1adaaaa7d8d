from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from anytpu import _env, _jax
from anytpu.errors import SettingError

VARIABLES = (*_env.TPU_VARIABLES, *_env._CHOOSES_DEVICES, "KERAS_BACKEND", "XLA_FLAGS", "PJRT_NPROC")


def in_new_process(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program with none of the variables that matter set, but those given."""
    env = {name: value for name, value in os.environ.items() if name not in VARIABLES} | environment
    return subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, env=env)


def printed(program: str, **environment: str) -> str:
    run = in_new_process(program, **environment)
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    return run.stdout.strip()


def pci_device(root: Path, address: str, vendor: str, device: str) -> None:
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "device").write_text(f"{device}\n")


def touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


# What names a TPU


def test_tpu_settings_come_in_look_up_order(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "grpc://10.0.0.2:8470")
    monkeypatch.setenv("COLAB_TPU_ADDR", "  ")
    monkeypatch.setenv("TPU_NAME", " v2-8 ")
    assert _env.tpu_settings() == (
        ("TPU_NAME", "v2-8"),
        ("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "grpc://10.0.0.2:8470"),
    )


def test_settings_show_only_what_matters(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TPU_NAME", "v2-8")
    monkeypatch.setenv("SOMEBODYS_TOKEN", "secret")
    assert _env.settings()["TPU_NAME"] == "v2-8"
    assert "SOMEBODYS_TOKEN" not in _env.settings()


# Keras's backend


def test_keras_backend_becomes_jax(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KERAS_BACKEND", "")
    assert _env.set_keras_backend() == "jax"
    assert os.environ["KERAS_BACKEND"] == "jax"


def test_a_keras_backend_that_is_set_stays(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    assert _env.set_keras_backend() == "torch"
    assert os.environ["KERAS_BACKEND"] == "torch"


def test_an_unknown_keras_backend(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KERAS_BACKEND", "jaks")
    monkeypatch.delitem(sys.modules, "keras.config", raising=False)
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    with pytest.raises(SettingError) as error:
        _env.require_keras_on_jax()
    assert str(error.value) == (
        "KERAS_BACKEND must be one of jax, tensorflow, torch, openvino, numpy, not 'jaks'; "
        "anytpu needs jax: KERAS_BACKEND=jax"
    )


def test_keras_backend_in_use():
    program = """
from anytpu import _env
import sys
print(_env.keras_backend_in_use(), "keras" in sys.modules)
import keras
print(_env.keras_backend_in_use())
"""
    assert printed(program, KERAS_BACKEND="jax", JAX_PLATFORMS="cpu").splitlines() == ["None False", "jax"]


# Chips and GPUs, seen without JAX


def test_no_chips_on_a_machine_without_pci(tmp_path: Path):
    assert _env.tpu_chips(tmp_path) == 0
    assert not _env.has_nvidia(tmp_path)


def test_four_v4_chips(tmp_path: Path):
    for number in range(4):
        pci_device(tmp_path, f"0000:00:0{number}.0", "0x1ae0", "0x005e")
    pci_device(tmp_path, "0000:00:09.0", "0x1ae0", "0x0042")
    assert _env.tpu_chips(tmp_path) == 4


def test_googles_network_card_and_disk_are_no_tpu(tmp_path: Path):
    pci_device(tmp_path, "0000:00:03.0", "0x1ae0", "0x0042")
    pci_device(tmp_path, "0000:00:04.0", "0x1ae0", "0x001f")
    touch(tmp_path / "dev/vfio/vfio")
    touch(tmp_path / "dev/vfio/12")
    assert _env.tpu_chips(tmp_path) == 0


@pytest.mark.parametrize("file", ["dev/accel0", "dev/vfio/0"])
def test_a_newer_chip_counts_where_it_has_a_device_file(tmp_path: Path, file: str):
    pci_device(tmp_path, "0000:00:03.0", "0x1ae0", "0x0099")
    assert _env.tpu_chips(tmp_path) == 0
    touch(tmp_path / file)
    assert _env.tpu_chips(tmp_path) == 1


def test_another_makers_accelerator_is_no_tpu(tmp_path: Path):
    pci_device(tmp_path, "0000:00:03.0", "0x1da3", "0x0063")
    touch(tmp_path / "dev/accel/accel0")
    assert _env.tpu_chips(tmp_path) == 0


@pytest.mark.parametrize("file", ["dev/nvidiactl", "dev/nvidia0", "proc/driver/nvidia/version", "dev/dxg"])
def test_nvidia(tmp_path: Path, file: str):
    touch(tmp_path / file)
    assert _env.has_nvidia(tmp_path)


# Before JAX starts. Each in a process of its own, on the machine that runs the tests.

ON_CPU = not _env.tpu_chips() and not (_env.has_nvidia() and _env.has_cuda_plugin()) and not _env.other_plugins()
cpu_only = pytest.mark.skipif(not ON_CPU, reason="this machine has an accelerator, and JAX decides alone")


@cpu_only
def test_jax_is_put_on_the_cpu_before_its_import():
    program = """
from anytpu import _env
_env.prepare_jax()
import jax
print(jax.config.jax_platforms, jax.devices()[0].platform, _env.jax_platforms())
"""
    assert printed(program) == "cpu cpu ('cpu',)"


@cpu_only
def test_jax_is_put_on_the_cpu_after_its_import():
    program = """
import jax
from anytpu import _env
_env.prepare_jax()
print(jax.config.jax_platforms, jax.devices()[0].platform)
"""
    assert printed(program) == "cpu cpu"


def test_a_jax_that_runs_is_left_alone():
    program = """
import jax, logging
jax.devices()
before = jax.config.jax_platforms
from anytpu import _env
_env.prepare_jax()
print(jax.config.jax_platforms == before)
"""
    assert in_new_process(program).stdout.strip() == "True"


@pytest.mark.parametrize("name", _env._CHOOSES_DEVICES)
def test_what_the_user_set_stays(monkeypatch: pytest.MonkeyPatch, name: str):
    for variable in _env._CHOOSES_DEVICES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, "tpu")
    assert not _env._may_choose_platform()


def test_what_the_user_configured_stays():
    program = """
import jax
jax.config.update("jax_platforms", "cpu,tpu")
from anytpu import _env
_env.prepare_jax()
print(jax.config.jax_platforms)
"""
    assert printed(program) == "cpu,tpu"


@pytest.mark.parametrize(("devices", "threads"), [(2, "16"), (8, "16"), (32, "64")])
def test_threads_for_forced_host_devices(devices: int, threads: str):
    program = "import os; from anytpu import _env; _env.prepare_jax(); print(os.environ['PJRT_NPROC'])"
    flags = f"--xla_dump_to=/x --xla_force_host_platform_device_count={devices}"
    assert printed(program, XLA_FLAGS=flags) == threads


def test_a_thread_count_that_is_set_stays():
    program = "import os; from anytpu import _env; _env.prepare_jax(); print(os.environ['PJRT_NPROC'])"
    assert printed(program, XLA_FLAGS="--xla_force_host_platform_device_count=8", PJRT_NPROC="4") == "4"


def test_no_thread_count_without_forced_devices():
    program = "import os; from anytpu import _env; _env.prepare_jax(); print('PJRT_NPROC' in os.environ)"
    assert printed(program) == "False"


def test_libtpu_where_a_variable_says_it_is():
    program = "from anytpu import _env; print(_env.has_libtpu())"
    assert printed(program, TPU_LIBRARY_PATH="/lib/libtpu.so") == "True"


@cpu_only
def test_an_installed_libtpu_stays_quiet(tmp_path: Path):
    """A libtpu that speaks when it is loaded must not be loaded on a machine without a TPU."""
    (tmp_path / "libtpu.py").write_text("print('libtpu was loaded')\ndef get_library_path(): return '/no/libtpu.so'\n")
    program = "from anytpu import _env; _env.prepare_jax(); import jax; jax.devices(); print(_env.has_libtpu())"
    run = in_new_process(program, PYTHONPATH=str(tmp_path))
    # JAX imports the Python package to look for the library; it must go no further.
    assert (run.stdout.splitlines()[-1], run.stderr) == ("True", "")


def test_the_environment_of_forced_devices(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    monkeypatch.setenv("TPU_LIBRARY_PATH", "/nowhere/libtpu.so")
    environment = _env.forced_devices(12)
    assert environment["XLA_FLAGS"] == "--xla_cpu_enable_fast_math=false --xla_force_host_platform_device_count=12"
    assert (environment["JAX_PLATFORMS"], environment["PJRT_NPROC"]) == ("cpu", "24")
    assert _env.forced_devices(2)["PJRT_NPROC"] == "16"
    assert "TPU_LIBRARY_PATH" not in environment
    program = "import anytpu, jax; print(jax.device_count())"
    done = subprocess.run([sys.executable, "-c", program], env=_env.forced_devices(3), capture_output=True, text=True)
    assert done.stdout == "3\n"


def test_forced_devices_of_an_installed_package(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", "mine")
    assert _env.forced_devices(2)["PYTHONPATH"] == f"{_env.package_folder()}{os.pathsep}mine"
    monkeypatch.setattr(_env, "package_folder", lambda: Path("/lib/site-packages"))
    assert _env.forced_devices(2)["PYTHONPATH"] == "mine"


def test_the_environment_of_the_compiler(monkeypatch: pytest.MonkeyPatch):
    for name, value in {"XLA_FLAGS": "--unknown", "JAX_ENABLE_X64": "1", "TPU_NAME": "mine", "MINE": "kept"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LIBTPU_INIT_ARGS", " --xla_tpu_flag=1 ")
    environment = _env.compiler_environment()
    assert not {"XLA_FLAGS", "JAX_ENABLE_X64", "TPU_NAME"} & environment.keys()
    assert (environment["JAX_PLATFORMS"], environment["TPU_LOG_DIR"], environment["MINE"]) == (
        "cpu",
        "disabled",
        "kept",
    )
    assert environment.get("PYTHONPATH") == os.environ.get("PYTHONPATH")
    assert _env.compiler_settings()["LIBTPU_INIT_ARGS"] == " --xla_tpu_flag=1 "
    assert "PYTHONPATH" not in _env.compiler_settings()
    assert environment["LIBTPU_INIT_ARGS"] == " --xla_tpu_flag=1 "


def test_what_a_compiler_keeps_from_its_start(monkeypatch: pytest.MonkeyPatch):
    before = _env.compiler_surroundings()
    assert before["libtpu"] == str(_env.libtpu_version())
    monkeypatch.setenv("MINE", "1")
    assert _env.compiler_surroundings() == before
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_flag=1")
    assert _env.compiler_surroundings() == before | {"LIBTPU_INIT_ARGS": "--xla_tpu_flag=1"}


def test_where_the_answers_of_the_compiler_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ANYTPU_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert _env.cache_folder() == tmp_path / ".cache/anytpu"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "all"))
    assert _env.cache_folder() == tmp_path / "all/anytpu"
    monkeypatch.setenv("ANYTPU_CACHE_DIR", str(tmp_path / "own"))
    assert _env.cache_folder() == tmp_path / "own"


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch):
    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", unknown)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ANYTPU_CACHE_DIR", "~/mine")
    own = _env.cache_folder()
    monkeypatch.delenv("ANYTPU_CACHE_DIR")
    for folder in (own, _env.cache_folder()):
        with pytest.raises(NotADirectoryError):
            folder.mkdir(parents=True, exist_ok=True)


def test_the_version_of_libtpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert _env.libtpu_version() is None


READ = "--xla_cpu_enable_fast_math=false"


@pytest.fixture
def flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ask for flags that XLA can read, in a process and a cache folder that have tried none; returns their notes."""
    monkeypatch.setenv("XLA_FLAGS", READ)
    monkeypatch.setenv("ANYTPU_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(_env, "_CHECKED_FLAGS", set())
    return tmp_path / "cache/xla_flags"


def test_flags_are_tried_without_the_modules_of_the_working_folder(
    flags: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "jaxlib.py").write_text("open('was_run', 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f":{tmp_path / 'elsewhere'}")  # Python takes an empty entry as this folder.
    _env.check_jax_settings()
    assert not (tmp_path / "was_run").exists()
    assert len(list(flags.iterdir())) == 1


def test_bad_flags_are_named_from_such_a_folder_too(flags: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "jaxlib.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XLA_FLAGS", "--xla_bogus=1")
    with pytest.raises(SettingError) as caught:
        _env.check_jax_settings()
    assert str(caught.value) == (
        "XLA cannot read XLA_FLAGS='--xla_bogus=1' and would end this process: Unknown flag in XLA_FLAGS: "
        "--xla_bogus=1. Take that flag out, or: unset XLA_FLAGS"
    )
    assert not flags.exists()


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (_jax, "PARSE_FLAGS", "import no_such_module"),
        (_jax, "PARSE_FLAGS", "import os; os.kill(os.getpid(), 9)"),
        (_env, "FLAGS_TIMEOUT_S", 0.001),
    ],
)
def test_a_failed_child_does_not_say_that_flags_are_right(
    flags: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, value: Any
):
    monkeypatch.setattr(owner, name, value)
    _env.check_jax_settings()
    assert not flags.exists()


def test_a_child_that_cannot_start_does_not_say_it_either(flags: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    _env.check_jax_settings()
    assert not flags.exists()


def test_the_secret_of_a_job_is_not_in_the_environment_of_its_rendezvous(monkeypatch: pytest.MonkeyPatch):
    assert _env.job_token() is None
    monkeypatch.setenv("ANYTPU_JOB_TOKEN", " secret ")
    assert _env.job_token() == "secret"
    assert "ANYTPU_JOB_TOKEN" not in _env.rendezvous_environment()
