"""Checkpoints in real object servers of this machine, and behind a proxy that fails as stores do."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import DamageError, FileError
from anytpu.train.checkpoint import Checkpoints, bucket, bucket_lock, bucket_store, checkpoint_at
from anytpu.train.checkpoint.bucket import Bucket
from object_servers import Proxy, server, settings
from safetensors_reader import read

VALUES = {"a": np.arange(1000.0), "b": np.ones((3, 4), "float32"), "empty": np.zeros((0, 4), "float16")}

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


@pytest.fixture(scope="module", params=["s3", "gs"])
def proxies(request: pytest.FixtureRequest) -> Iterator[tuple[str, Proxy]]:
    with server(request.param) as address:
        proxy = Proxy(address)
        yield request.param, proxy
        proxy.close()


@pytest.fixture
def proxy(proxies: tuple[str, Proxy], monkeypatch: pytest.MonkeyPatch) -> Proxy:
    """The proxy before the server, which all requests of this test go through."""
    for name, value in settings(proxies[0], proxies[1].address).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(bucket_store, "PART_BYTES", 1000)
    proxies[1].fail(None)
    return proxies[1]


@pytest.fixture
def url(proxies: tuple[str, Proxy], proxy: Proxy) -> str:
    return f"{proxies[0]}://bucket/{uuid.uuid4().hex}"


@pytest.fixture(autouse=True, scope="module")
def anonymous() -> Iterator[None]:
    """fsspec reads its own environment variables only when it is imported."""
    fsspec.config.conf["gs"] = {"token": "anon"}
    yield
    del fsspec.config.conf["gs"]


def ours(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "anytpu"]


def names(url: str) -> list[str]:
    return sorted(Bucket(url).sizes())


def test_what_is_saved_is_loaded(url):
    checkpoints = Checkpoints(url, keep=2)
    assert (checkpoints.folder, checkpoints.steps(), checkpoints.load_newest()) == (url, [], None)
    Bucket(f"{url}0").write("4/manifest.json", b"another run, whose name begins alike")
    with checkpoints.writing():
        for step in (1, 2, 12):
            checkpoints.save(step, {**VALUES, "a": VALUES["a"] * step}, host={"step": step})
        checkpoints.save(12, VALUES)
    assert checkpoints.steps() == [2, 12]
    found = checkpoint_at(url)
    assert (found.step, found.where, found.host) == (12, f"{url}/12", {"step": 12})
    for name, value in VALUES.items():
        np.testing.assert_array_equal(found.values[name], value * 12 if name == "a" else value)
        assert found.values[name].dtype == value.dtype
    assert checkpoint_at(f"{url}/2").step == 2
    parts = [f"arrays-0000{index}.bin" for index in range(9)]
    assert names(url) == [f"{step}/{name}" for step in (12, 2) for name in [*parts, "manifest.json"]]
    time_s, size_bytes = checkpoints.saved(12)
    assert time_s > 0
    assert size_bytes > 8048


def test_a_run_continues_in_a_folder_and_in_a_bucket(url, tmp_path):
    def run(place: object, steps: int) -> list[int]:
        return list(tpu.Checkpointer(place, every_steps=1, keep=3).steps(steps, state={"a": np.zeros(500)}))

    assert run(url, 2) == [0, 1]
    store = Bucket(url)
    for name in names(url):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(store.read(name))
    assert run(tmp_path, 3) == [2]
    for name in os.listdir(tmp_path / "3"):
        store.write(f"3/{name}", (tmp_path / "3" / name).read_bytes())
    assert run(url, 4) == [3]
    shutil.rmtree(tmp_path / "1")


def test_an_interrupted_save_is_no_checkpoint(url, caplog):
    checkpoints = Checkpoints(url)
    checkpoints.save(1, VALUES)
    store = Bucket(url)
    store.write("2/arrays-00000.bin", b"half")
    store.write("2024/report.txt", b"mine")
    with caplog.at_level(logging.WARNING, logger="anytpu"):
        assert checkpoint_at(url).step == 1
    assert ours(caplog) == []
    with checkpoints.writing():
        assert [name for name in names(url) if name.startswith("2")] == ["2024/report.txt"]
        with pytest.raises(FileError) as caught:
            checkpoints.save(2024, VALUES)
    assert str(caught.value) == (
        f"the checkpoint of step 2024 cannot be written: '{url}/2024' exists already, and it is not a checkpoint. "
        "Rename it, or choose another folder"
    )


def test_what_was_lost_later_is_noticed(url, caplog):
    checkpoints = Checkpoints(url)
    for step in (1, 2, 3):
        checkpoints.save(step, VALUES)
    store = Bucket(url)
    store.delete("3/arrays-00003.bin")
    content = store.read("2/arrays-00000.bin")
    store.write("2/arrays-00000.bin", content[:500] + b"!" + content[501:])
    with caplog.at_level(logging.WARNING, logger="anytpu"), checkpoints.writing():
        found = checkpoints.load_newest()
        assert found is not None
        assert found.step == 1
        checkpoints.set_aside(after=1)
    assert ours(caplog) == [
        f"The checkpoint of step 2 in {url} is damaged and is not used: the digest of its array 'a' is not the "
        "recorded one. That of step 1 is used",
        f"The checkpoint of step 3 in {url} is damaged and is not used: its arrays.bin has 7,048 bytes, and 8,048 "
        "were written. That of step 1 is used",
        f"The damaged checkpoint of step 2 is called {url}/2.damaged now",
        f"The damaged checkpoint of step 3 is called {url}/3.damaged now",
    ]
    assert checkpoints.steps() == [1]
    store.delete("1/manifest.json")
    with pytest.raises(DamageError, match=r"cannot be used: it has no manifest\.json\. Steps with a checkpoint: none"):
        checkpoints.load(1)


@pytest.mark.parametrize("lost", ["arrays-00004", "manifest"])
def test_a_store_that_loses_a_write(url, proxy, lost):
    checkpoints = Checkpoints(url)
    checkpoints.save(1, VALUES)
    proxy.fail("lose", named=lost)
    with pytest.raises(FileError) as caught:
        checkpoints.save(2, VALUES)
    proxy.fail(None)
    file = f"{url}/2/{lost}.{'json' if lost == 'manifest' else 'bin'}"
    assert str(caught.value) in (
        f"the store accepted {file!r}, and does not have it. Check the bucket's lifecycle rules",
        # A GCS client expects the object's facts in the answer, which the proxy does not know.
        f"cannot write {file!r}: KeyError: 'md5Hash'",
    )
    assert (checkpoints.steps(), checkpoint_at(url).step) == ([1], 1)
    checkpoints.save(2, VALUES)
    assert checkpoints.steps() == [1, 2]


def test_a_store_that_fails_or_hangs_does_not_stop_a_training(url, proxy, monkeypatch, capfd):
    plain = Bucket.write

    def write(store: Bucket, name: str, content: bytes | bytearray) -> None:
        # Only a request that hangs has a short limit: another one may take seconds on a busy machine.
        is_hanging = proxy.fault == "hang" and proxy.named in name
        monkeypatch.setattr(bucket, "REQUEST_LIMIT_S", 1.0 if is_hanging else 60.0)
        plain(store, name, content)

    monkeypatch.setattr(Bucket, "write", write)
    state = {"a": np.zeros(500)}
    for step in tpu.Checkpointer(url, every_steps=1, keep=9).steps(9, state=state):
        # The save after a step is in progress while the next step runs.
        proxy.fail("hang" if step in (2, 3) else "500" if step in (5, 6) else None, named="arrays-00000")
        state["a"] += 1
    saved = Checkpoints(url).steps()
    assert saved[0] == 1
    assert saved[-1] == 9
    np.testing.assert_array_equal(checkpoint_at(url).values["state/a"], np.full(500, 9))
    said = capfd.readouterr().err.splitlines()
    assert said
    for line in said:
        assert re.fullmatch(
            rf"anytpu: cannot write '{url}/\d/arrays-00000.bin': .*\. The training goes on, and later saves are tried "
            r"without another message\.",
            line,
        )


def test_a_store_that_does_not_answer_is_named(url, proxy, monkeypatch):
    Checkpoints(url).save(1, VALUES)
    monkeypatch.setattr(bucket, "REQUEST_LIMIT_S", 1.0)
    proxy.fail("hang", methods=("GET", "HEAD"))
    with pytest.raises(FileError) as caught:
        Checkpoints(url).load_newest()
    assert caught.value.__cause__ is None
    assert str(caught.value) == (f"cannot list {url!r}: its server did not answer within 1 s; check the network")


def test_a_bucket_that_does_not_exist(url):
    missing = f"{url.split('://')[0]}://no-such-bucket/run7"
    with pytest.raises(FileError) as caught, Checkpoints(missing).writing():
        pass
    assert str(caught.value) == f"cannot write '{missing}/.writer-1.json': there is no such file or bucket"


WRITER = """
import sys, time
from anytpu.train.checkpoint import Checkpoints, bucket_lock
bucket_lock.BEAT_S = 0.2
with Checkpoints(sys.argv[1]).writing():
    print("here", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def other(url, monkeypatch) -> Iterator[subprocess.Popen[str]]:
    """A job that writes to the URL."""
    monkeypatch.setattr(bucket_lock, "BEAT_S", 0.2)
    with subprocess.Popen([sys.executable, "-c", WRITER, url], stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "here\n"
        yield job
        job.kill()


def test_one_writer(url, other, capfd):
    with pytest.raises(FileError) as caught, Checkpoints(url).writing():
        pass
    owner = rf"process {other.pid} on '.+', since .+"
    assert re.fullmatch(
        rf"another job writes checkpoints to '{url}': {owner}\. Wait until it ends, end it, or choose another folder",
        str(caught.value),
    )
    assert re.fullmatch(
        rf"anytpu: {owner} holds the checkpoints at '{url}'; it gets 60 s to show that it is alive\.\n",
        capfd.readouterr().err,
    )


def test_a_dead_writer_of_this_machine_is_replaced_at_once(url, other, capfd):
    other.kill()
    other.wait()
    with Checkpoints(url).writing():
        assert names(url) == [".writer-2.json"]
    assert names(url) == []
    assert capfd.readouterr().err == ""


def test_a_dead_writer_of_another_machine_is_replaced_when_it_was_silent(url, other, capfd, monkeypatch):
    monkeypatch.setattr(bucket_lock, "SILENCE_S", 1.5)
    other.kill()
    other.wait()
    store = Bucket(url)
    content = store.read(".writer-1.json").decode()
    store.write(".writer-1.json", re.sub(r'"machine": "[^"]+"', '"machine": "another"', content).encode())
    with Checkpoints(url).writing():
        assert names(url) == [".writer-2.json"]
    assert "is alive" in capfd.readouterr().err


def test_a_writer_that_was_replaced_saves_nothing(url):
    checkpoints = Checkpoints(url)
    with checkpoints.writing():
        checkpoints.save(1, VALUES)
        store = Bucket(url)
        store.write(".writer-2.json", store.read(".writer-1.json"))
        with pytest.raises(FileError) as caught:
            checkpoints.save(2, VALUES)
    assert re.fullmatch(
        rf"another job has taken over the checkpoints at '{url}': process {os.getpid()} on '.+', since .+\. This one "
        "was silent for more than 60 s, and saves nothing there any more",
        str(caught.value),
    )
    assert (checkpoints.steps(), ".writer-2.json" in names(url)) == ([1], True)
    assert [name for name in names(url) if name.startswith("2/")] == []


def test_the_command_lists_a_bucket(url, proxies, proxy):
    Checkpoints(url).save(3, VALUES, host={"made": {"by": "fit"}, "metrics": {"loss": 0.5}})
    Checkpoints(url).save(4, VALUES)
    Bucket(url).delete("4/arrays-00008.bin")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "anytpu", "checkpoints", url]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (run.returncode, run.stderr) == (1, "")
    lines = run.stdout.splitlines()
    assert re.fullmatch(r"3 .* verified +fit +loss 0\.5", lines[1])
    assert re.fullmatch(r"4 .* damaged +-", lines[2])
    assert lines[3] == "step 4: its arrays.bin has 8,000 bytes, and 8,048 were written"


def test_the_command_exports_from_a_bucket(url, proxies, proxy, tmp_path):
    Checkpoints(url).save(3, VALUES, trained=["a", "b"], host={"made": {"by": "Checkpointer"}, "metrics": {}})
    path = tmp_path / "weights.safetensors"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "anytpu", "checkpoints", url, "--export", str(path)]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    arrays, notes = read(path)
    assert notes["step"] == "3"
    assert {name: array.tobytes() for name, array in arrays.items()} == {
        name: value.tobytes() for name, value in VALUES.items()
    }


def test_a_local_path_is_no_url(tmp_path):
    assert Checkpoints(Path(tmp_path)).folder == str(tmp_path)
