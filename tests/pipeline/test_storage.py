from __future__ import annotations

import functools
import os
import pickle
import stat
import subprocess
import sys

import pytest

from anytpu.errors import FileError, SettingError
from anytpu.pipeline.storage import LocalFile, created, expand, is_remote, shard_names, stored
from error_texts import error_text

error_of = functools.partial(error_text, kind=FileError)


@pytest.fixture
def folder(tmp_path):
    for name in ("b-1", "b-0", "a", "c[1]"):
        (tmp_path / name).write_text(name)
    return tmp_path


def test_expand(folder):
    assert expand(folder / "a") == (f"{folder}/a",)
    assert expand(f"{folder}/b-?") == (f"{folder}/b-0", f"{folder}/b-1")
    assert expand([folder / "b-*", f"file://{folder}/a"]) == (f"{folder}/b-0", f"{folder}/b-1", f"{folder}/a")


def test_a_name_that_looks_like_a_pattern(folder):
    assert expand(folder / "c[1]") == (f"{folder}/c[1]",)


def test_the_users_own_folder(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder))
    assert expand("~/a") == (f"{folder}/a",)


def test_what_is_not_there(folder):
    assert error_of(expand, folder / "z") == (f"there is no file '{folder}/z'; '{folder}' contains a, b-0, b-1, c[1]")
    assert error_of(expand, [folder / "a", folder / "d-*"]) == (
        f"no file matches '{folder}/d-*'; '{folder}' contains a, b-0, b-1, c[1]"
    )
    assert error_of(expand, folder / "none" / "x") == (
        f"there is no file '{folder}/none/x': the folder '{folder}/none' does not exist; the current folder is "
        f"{os.getcwd()!r}"
    )
    assert error_of(expand, folder) == f"'{folder}' is a folder; pass a pattern for its files: '{folder}/*.tfrecord'"


def test_what_is_no_path():
    for paths, message in (
        ([], 'paths must contain at least one file, not []; pass a path such as "train-*.tfrecord"'),
        ([3], 'a path must be text, such as "train-*.tfrecord", not 3'),
        ([b"x"], "a path must be text, such as \"train-*.tfrecord\", not b'x'"),
    ):
        with pytest.raises(SettingError) as caught:
            expand(paths)  # type: ignore[arg-type]
        assert str(caught.value) == message


def test_reading(folder):
    file = stored(folder / "b-0")
    assert file.size_bytes == 3
    assert [file.read_at(*place) for place in ((0, 2), (1, 2), (2, 9), (3, 1))] == [b"b-", b"-0", b"0", b""]
    with file.stream() as stream:
        assert [stream.read(2), stream.read(2), stream.read(2)] == [b"b-", b"0", b""]
    assert pickle.loads(pickle.dumps(file)).read_at(0, 3) == b"b-0"


def test_a_file_is_closed_with_its_last_use(folder):
    before = len(LocalFile.open_files)
    file = LocalFile(f"{folder}/a")
    assert file.read_at(0, 1) == b"a"
    assert len(LocalFile.open_files) == before + 1
    del file
    assert len(LocalFile.open_files) == before


def test_a_file_that_is_gone(folder):
    file = stored(folder / "z")
    for read in (lambda: file.size_bytes, lambda: file.read_at(0, 1), lambda: file.stream().__enter__()):
        assert error_of(read) == f"there is no file '{folder}/z'; '{folder}' contains a, b-0, b-1, c[1]"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(folder):
    (folder / "a").chmod(stat.S_IWUSR)
    assert error_of(lambda: stored(folder / "a").read_at(0, 1)) == f"cannot read '{folder}/a': Permission denied"


def test_writing(folder):
    with created(folder / "new") as unfinished:
        with open(unfinished, "wb") as file:
            file.write(b"all of it")
        assert not (folder / "new").exists()
    assert (folder / "new").read_bytes() == b"all of it"
    with pytest.raises(KeyError), created(folder / "new") as unfinished:
        raise KeyError
    assert (folder / "new").read_bytes() == b"all of it"
    assert not os.path.exists(unfinished)


def test_writing_more_than_a_limit_allows(folder):
    """A full disk fails alike; a limit needs no file system of its own."""
    code = f"""
import resource, sys, anytpu
sys.dont_write_bytecode = True  # Or Python cuts off what it compiles.
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
anytpu.pipeline.write_records({str(folder / "a")!r}, [bytes(1000)] * 1000)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stderr.splitlines()[-1] == f"anytpu.errors.FileError: cannot write '{folder}/a': File too large"
    assert (folder / "a").read_text() == "a"


def test_writing_where_that_cannot_be(folder):
    assert error_of(created(folder / "none" / "x").__enter__) == (
        f"there is no file '{folder}/none/x': the folder '{folder}/none' does not exist; the current folder is "
        f"{os.getcwd()!r}"
    )
    assert error_of(created(folder / "a" / "x").__enter__) == f"cannot write '{folder}/a/x': Not a directory"


@pytest.mark.parametrize(
    ("path", "first"),
    [
        ("a/train.tfrecord", "a/train-00000-of-00002.tfrecord"),
        ("train.tfrecord.gz", "train-00000-of-00002.tfrecord.gz"),
        ("gs://b.c/train", "gs://b.c/train-00000-of-00002"),
        ("v1.2/.hidden", "v1.2/.hidden-00000-of-00002"),
    ],
)
def test_names_of_shards(path, first):
    assert shard_names(path, 2) == (first, first.replace("00000", "00001"))
    assert shard_names(path, 1) == (path,)


@pytest.mark.parametrize(
    ("path", "expected"), [("gs://a/b", True), ("file:///a", False), ("/a", False), ("C:/a", False)]
)
def test_what_is_beyond_this_machine(path, expected):
    assert is_remote(path) is expected
