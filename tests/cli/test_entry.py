from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys

import pytest

from anytpu import _env
from anytpu.cli.entry import commands, main
from cli.commands import anytpu


def error(*words: str) -> str:
    """Return the whole of stderr of a command that must fail with one message."""
    run = anytpu(*words)
    assert (run.returncode, run.stdout) == (2, "")
    return run.stderr


def test_version():
    run = anytpu("--version")
    assert (run.returncode, run.stdout) == (0, f"anytpu {importlib.metadata.version('anytpu')}\n")


def test_no_command_shows_the_help():
    assert anytpu().stdout == anytpu("--help").stdout


@pytest.mark.parametrize("command", [command.name for command in commands()])
def test_each_command_has_help_that_fits(command: str):
    run = anytpu(command, "--help", COLUMNS="200")
    assert run.returncode == 0
    assert run.stdout.startswith(f"usage: anytpu {command} ")
    assert max(len(line) for line in run.stdout.splitlines()) <= 80


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["doctor", "--help"], ["no-such-command"]])
def test_what_needs_no_device_loads_neither_jax_nor_keras(words: list[str]):
    program = f"""
import sys
from anytpu.cli import main
try:
    main({words})
except SystemExit:
    pass
print(sorted({{"jax", "jaxlib", "keras", "numpy", "rich"}} & set(sys.modules)))
"""
    run = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True)
    assert run.stdout.splitlines()[-1] == "[]", run.stderr


def test_an_old_command_says_its_new_name(capsys: pytest.CaptureFixture[str]):
    assert main(["check", "kernel.py"]) == 2
    assert capsys.readouterr().err == (
        "anytpu: `anytpu check` goes with the next version; type: anytpu kernel\n"
        "anytpu: name the kernel: a function in a file, like kernel.py:create_kernel\n"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["dvices"], "there is no command 'dvices'; did you mean `anytpu devices`?"),
        (
            ["xyz"],
            "there is no command 'xyz'; the commands are demo, devices, doctor, env, compare, plan, shard, kernel, "
            "chip, run, launch, checkpoints, report, watch, port, worker, docs",
        ),
        (
            ["demo", "--epochs", "0"],
            "argument --epochs: must be a positive integer, not '0'; see `anytpu demo --help`",
        ),
        (
            ["demo", "--cores", "x"],
            "argument --cores: must be a positive integer, not 'x'; see `anytpu demo --help`",
        ),
        (
            ["demo", "--epoch", "3"],
            "anytpu demo does not take --epoch 3; did you mean --epochs? see `anytpu demo --help`",
        ),
        (
            ["plan", "net.mlir", "--mode", "infer"],
            "anytpu plan does not take --mode infer; did you mean --infer? see `anytpu plan --help`",
        ),
        (
            ["plan", "net.mlir", "--epoch=3"],
            "anytpu plan does not take --epoch=3; did you mean --epochs? see `anytpu plan --help`",
        ),
        (
            ["plan", "scalin", "train.py:f"],
            "anytpu plan does not take train.py:f; did you mean `anytpu plan scaling`? see `anytpu plan --help`",
        ),
        (["--quick"], "anytpu does not take --quick; see `anytpu --help`"),
        (["env", "--tpu"], "anytpu env does not take --tpu; see `anytpu env --help`"),
        (
            ["devices", "--tpu", "v2-8", "--cores", "3"],
            "'v2-8' has 8 cores, so cores must be 8 or left out, not 3; for 3 virtual cores write "
            'TPUClusterResolver("virtual", cores=3)',
        ),
    ],
)
def test_errors(words: list[str], message: str):
    assert error(*words) == f"anytpu: {message}\n"


@pytest.mark.parametrize("words", [["--traceback", "devices"], ["devices", "--traceback"]])
def test_traceback_shows_where_an_error_comes_from(words: list[str]):
    lines = error(*words, "--tpu", "v2-8", "--cores", "3").splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-2].startswith("anytpu.errors.SettingError: 'v2-8' has 8 cores")
    assert lines[-1].startswith("anytpu: 'v2-8' has 8 cores")


def test_an_exception_that_is_not_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch):
    def broken(words):
        raise KeyError("a mistake in anytpu")

    monkeypatch.setattr("anytpu.cli.entry._run", broken)
    with pytest.raises(KeyError, match="a mistake in anytpu"):
        main(["devices"])


def test_ctrl_c_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def interrupted(words):
        raise KeyboardInterrupt

    monkeypatch.setattr("anytpu.cli.entry._run", interrupted)
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == "anytpu: interrupted\n"


@pytest.mark.parametrize("words", [["devices", "--tpu", "virtual", "--cores", "4096"], ["env"]])
def test_a_reader_that_goes_away_is_no_error(words: list[str]):
    command = [sys.executable, "-m", "anytpu", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        run.stdout.close()
        assert run.stderr is not None
        assert "Traceback" not in run.stderr.read()
    assert run.returncode == 141


@pytest.mark.parametrize("command", [("demo",), ("compare",), ("plan", "x.py:f")])
def test_keras_on_another_backend(command: tuple[str, ...]):
    for name, text in {
        "torch": "KERAS_BACKEND is 'torch', and anytpu needs Keras on JAX. Start Python again (in a notebook: restart "
        "the kernel) with KERAS_BACKEND unset or KERAS_BACKEND=jax",
        "tourch": "KERAS_BACKEND must be one of jax, tensorflow, torch, openvino, numpy, not 'tourch'; anytpu needs "
        "jax: KERAS_BACKEND=jax",
    }.items():
        run = anytpu(*command, KERAS_BACKEND=name)
        assert (run.returncode, run.stderr) == (2, f"anytpu: {text}\n")


def test_a_platform_that_jax_cannot_start():
    run = anytpu("demo", JAX_PLATFORMS="rocm")
    assert run.returncode == 2
    # JAX lists the platforms whose plugins are installed.
    assert re.sub(r"\['cpu'.*?\]", "[...]", run.stderr.splitlines()[-1]) == (
        "anytpu: JAX_PLATFORMS is 'rocm', and JAX cannot start that on this machine: Unable to initialize backend "
        "'rocm': Backend 'rocm' is not in the list of known backends: [...]. Type: unset JAX_PLATFORMS"
    )


@pytest.mark.skipif(_env.tpu_chips() > 0, reason="this machine has a TPU")
@pytest.mark.parametrize("command", [("demo",), ("devices",), ("plan", "x.py:f"), ("worker",), ("port", "x")])
def test_a_tpu_that_is_not_there(command: tuple[str, ...]):
    run = anytpu(*command, JAX_PLATFORMS="tpu")
    assert (run.returncode, run.stdout, run.stderr) == (
        2,
        "",
        "anytpu: JAX_PLATFORMS is 'tpu', and JAX cannot start that on this machine: it has no TPU chip. "
        "Type: unset JAX_PLATFORMS\n",
    )
