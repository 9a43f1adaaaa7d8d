"""Trials: a ported program runs for a few steps, and its first failure is shown beside the old line."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

import ported_corpus as corpus
from anytpu.migrate.port import Trial, ported_file, tried
from anytpu.migrate.port.trial import MAX_COPIED_BYTES
from anytpu.migrate.port.trial_run import cut_program, run_program

SAMPLE = [
    "autograph_steps.py",
    "colab_bert.ipynb",
    "estimator_mnist.py",
    pytest.param("kaggle_flowers.ipynb", marks=pytest.mark.battery),
    "tf_module.py",
]
"""A fixed part of the corpus; `scripts/port_corpus` runs all of it."""


@pytest.mark.parametrize("name", SAMPLE)
def test_a_program_of_the_corpus(name: str, tmp_path: Path):
    outcome = corpus.port_and_try(corpus.FOLDER / name, tmp_path)
    assert not outcome.is_unlisted, outcome
    assert outcome.by_hand == (name == "autograph_steps.py")
    assert outcome.result == ("listed" if outcome.by_hand else "ran")


def trial_of(folder: Path, text: str, name: str = "old.py") -> Trial:
    path = folder / name
    path.write_text(text)
    return tried(ported_file(path).program, path, 60)


def test_the_first_failure_is_shown_beside_the_old_line(tmp_path: Path):
    text = "import tensorflow as tf\nx = 3\n\n\ndef f(y):\n    return {}[y]\n\n\nf(tf.newaxis)\n"
    assert trial_of(tmp_path, text) == Trial("KeyError: None", 6, 0, "return {}[y]", "return {}[y]")


def test_a_failure_in_a_cell(tmp_path: Path):
    cells = [{"cell_type": "code", "source": source} for source in ("%magic\nx = 1", "import os\ny = x / 0")]
    trial = trial_of(tmp_path, json.dumps({"cells": cells}), "old.ipynb")
    assert trial == Trial("ZeroDivisionError: division by zero", 2, 2, "y = x / 0", "y = x / 0")


def test_a_listed_line(tmp_path: Path):
    trial = trial_of(tmp_path, "import tensorflow as tf\nx = tf.placeholder('float')\n")
    assert (trial.line, trial.is_listed) == (2, True)
    assert trial.error == "NotPortedError: tensorflow.placeholder is TensorFlow's"


def test_an_import_that_keras_3_lacks_is_listed_where_it_is_used(tmp_path: Path):
    use = "from keras.wrappers.scikit_learn import KerasClassifier\nc, n = KerasClassifier(), tf.newaxis\n"
    text = f"import tensorflow as tf\n{use}"
    trial = trial_of(tmp_path, text)
    assert (trial.line, trial.is_listed) == (2, True)


def test_a_module_of_a_package_imports_its_neighbours(tmp_path: Path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "part.py").write_text("size = 3\n")
    assert trial_of(package, "import part\nfrom . import part as same\nfrom package.part import size\n") == Trial()


def test_a_trial_works_in_a_copy_of_the_folder(tmp_path: Path):
    (tmp_path / "weights").write_text("mine")
    text = "print(open('weights').read(), file=open('weights', 'w')); open('new', 'w'); raise SystemExit(0)\n"
    assert trial_of(tmp_path, text) == Trial()
    assert (tmp_path / "weights").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old.py", "weights"]


LARGE = MAX_COPIED_BYTES + 1


@pytest.mark.parametrize(
    "code",
    [
        "open('weights.bin', 'wb').write(b'gone')",
        "import os; os.truncate('weights.bin', 0)",
        "import os; os.remove('weights.bin')",
        "import h5py; h5py.File('weights.bin', 'w').close()",
    ],
)
def test_a_large_file_is_copied_before_a_change(tmp_path: Path, code: str):
    (tmp_path / "weights.bin").write_bytes(b"1" * LARGE)
    assert trial_of(tmp_path, f"assert open('weights.bin', 'rb').read(1) == b'1'\n{code}\n") == Trial()
    assert (tmp_path / "weights.bin").read_bytes() == b"1" * LARGE


@pytest.mark.parametrize(
    "code",
    [
        "open(PATH, 'w').write('gone')",
        "try: open(PATH, 'w').write('gone')\nexcept OSError: pass",
        "import os; os.close(os.open(PATH, os.O_RDWR | os.O_TRUNC))",
        "import os; os.remove(PATH)",
        "import os; os.rename(PATH, 'mine')",
        "import os; open('mine', 'w'); os.rename('mine', PATH)",
        "import h5py; h5py.File(PATH, 'w')",
        "import shutil; open('mine', 'w'); shutil.copyfile('mine', PATH)",
    ],
)
def test_a_change_outside_of_the_copy_is_refused(tmp_path: Path, code: str):
    weights = tmp_path / "weights"
    weights.write_text("mine")
    trial = trial_of(tmp_path, f"PATH = {str(weights)!r}\n{code}\n")
    assert trial.error == (
        f"OutsideError: {weights} is outside of the trial's copy of the folder, and a trial changes no other file; "
        "write a relative path, or port with --no-try"
    )
    assert trial.line == 2 or "try" in code
    assert weights.read_text() == "mine"


def test_a_folder_outside_of_the_copy_is_not_removed(tmp_path: Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "weights").write_text("mine")
    assert "OutsideError" in trial_of(tmp_path, f"import shutil\nshutil.rmtree({str(tmp_path / 'run')!r})\n").error
    assert (tmp_path / "run" / "weights").read_text() == "mine"


@pytest.mark.parametrize(
    "code", ["import os; os.system('rm x')", "import subprocess; subprocess.run('rm x', shell=True)"]
)
def test_a_process_of_the_program_is_refused(tmp_path: Path, code: str):
    trial = trial_of(tmp_path, f"{code}\n")
    assert trial.error.startswith("OutsideError: a trial starts no other process, which may change files: ")


def test_temporary_files_and_folders_of_the_copy_are_the_trials_own(tmp_path: Path):
    text = (
        "import os, shutil, tempfile\n"
        "for folder in ('here', tempfile.mkdtemp()):\n"
        "    os.makedirs(folder + '/a/b')\n"
        "    os.makedirs(folder + '/a/b', exist_ok=True)\n"
        "    open(folder + '/a/c', 'w'); open(folder + '/a/c', 'a'); os.replace(folder + '/a/c', folder + '/a/d')\n"
        "    shutil.rmtree(folder)\n"
    )
    assert trial_of(tmp_path, text) == Trial()


def test_a_trial_that_takes_too_long_has_not_failed(tmp_path: Path):
    path = tmp_path / "old.py"
    path.write_text("while True:\n    pass\n")
    assert tried(ported_file(path).program, path, 2) == Trial(seconds=2)


def test_a_process_that_dies(tmp_path: Path):
    trial = trial_of(tmp_path, "import os\nos._exit(3)\n")
    assert trial.error.startswith("the process ended with status 3")


def test_loops_that_train_are_cut():
    text = (
        "def step(x):\n    optimizer.apply_gradients(x)\n"
        "def train():\n    strategy.run(step)\n"
        "def predict():\n    return strategy.run(lambda: model(x))\n"
        "for i in range(9):\n    train()\n"
        "while count < 9:\n    train()\n"
        "for i in range(9):\n    print(i, predict())\n"
        "for i in range(9):\n    strategy.run(steps[i])\n"
        "while count < 9:\n    train()\n    if count > 5:\n        last = count\n"
        "model.fit(x, epochs=last)\n"
    )
    cut = (
        "def step(x):\n    optimizer.apply_gradients(x)\n"
        "def train():\n    strategy.run(step)\n"
        "def predict():\n    return strategy.run(lambda: model(x))\n"
        "for i in __cut__(range(9)):\n    train()\n"
        "for __round__ in __while__(lambda: count < 9):\n    train()\n"
        "for i in range(9):\n    print(i, predict())\n"
        "for i in __cut__(range(9)):\n    strategy.run(steps[i])\n"
        "for __round__ in __while__(lambda: count < 9, 'last'):\n    train()\n    if count > 5:\n        last = count\n"
        "__short__(model.fit, x, epochs=last)"
    )
    assert ast.unparse(cut_program(ast.parse(text))) == ast.unparse(ast.parse(cut))


@pytest.fixture
def program_of_its_own(monkeypatch: pytest.MonkeyPatch):
    """Restore what `run_program` replaces. A process that a later test spawns runs the `__main__` that it finds."""
    monkeypatch.setattr("sys.argv", ["x"])
    monkeypatch.setattr("sys.path", ["x", *__import__("sys").path])
    monkeypatch.setitem(__import__("sys").modules, "__main__", __import__("sys").modules["__main__"])


@pytest.mark.usefixtures("program_of_its_own")
def test_a_loop_is_not_cut_before_it_sets_what_is_read_behind_it(tmp_path: Path):
    text = (
        "count = 0\nwhile True:\n    optimizer.apply(count)\n    count += 1\n    if count > 5:\n        last = count\n"
    )
    path = tmp_path / "loop.py"
    path.write_text("from types import SimpleNamespace\noptimizer = SimpleNamespace(apply=print)\n" + text)
    assert run_program(path.read_text() + "assert last == 6\n", str(path)) == {}


@pytest.mark.usefixtures("program_of_its_own")
def test_fit_gets_fewer_rows_and_steps(tmp_path: Path):
    code = (
        "import numpy as np\n"
        "class M:\n"
        "    def fit(self, x=None, y=None, batch_size=None, epochs=1, steps_per_epoch=None, validation_data=None):\n"
        "        raise ValueError((len(x), batch_size, epochs, steps_per_epoch, len(validation_data[0])))\n"
        "x = np.zeros((500, 2))\n"
        "M().fit(x, x, batch_size=10, epochs=90, validation_data=(x, x))\n"
    )
    assert run_program(code, str(tmp_path / "p.py"))["error"] == "ValueError: (20, 10, 10, None, 20)"
