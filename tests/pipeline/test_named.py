from __future__ import annotations

import hashlib
import importlib.resources
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from anytpu.errors import AnyTPUError
from anytpu.pipeline import digits, iris
from source_tree import ROOT

SHA256 = {
    "digits.npz": "6f801551877abf69fbf3711373bb642a18dc933430a3385cd6febc235225ea6f",
    "iris.npz": "47446607e2833dbc8f1c502d5a2f762d061dd9b960b09ea2992ec249673f9a71",
}


def both(split):
    (x_train, y_train), (x_test, y_test) = split
    return np.concatenate([x_train, x_test]), np.concatenate([y_train, y_test])


def sorted_rows(x):
    return np.sort(x.reshape(len(x), -1).view(np.dtype((np.void, x[0].nbytes))), axis=0)


@pytest.mark.parametrize("name", SHA256)
def test_files_are_the_ones_that_were_vendored(name):
    content = (importlib.resources.files("anytpu.pipeline") / "files" / name).read_bytes()
    assert hashlib.sha256(content).hexdigest() == SHA256[name]


def test_digits():
    (x_train, y_train), (x_test, y_test) = digits()
    assert (x_train.shape, y_train.shape) == ((1438, 8, 8, 1), (1438,))
    assert (x_test.shape, y_test.shape) == ((359, 8, 8, 1), (359,))
    assert (x_train.dtype, y_train.dtype) == (np.float32, np.int32)
    x, y = both(digits())
    assert (x.min(), x.max()) == (0, 1)
    assert np.bincount(y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_iris():
    (x_train, y_train), (x_test, y_test) = iris()
    assert (x_train.shape, y_train.shape) == ((120, 4), (120,))
    assert (x_test.shape, y_test.shape) == ((30, 4), (30,))
    assert (x_train.dtype, y_train.dtype) == (np.float32, np.int32)
    x, y = both(iris())
    assert np.bincount(y).tolist() == [50, 50, 50]
    assert np.round(x.mean(0, dtype=np.float64), 3).tolist() == [5.843, 3.057, 3.758, 1.199]


@pytest.mark.parametrize("load", [digits, iris])
def test_the_seed_draws_the_split(load):
    first, again, other = load(seed=3), load(seed=3), load(seed=4)
    for a, b in zip(both(first), both(again), strict=True):
        assert np.array_equal(a, b)
    assert not np.array_equal(both(first)[1], both(other)[1])
    assert np.array_equal(sorted_rows(both(first)[0]), sorted_rows(both(other)[0]))


def test_the_usual_split_is_the_same_on_every_machine():
    assert digits()[1][1][:12].tolist() == [6, 6, 6, 2, 5, 6, 6, 2, 2, 1, 1, 9]
    assert iris()[1][1][:12].tolist() == [1, 2, 1, 2, 2, 1, 1, 2, 2, 0, 1, 1]


@pytest.mark.parametrize(("fraction", "tests"), [(0.5, 75), (1e-9, 1), (1 - 1e-9, 149), (np.float32(0.1), 15)])
def test_test_fraction(fraction, tests):
    (x_train, _), (x_test, _) = iris(test_fraction=fraction)
    assert (len(x_train), len(x_test)) == (150 - tests, tests)


@pytest.mark.parametrize("seed", [-1, 1.5, "7", True, None])
def test_bad_seed(seed):
    with pytest.raises(AnyTPUError) as caught:
        digits(seed=seed)
    expected = f"seed must be an integer of at least 0, not {seed!r}; omit it for the default split, seed=0."
    assert str(caught.value) == expected


@pytest.mark.parametrize("fraction", [0, 1, -0.5, 20, "0.2", True, float("nan")])
def test_bad_fraction(fraction):
    with pytest.raises(AnyTPUError) as caught:
        iris(test_fraction=fraction)
    assert str(caught.value) == (
        f"test_fraction must be a number above 0 and below 1, not {fraction!r}; "
        "test_fraction=0.2 keeps a fifth of the rows for testing."
    )


def test_no_scikit_learn():
    program = (
        "import sys; sys.modules['sklearn'] = None; from anytpu.pipeline import digits; print(len(digits()[0][0]))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "1438\n"


def test_wheel_carries_the_files(tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"anytpu/pipeline/files/{name}" for name in (*SHA256, "README.md")} <= names
