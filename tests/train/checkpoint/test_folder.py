from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from anytpu.errors import DamageError, FileError
from anytpu.train.checkpoint import Checkpoints, checkpoint_at
from anytpu.train.checkpoint.manifest import ArrayForm
from anytpu.units import format_bytes

VALUES = {
    "dense/kernel": np.arange(6, dtype="float32").reshape(2, 3),
    "half": np.arange(3).astype(ml_dtypes.bfloat16),
    "turned": np.arange(6).reshape(2, 3).T,
    "step": np.array(3, "int32"),
    "flag": np.array(True),
    "empty": np.zeros((0, 4), "float16"),
}
FAULTS = Path(__file__).parents[3] / "scripts" / "fault_checkpoints.py"
DYING = Path(__file__).parent / "dying.py"


def program(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def test_what_is_saved_is_loaded(tmp_path):
    checkpoints = Checkpoints(tmp_path / "a" / "b")
    assert checkpoints.latest() is None
    assert checkpoints.load_newest() is None
    checkpoints.save(3, VALUES, trained={"dense/kernel"}, optimizer_state={"half"}, host={"states": [{"batches": 2}]})
    found = checkpoints.load(3)
    assert (found.step, found.folder, found.host) == (3, str(tmp_path / "a" / "b"), {"states": [{"batches": 2}]})
    assert found.forms["dense/kernel"] == ArrayForm((2, 3), "float32", True, False)
    assert found.forms["half"] == ArrayForm((3,), "bfloat16", False, True)
    assert list(found.values) == list(VALUES)
    for name, value in VALUES.items():
        assert found.values[name].dtype == value.dtype
        assert found.values[name].shape == value.shape
        np.testing.assert_array_equal(found.values[name], value)
    assert sorted(os.listdir(checkpoints.path(3))) == ["arrays.bin", "manifest.json"]


def test_only_numbers_are_saved(tmp_path):
    with pytest.raises(TypeError) as caught:
        Checkpoints(tmp_path).save(1, {"a": np.zeros(3), "b": np.array(["x"])})
    assert str(caught.value) == "'b' is an array of <U1, and a checkpoint holds numbers and booleans only"
    assert os.listdir(tmp_path) == []


def test_the_newest_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (0, 5, 12):
        checkpoints.save(step, VALUES)
    assert checkpoints.steps() == [5, 12]
    assert checkpoint_at(tmp_path).step == checkpoints.latest() == 12
    assert checkpoint_at(checkpoints.path(5)).step == 5
    assert sorted(os.listdir(tmp_path)) == ["12", "5"]


def test_the_same_step_is_saved_once(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, VALUES)
    checkpoints.save(1, {"other": np.zeros(2)})
    assert list(checkpoints.load(1).values) == list(VALUES)


def test_half_a_checkpoint_is_none(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, VALUES)
    half = tmp_path / ".unfinished-2-99"
    half.mkdir()
    (half / "arrays.bin").write_text("")
    assert checkpoints.steps() == [1]
    assert checkpoint_at(tmp_path).step == 1
    # Somebody may be writing it; the next writer, who is alone then, clears it away.
    assert half.is_dir()
    with checkpoints.writing():
        assert not half.exists()
    assert checkpoints.steps() == [1]


@contextlib.contextmanager
def three_steps(folder: Path) -> Iterator[Checkpoints]:
    checkpoints = Checkpoints(folder)
    for step in (1, 2, 3):
        checkpoints.save(step, {"a": np.full(4, step), "b": np.full(2, -step)})
    yield checkpoints


def damaged(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)


def test_the_step_before_is_used(tmp_path, caplog):
    with three_steps(tmp_path) as checkpoints, caplog.at_level(logging.WARNING, logger="anytpu"):
        damaged(tmp_path / "3" / "arrays.bin")
        os.truncate(tmp_path / "2" / "arrays.bin", 40)
        found = checkpoints.load_newest()
        assert found is not None
        assert found.step == 1
        np.testing.assert_array_equal(found.values["a"], [1, 1, 1, 1])
    assert caplog.messages == [
        f"The checkpoint of step 2 in {tmp_path} is damaged and is not used: its arrays.bin has 40 bytes, and 48 were "
        "written. That of step 1 is used",
        f"The checkpoint of step 3 in {tmp_path} is damaged and is not used: the digest of its array 'a' is not the "
        "recorded one. That of step 1 is used",
    ]


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(os.path.relpath(path))


NO_FILES = {
    "Is a named pipe": os.mkfifo,
    "Is a socket": make_socket,
    "Is a device": lambda path: path.symlink_to("/dev/zero"),
    "Is a directory": os.mkdir,
    "Is a link to 'nowhere', which does not exist": lambda path: path.symlink_to("nowhere"),
}


@pytest.mark.parametrize("reason", NO_FILES)
@pytest.mark.parametrize("name", ["manifest.json", "arrays.bin"])
def test_a_file_that_is_none_is_damage(tmp_path, caplog, name, reason, monkeypatch):
    with three_steps(tmp_path) as checkpoints, caplog.at_level(logging.WARNING, logger="anytpu"):
        monkeypatch.chdir(tmp_path / "3")
        (tmp_path / "3" / name).unlink()
        NO_FILES[reason](tmp_path / "3" / name)
        found = checkpoints.load_newest()
        assert found is not None
        assert found.step == 2
        assert [step for step, _ in checkpoints.hosts()] == [1, 2] if name == "manifest.json" else [1, 2, 3]
        checkpoints.set_aside(after=2)
    assert caplog.messages == [
        f"The checkpoint of step 3 in {tmp_path} is damaged and is not used: its {name} cannot be read: {reason}. "
        "That of step 2 is used",
        f"The damaged checkpoint of step 3 is called {tmp_path / '3.damaged'} now",
    ]


def test_no_step_is_whole(tmp_path):
    with three_steps(tmp_path) as checkpoints:
        for step in (1, 2, 3):
            (tmp_path / str(step) / "manifest.json").unlink()
        assert checkpoints.latest() is None
        with pytest.raises(DamageError) as caught:
            checkpoints.load_newest()
    assert str(caught.value) == (
        f"no checkpoint in {str(tmp_path)!r} is whole: step 1: it has no manifest.json; step 2: it has no "
        "manifest.json; step 3: it has no manifest.json. To start anew, choose another folder, or delete this one"
    )


def test_a_step_that_is_asked_for_by_name_is_not_replaced(tmp_path):
    with three_steps(tmp_path):
        os.replace(tmp_path / "2" / "manifest.json", tmp_path / "3" / "manifest.json")
        with pytest.raises(DamageError) as caught:
            checkpoint_at(tmp_path / "3")
    assert str(caught.value) == (
        f"the checkpoint of step 3 in {str(tmp_path)!r} cannot be used: its manifest.json is that of step 2. Steps "
        "with a checkpoint: 1, 3"
    )


FOREIGN = ["1700000000/saved_model.pb", "2024/notes.txt", "4/_CHECKPOINT_METADATA", ".unfinished-drafts/a.txt"]


def test_numbered_folders_of_the_user_are_left_alone(tmp_path, caplog):
    for name in FOREIGN:
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("mine")
    (tmp_path / "7").symlink_to("7")
    (tmp_path / "8").write_text("a file")
    checkpoints = Checkpoints(tmp_path, keep=1)
    with caplog.at_level(logging.WARNING, logger="anytpu"), checkpoints.writing():
        assert (checkpoints.steps(), checkpoints.load_newest()) == ([], None)
        for step in (1, 3):
            checkpoints.save(step, VALUES)
            found = checkpoints.load_newest()
            assert found is not None
            assert found.step == step
            checkpoints.set_aside(after=step)
    assert caplog.messages == []
    assert checkpoint_at(tmp_path).step == 3
    assert [(tmp_path / name).read_text() for name in FOREIGN] == ["mine"] * 4
    there = [".unfinished-drafts", ".writer.json", "1700000000", "2024", "3", "4", "7", "8"]
    assert sorted(os.listdir(tmp_path)) == there


def test_an_empty_folder_is_told_and_left_alone(tmp_path, caplog):
    (tmp_path / "6").mkdir()
    checkpoints = Checkpoints(tmp_path)
    with caplog.at_level(logging.WARNING, logger="anytpu"):
        assert checkpoints.load_newest() is None
        checkpoints.save(3, VALUES)
        found = checkpoints.load_newest()
        assert found is not None
        assert found.step == 3
        checkpoints.set_aside(after=3)
        checkpoints.save(9, VALUES)
        checkpoints.load_newest()
    empty = f"The folder {tmp_path / '6'} is empty. If it was a checkpoint, its files were deleted."
    assert caplog.messages == [f"{empty} None is used", f"{empty} That of step 3 is used"]
    assert sorted(os.listdir(tmp_path)) == ["3", "6", "9"]


@pytest.mark.parametrize("made", ["4/_CHECKPOINT_METADATA", "4/arrays.bin", "4/", "4"])
def test_what_has_the_name_of_a_checkpoint_is_not_replaced(tmp_path, made):
    place = tmp_path / made
    place.parent.mkdir(exist_ok=True)
    place.mkdir() if made.endswith("/") else place.write_text("mine")
    with pytest.raises(FileError) as caught:
        Checkpoints(tmp_path).save(4, VALUES)
    assert str(caught.value) == (
        f"the checkpoint of step 4 cannot be written: {str(tmp_path / '4')!r} exists already, and it is not a "
        "checkpoint. Rename it, or choose another folder"
    )
    assert os.listdir(tmp_path) == ["4"]
    assert made.endswith("/") or place.read_text() == "mine"


def test_a_newer_format_is_not_damage(tmp_path):
    with three_steps(tmp_path) as checkpoints:
        place = tmp_path / "3" / "manifest.json"
        place.write_text('{"kind": "anytpu checkpoint", "format": 2, "parts": []}')
        for call in (checkpoints.load_newest, lambda: checkpoints.set_aside(after=2), lambda: checkpoint_at(tmp_path)):
            with pytest.raises(FileError) as caught:
                call()
            assert type(caught.value) is FileError
            assert str(caught.value) == (
                f"the checkpoint of step 3 in {str(tmp_path)!r} cannot be used: its manifest.json is of format 2, and "
                "this release of anytpu reads formats up to 1: install a newer one with pip install --upgrade anytpu. "
                "Steps with a checkpoint: 1, 2, 3"
            )
    assert sorted(os.listdir(tmp_path)) == ["1", "2", "3"]


@pytest.mark.parametrize("name", ["7", "²", "007", "٣"])
def test_a_folder_of_checkpoints_whose_name_is_a_number(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    with pytest.raises(FileError) as caught:
        checkpoint_at(folder)
    assert str(caught.value) == (
        f"there is no checkpoint in {str(folder)!r}: pass the checkpoint_dir of a fit, or a model_dir"
    )
    Checkpoints(folder).save(2, VALUES)
    assert checkpoint_at(folder).step == 2
    assert checkpoint_at(folder / "2").step == 2
    (folder / "2" / "manifest.json").unlink()
    with pytest.raises(DamageError, match=r"the checkpoint of step 2 in .* cannot be used: it has no manifest\.json"):
        checkpoint_at(folder / "2")


def test_damaged_ones_make_room(tmp_path, caplog):
    with three_steps(tmp_path) as checkpoints, caplog.at_level(logging.WARNING, logger="anytpu"):
        for _ in range(2):
            damaged(tmp_path / "3" / "arrays.bin")
            checkpoints.set_aside(after=2)
            checkpoints.save(3, {"a": np.zeros(4)})
    assert sorted(os.listdir(tmp_path)) == ["1", "2", "3", "3.damaged", "3.damaged-2"]
    assert caplog.messages == [
        f"The damaged checkpoint of step 3 is called {tmp_path / name} now" for name in ("3.damaged", "3.damaged-2")
    ]


def test_a_step_that_its_writer_deletes_is_not_damaged(tmp_path, caplog, monkeypatch):
    with three_steps(tmp_path) as checkpoints, caplog.at_level(logging.WARNING, logger="anytpu"):
        read = checkpoints.read

        def late(step: int) -> Any:
            if step == 3:
                checkpoints.save(4, {"a": np.zeros(4)})
                shutil.rmtree(tmp_path / "3")
            return read(step)

        monkeypatch.setattr(checkpoints, "read", late)
        found = checkpoints.load_newest()
        assert found is not None
        assert found.step == 4
    assert caplog.messages == []


def test_killed_at_every_file_operation():
    """The process is ended at its first operation on a file, at its second, ... up to the last of three saves."""
    command = [sys.executable, str(DYING)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    said = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (said.returncode, said.stderr) == (0, "")
    points = int(said.stdout.split()[0])
    assert said.stdout == f"{points} points, 0 faults\n"
    assert points >= 20


def test_each_damage_is_noticed(tmp_path):
    faults = program(FAULTS)
    counts = faults.run(tmp_path, faults.train, flips=40, cuts=6)
    assert set(counts) == {"used the step before"}
    assert counts["used the step before"] > 100


def limited(verb: Any) -> Any:
    """Call something while no file may have more than 64 KiB, as on a full disk."""
    sys.dont_write_bytecode = True  # Or Python cuts off what it compiles.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, hard))
    try:
        return verb()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_no_room_for_a_file(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(FileError) as caught:
        limited(lambda: checkpoints.save(1, {"a": np.zeros(2**20)}))
    assert str(caught.value) == (
        f"the checkpoint of step 1 cannot be written in {str(tmp_path)!r}: File too large. Make room, keep fewer "
        "checkpoints, or choose another folder"
    )
    assert os.listdir(tmp_path) == []
    checkpoints.save(1, {"a": np.zeros(3)})
    with pytest.raises(FileError) as caught:
        limited(lambda: checkpoints.save(2, {"a": np.zeros(2**20)}))
    assert str(caught.value) == (
        f"the checkpoint of step 2 cannot be written in {str(tmp_path)!r}: File too large. Make room, keep fewer "
        "checkpoints, or choose another folder. The newest checkpoint is that of step 1"
    )
    assert os.listdir(tmp_path) == ["1"]
    assert checkpoints.load_newest() is not None


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A disk of one MiB; only root may make one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small disk cannot be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk(small_disk):
    checkpoints = Checkpoints(small_disk, keep=3)
    checkpoints.save(1, {"a": np.zeros(90_000, "uint8")})
    free = shutil.disk_usage(small_disk).free
    with pytest.raises(FileError) as caught:
        checkpoints.save(2, {"a": np.zeros(2**21, "uint8")})
    assert str(caught.value) == (
        f"the checkpoint of step 2 cannot be written in {str(small_disk)!r}: No space left on device. Make room, keep "
        "fewer checkpoints, or choose another folder. The newest checkpoint is that of step 1"
    )
    assert os.listdir(small_disk) == ["1"]
    assert shutil.disk_usage(small_disk).free == free
    with pytest.raises(FileError) as caught:
        checkpoints.check_room(2**21)
    assert str(caught.value) == (
        f"the disk of {str(small_disk)!r} has {format_bytes(free)} free, and a checkpoint takes 2 MiB. Make room, or "
        "choose another folder"
    )
    checkpoints.check_room(2**19)
    checkpoints.save(2, {"a": np.zeros(90_000, "uint8")})
    assert checkpoints.steps() == [1, 2]


@pytest.mark.parametrize("verb", ["writing", "saving"])
@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ("file", "File exists. The path, or one of its parents, is a file."),
        ("file/below", "Not a directory. The path, or one of its parents, is a file."),
    ],
)
def test_not_a_folder(tmp_path, verb, made, reason):
    (tmp_path / "file").write_text("")
    checkpoints = Checkpoints(tmp_path / made)
    assert checkpoints.steps() == []
    with pytest.raises(FileError) as caught:
        if verb == "writing":
            with checkpoints.writing():
                pass
        checkpoints.save(1, VALUES)
    failure = {"writing": "checkpoints cannot be kept", "saving": "the checkpoint of step 1 cannot be written"}[verb]
    assert (
        str(caught.value)
        == f"{failure} in {str(tmp_path / made)!r}: {reason} Choose the path of a folder; it need not exist yet."
    )


def test_a_folder_that_nobody_may_write():
    # In /proc not even root may.
    with pytest.raises(FileError) as caught, Checkpoints("/proc/checkpoints").writing():
        pass
    assert str(caught.value) == (
        "checkpoints cannot be kept in '/proc/checkpoints': No such file or directory. Get permission to write there, "
        "or choose another folder"
    )


@contextlib.contextmanager
def restricted(folder: Path, mode: int) -> Iterator[None]:
    """Take rights on a folder away; root, who needs none, is somebody else meanwhile."""
    is_root = os.geteuid() == 0
    folder.chmod(mode)
    if is_root:
        try:
            os.chown(folder, 65534, 65534)
        except OSError:  # In a namespace without other users.
            pytest.skip("this root can be nobody else")
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        folder.chmod(0o700)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder in one that everybody may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        (Path(folder) / "run").mkdir()
        yield Path(folder) / "run"


def test_an_unwritable_folder(open_folder):
    Checkpoints(open_folder).save(1, VALUES)
    with restricted(open_folder, 0o500), pytest.raises(FileError) as caught, Checkpoints(open_folder).writing():
        pass
    assert str(caught.value) == (
        f"checkpoints cannot be kept in {str(open_folder)!r}: Permission denied. Get permission to write there, or "
        "choose another folder. The newest checkpoint is that of step 1"
    )


@pytest.mark.parametrize("mode", [0o000, 0o400])
def test_an_unreadable_folder_is_not_an_empty_one(open_folder, mode):
    checkpoints = Checkpoints(open_folder)
    checkpoints.save(1, VALUES)
    with restricted(open_folder, mode), pytest.raises(FileError) as caught:
        checkpoints.load_newest()
    assert str(caught.value) == (
        f"the checkpoints in {str(open_folder)!r} cannot be read: Permission denied. Get permission to read there, or "
        "choose another folder"
    )
    with restricted(open_folder, mode), pytest.raises(FileError) as caught, checkpoints.writing():
        pass
    assert str(caught.value) == (
        f"checkpoints cannot be kept in {str(open_folder)!r}: Permission denied. Get permission to write there, or "
        "choose another folder"
    )


def test_a_file_that_may_not_be_read_is_not_damaged(open_folder):
    checkpoints = Checkpoints(open_folder)
    for step in (1, 2):
        checkpoints.save(step, VALUES)
    os.chmod(open_folder, 0o755)
    with restricted(open_folder / "2", 0o000), pytest.raises(FileError) as caught:
        checkpoints.load_newest()
    assert type(caught.value) is FileError
    assert str(caught.value) == (
        f"the checkpoint of step 2 in {str(open_folder)!r} cannot be used: its manifest.json cannot be read: "
        "Permission denied. Steps with a checkpoint: 1"
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda folder: Checkpoints("memory://run"),
            "checkpoints cannot be kept at 'memory://run': use gs:// or s3://, or the path of a local folder",
        ),
        (
            lambda folder: Checkpoints("file:///tmp/run"),
            "checkpoints cannot be kept at 'file:///tmp/run': use gs:// or s3://, or the path of a local folder",
        ),
        (
            lambda folder: checkpoint_at(folder),
            "there is no checkpoint in {!r}: pass the checkpoint_dir of a fit, or a model_dir",
        ),
        (
            lambda folder: Checkpoints(folder).load(7),
            "the checkpoint of step 7 in {!r} cannot be used: it has no manifest.json. Steps with a checkpoint: none",
        ),
    ],
)
def test_what_is_not_there(tmp_path, call, message):
    with pytest.raises(FileError) as caught:
        call(tmp_path)
    assert str(caught.value) == message.format(str(tmp_path))
