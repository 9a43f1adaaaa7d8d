from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys

import pytest

import anytpu
from anytpu.errors import SettingError


def run(program: str, **environment: str | None) -> subprocess.CompletedProcess[str]:
    merged = {k: v for k, v in {**os.environ, **environment}.items() if v is not None}
    return subprocess.run([sys.executable, "-c", program], env=merged, capture_output=True, text=True)


def test_a_name_is_the_one_of_its_part():
    assert anytpu.pipeline.digits is importlib.import_module("anytpu.pipeline.named").digits
    assert anytpu.errors.SettingError is SettingError
    for name, part in anytpu._MODULES.items():
        assert getattr(anytpu, name) is getattr(importlib.import_module(f"anytpu.{part}"), name), name


def test_dir_lists_the_public_names():
    assert dir(anytpu) == sorted([*anytpu.__all__, "__version__"])
    submodules = {"chip", "embedding", "errors", "layers", "pipeline", "program", "summary", "system"}
    assert sorted(anytpu._MODULES) == sorted({*anytpu.__all__} - submodules)


def test_version_is_that_of_the_package():
    assert anytpu.__version__ == importlib.metadata.version("anytpu")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("conect", "anytpu has no name 'conect'; did you mean anytpu.connect?"),
        ("TPUStratgy", "anytpu has no name 'TPUStratgy'; did you mean anytpu.TPUStrategy?"),
        ("qqq", "anytpu has no name 'qqq'; dir(anytpu) lists its names."),
    ],
)
def test_a_misspelt_name(name, message):
    with pytest.raises(AttributeError) as caught:
        getattr(anytpu, name)
    assert str(caught.value) == message


def test_keras_runs_on_jax():
    show = "import anytpu, keras; print(keras.backend.backend())"
    assert run(show, KERAS_BACKEND=None).stdout == "jax\n"


def test_a_backend_of_the_users_choice_stays():
    show = "import anytpu, os; print(os.environ['KERAS_BACKEND'])"
    assert run(show, KERAS_BACKEND="numpy").stdout == "numpy\n"


def test_a_backend_that_does_not_exist():
    assert run("import anytpu; anytpu.connect()", KERAS_BACKEND="jaxx").stderr.splitlines()[-1] == (
        "anytpu.errors.SettingError: KERAS_BACKEND must be one of jax, tensorflow, torch, openvino, numpy, not 'jaxx'; "
        "anytpu needs jax: KERAS_BACKEND=jax"
    )
