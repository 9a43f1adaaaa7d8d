"""A function of a file of the user's: found, called, and told of when it fails."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from anytpu.cli.script import job_of, load
from anytpu.errors import SettingError
from cli.commands import anytpu

SCRIPT = """\
    import argparse
    import sys

    import jax
    import beside

    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=8)
    ROWS = parser.parse_args().rows


    def step(state, batch):
        return state + batch.sum(), {}


    def create_step():
        return step, (jax.ShapeDtypeStruct((), "float32"), jax.ShapeDtypeStruct((ROWS,), "float32"))


    def bare():
        return step


    def needs(rows, width=1):
        return step


    def fails():
        return beside.broken(ROWS)


    def leaves():
        sys.exit(3)


    def number():
        return 3


    def long():
        return list(range(100))


    if __name__ == "__main__":
        raise SystemExit("this must not run")
    """


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    (tmp_path / "beside.py").write_text("def broken(rows):\n    raise ValueError(f'no {rows} rows\\nor more')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("beside", "_anytpu_train", "_anytpu_empty", "_anytpu_broken"):
        monkeypatch.setitem(sys.modules, name, sys)  # so that it is taken away again
        del sys.modules[name]
    return tmp_path


def error_of(name: str, function: str) -> str:
    with pytest.raises(SettingError) as caught:
        job_of(name, function, has_values=True)
    return str(caught.value)


def test_a_pair_of_a_step_and_its_specs(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "argv", ["anytpu", "plan", "--rows", "nonsense"])
    step, (state, batch) = job_of("train.py", "create_step", has_values=False)
    assert (step.__name__, state.shape, batch.shape) == ("step", (), (8,))
    assert sys.argv == ["anytpu", "plan", "--rows", "nonsense"]


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")
def test_a_large_model_is_made_of_shapes(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "large.py").write_text(
        "import keras\n\n\n"
        "def create_model():\n"
        "    print('called')\n"
        "    model = keras.Sequential([keras.Input((4_000_000,)), keras.layers.Dense(4_000_000)])\n"
        "    model.compile('adam', 'mse')\n"
        "    return model\n\n\n"
        "def create_adapted():\n"
        "    print('called')\n"
        "    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])\n"
        "    model.compile('adam', 'mse')\n"
        "    return model if model.get_weights()[0].any() else None\n"
    )
    model, _ = job_of("large.py", "create_model", has_values=False)
    assert model.count_params() == 4_000_000 * 4_000_001 and capsys.readouterr().out == "called\n"
    # It reads its weights, so it is called again, and has values.
    model, _ = job_of("large.py", "create_adapted", has_values=False)
    assert model.get_weights()[0].any() and capsys.readouterr().out == "called\ncalled\n"


def test_a_job_alone(folder: Path):
    step, specs = job_of(str(folder / "train.py"), "bare", has_values=False)
    assert (step.__name__, specs) == ("step", None)


def test_a_file_that_is_not_there(folder: Path):
    assert error_of("trian.py", "bare") == "there is no file 'trian.py'; did you mean 'train.py'?"
    assert error_of("no/such.py", "bare") == (
        "there is no file 'no/such.py'; name a function in a file, like train.py:create_model"
    )
    assert error_of("model.h5", "bare") == (
        "'model.h5' is not a Python file; name a function in a file, like train.py:create_model"
    )


def test_a_function_that_is_not_there(folder: Path):
    assert (
        error_of("train.py", "create_stepp") == "train.py has no function 'create_stepp'; did you mean 'create_step'?"
    )
    assert error_of("train.py", "ROWS") == (
        "train.py has no function 'ROWS'; it has 'step', 'create_step', 'bare', 'needs', 'fails', 'leaves', 'number', "
        "'long'"
    )
    (folder / "empty.py").write_text("")
    assert error_of("empty.py", "bare") == "empty.py has no function 'bare'; it has no function at all"


def test_a_function_that_needs_arguments(folder: Path):
    assert error_of("train.py", "needs") == (
        "needs(rows, width=1) in train.py is called without arguments (missing a required argument: 'rows'); give each "
        "a default, or name a function without arguments that calls it"
    )


MUST = (
    "which cannot be planned; it must return a compiled Keras model, a pair (model, input_specs) with "
    "input_specs=(x, y), or a pair (step, input_specs) with a JAX function step(state, batch) and "
    "input_specs=(state, batch)"
)


def test_what_is_no_job(folder: Path):
    assert error_of("train.py", "number") == f"number() in train.py returned 3 (int), {MUST}"
    assert error_of("train.py", "long") == f"long() in train.py returned a list, {MUST}"


def test_a_function_that_fails(folder: Path):
    assert error_of("train.py", "fails") == (
        "train.py, line 29, in fails: ValueError: no 8 rows; --traceback shows the whole traceback"
    )
    assert error_of("train.py", "leaves") == (
        "train.py, line 33, in leaves: it called sys.exit(3); --traceback shows the whole traceback"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import nothing_of_that_name", "ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("def step(:", "SyntaxError: invalid syntax"),
        ("raise KeyError", "KeyError"),
    ],
)
def test_a_file_that_cannot_be_loaded(text: str, said: str, folder: Path):
    (folder / "broken.py").write_text(f"\n{text}\n")
    with pytest.raises(SettingError) as caught:
        load(Path("broken.py"))
    assert str(caught.value) == f"broken.py, line 2: {said}; --traceback shows the whole traceback"


def test_the_whole_traceback(folder: Path):
    run = anytpu("plan", "train.py:fails", "--traceback", folder=folder)
    assert (run.returncode, run.stdout) == (2, "")
    assert 'beside.py", line 2, in broken' in run.stderr
    assert run.stderr.splitlines()[-1].startswith("anytpu: train.py, line 29, in fails: ValueError: no 8 rows;")
