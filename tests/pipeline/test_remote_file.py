from __future__ import annotations

import contextlib
import http.server
import importlib
import os
import pickle
import random
import sys
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import fsspec
import keras
import numpy as np
import pytest
from fsspec.registry import _registry as loaded

import anytpu as tpu
from anytpu.errors import FileError
from anytpu.pipeline import lines, records, remote_file, write_records
from anytpu.pipeline.storage import expand, stored
from anytpu.pipeline.tfrecord import frame
from object_servers import free_port, settings, skip_without

ROWS = np.ones((2, 1), "float32")
CONTENTS = [b"%02d" % i * 100 for i in range(20)]
FILE = b"".join(map(frame, CONTENTS))


def error_of(function, *arguments) -> str:
    with pytest.raises(FileError) as caught:
        function(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def memory():
    """Yield fsspec's own file system in memory, emptied before and after."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()


class Server(http.server.BaseHTTPRequestHandler):
    """Serves one file, /file; of each part of /short half; /denied wants credentials; /broken fails.

    The first answer with a part of /dropped ends in its middle.
    """

    dropped = False

    def do_HEAD(self):
        self.answer(with_body=False)

    def do_GET(self):
        self.answer(with_body=True)

    def answer(self, with_body):
        path = self.path.split("?")[0]
        is_file = path in ("/file", "/short", "/dropped")
        status = 200 if is_file else {"/denied": 403, "/broken": 500}.get(path, 404)
        body = FILE if is_file else b""
        is_part = is_file and "Range" in self.headers
        self.send_response(206 if is_part else status)
        if is_part:
            first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(body)}")
            body = body[first : last + 1][: (last + 1 - first) // (2 if path == "/short" else 1)]
        if is_file:
            self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body and is_part and path == "/dropped" and not Server.dropped:
            Server.dropped, body = True, body[: len(body) // 2]
        if with_body:
            self.wfile.write(body)

    def log_message(self, format, *args):
        pass


@pytest.fixture(scope="module")
def site():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_there_and_back(memory):
    names = write_records("memory://bucket/train.tfrecord", CONTENTS, shards=3)
    assert names[1] == "memory://bucket/train-00001-of-00003.tfrecord"
    source = records("memory://bucket/train-?????-of-00003.tfrecord")
    walked = list(iter(source))
    assert sorted(walked) == sorted(CONTENTS)
    assert walked[0].origin.file == "memory:///bucket/train-00000-of-00003.tfrecord"
    assert [source[i] for i in range(len(source))] == walked
    assert pickle.loads(pickle.dumps(source))[19] == walked[19]


def test_compressed(memory):
    write_records("memory://bucket/x.gz", CONTENTS, compression="gzip")
    assert list(records("memory://bucket/x.gz", compression="gzip")) == CONTENTS


def test_what_is_not_there(memory):
    memory.pipe_file("/bucket/a", b"")
    assert error_of(expand, "memory://bucket/x-*") == "no file matches 'memory://bucket/x-*'"
    assert error_of(list, records("memory://bucket/x")) == (
        "cannot read 'memory://bucket/x': there is no such file or bucket"
    )


def test_a_failed_write_leaves_nothing(memory):
    def failing():
        yield b"a"
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        write_records("memory://bucket/x", failing())
    assert memory.store == {}


@pytest.mark.parametrize("name", ["file", "file?version=2"])
def test_from_a_web_server(site, name):
    source = records(f"{site}/{name}")
    assert list(iter(source)) == CONTENTS
    assert [source[i] for i in (3, 19, 0)] == [CONTENTS[3], CONTENTS[19], CONTENTS[0]]
    assert len(pickle.loads(pickle.dumps(source))) == 20


def test_a_server_that_sends_too_little(site):
    with stored(f"{site}/short").stream() as stream:
        message = error_of(stream.read)
    assert message == (
        f"cannot read '{site}/short': 4,319 bytes could be read, and the file has 4,320; download it first"
    )


def test_a_connection_that_breaks_once(site):
    Server.dropped = False
    with stored(f"{site}/dropped").stream() as stream:
        assert stream.read() == FILE
    assert Server.dropped


def test_what_a_web_server_refuses(site):
    def reason(name):
        return error_of(list, records(f"{site}/{name}")).split(" (")[0]

    assert reason("none") == f"cannot read '{site}/none': there is no such file or bucket"
    assert reason("denied") == (
        f"cannot read '{site}/denied': there are no credentials that allow it; download it where you have "
        "access, and read the local copy"
    )
    assert reason("broken").startswith(f"cannot read '{site}/broken': ")


def test_a_server_that_is_not_there(site):
    free = http.server.HTTPServer(("127.0.0.1", 0), Server)
    url = f"http://127.0.0.1:{free.server_port}/x"
    free.server_close()
    message = error_of(list, records(url))
    assert message.startswith(f"cannot read '{url}': its server cannot be reached; check the network and the name (")
    assert error_of(lambda: stored(url).read_at(0, 1)) == message


@pytest.mark.parametrize(("url", "package", "extra"), [("gs://b/x", "gcsfs", "gs"), ("s3://b/x-*", "s3fs", "s3")])
def test_a_package_that_is_not_installed(url, package, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)  # Importing it fails, installed or not.
    monkeypatch.delitem(loaded, url.partition(":")[0], raising=False)
    assert error_of(lambda: list(records(url))) == (
        f"{extra}:// needs a package that is not installed, for {url!r}: type pip install 'anytpu[{extra}]'"
    )


def test_an_unknown_kind_of_url():
    assert error_of(lambda: list(records("quux://b/x"))) == (
        "'quux://b/x' cannot be read: unknown protocol quux://; use one of gs://, s3://, https://, or a path"
    )


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("gs:/b/run", "gs://b/run"),
        ("gs:b/run", "gs://b/run"),
        ("gs//b/run", "gs://b/run"),
        ("s3:/b", "s3://b"),
        ("S3:/b", "S3://b"),
        ("hf:/datasets/x/y", "hf://datasets/x/y"),
        ("https:/a.b/c", "https://a.b/c"),
        ("gss:/b/run", "gss://b/run"),
        (str(Path("gs://b/run")), "gs://b/run"),
    ],
)
def test_a_url_without_two_slashes_is_never_a_folder(path, meant, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (
        f"{path!r} is neither a URL nor clearly a path. Type {meant!r} as text, since pathlib.Path removes a slash. A "
        f"folder of that name is {'./' + path!r}"
    )
    model: Any = keras.Sequential([keras.layers.Dense(1)])
    with tpu.connect("virtual", cores=1).scope():
        model.compile("sgd", "mse")
    config = tpu.RunConfig(model_dir=path)
    doors = [
        lambda: model.fit(ROWS, ROWS, verbose=0, checkpoint_dir=path),
        lambda: list(tpu.Checkpointer(path).steps(2, state={"a": 1})),
        lambda: tpu.Checkpointer(path).load_weights(model),
        lambda: tpu.TPUEstimator(lambda features, labels, mode, params: None, config=config, train_batch_size=2),
        lambda: write_records(path, CONTENTS),
        lambda: list(records(path)),
        lambda: list(lines([path])),
        lambda: expand(path),
        lambda: list(tpu.pipeline.Dataset.from_arrays(np.ones(2)).cache(path)),
    ]
    for door in doors:
        assert error_of(door) == text
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("path", ["gs://b/run", "s3:/b"])
def test_a_url_where_only_a_folder_can_be_used(path):
    assert error_of(remote_file.refuse_url, path, "a program") == (
        f"{path!r} looks like a URL, and a program is written to a folder of this machine. Pass the path of a folder, "
        "and copy it from there"
    )


@pytest.mark.parametrize("protocol", ["gs", "s3"])
def test_a_store_that_cannot_be_reached_is_named_soon(protocol, monkeypatch):
    skip_without(protocol)
    if protocol == "gs":
        # Its threads go on for a minute and draw numbers; of Python's own generator, Hypothesis would fail other tests.
        for name in ("gcsfs.retry", "google.auth._exponential_backoff"):
            vars(importlib.import_module(name))["random"] = random.Random()
    address = f"127.0.0.1:{free_port()}"
    for name, value in settings(protocol, address).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(remote_file, "_CONTACT_S", 0.1)
    url = f"{protocol}://nobody/x"
    reason = "its server cannot be reached; check the network and the name ([Errno 111] Connection refused)"
    assert error_of(lambda: list(records(url))) == f"cannot read {url!r}: {reason}"
    assert error_of(lambda: list(tpu.Checkpointer(url).steps(1, state={"a": 1}))) == f"cannot open {url!r}: {reason}"


def test_lines_and_local_urls(tmp_path, memory):
    (tmp_path / "x").write_text("local\n")
    memory.pipe_file("/x", b"one\ntwo")
    assert list(lines([f"file://{tmp_path}/x", "memory://x"])) == ["local", "one", "two"]
    assert os.listdir(tmp_path) == ["x"]


GIANT_BYTES = 3 * 2**30


class Giant(http.server.BaseHTTPRequestHandler):
    """Ignores which part is asked for, and of /short sends fewer zeros than it says; /unsized does not say how many."""

    def do_HEAD(self):
        self.send_response(200)
        if self.path != "/unsized":
            self.send_header("Content-Length", str(GIANT_BYTES))
        self.end_headers()

    def do_GET(self):
        self.do_HEAD()
        with contextlib.suppress(ConnectionError):
            for _ in range(GIANT_BYTES // 2**20 if self.path == "/giant" else 3):
                self.wfile.write(bytes(2**20))

    def log_message(self, format, *args):
        pass


@pytest.fixture
def giant():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Giant)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_server_without_ranges_is_refused(giant):
    tracemalloc.start()
    file = stored(f"{giant}/giant")
    assert file.read_at(0, 1000) == bytes(1000)
    refusal = f"cannot read '{giant}/giant': its server sends whole files only; download it first"
    assert error_of(file.read_at, 2**20, 1000) == refusal
    with file.stream() as stream:
        assert error_of(stream.read) == refusal
    assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    tracemalloc.stop()
    assert pickle.loads(pickle.dumps(file)).path == file.path


def test_a_server_that_does_not_tell_the_size_is_refused(giant):
    file = stored(f"{giant}/unsized")
    refusal = f"cannot read '{giant}/unsized': its server does not report its size; download it first"
    assert error_of(file.read_at, 0, 1) == error_of(list, lines(file.path)) == refusal


def test_an_answer_that_ends_before_its_length(giant):
    with stored(f"{giant}/short").stream() as stream:
        assert error_of(stream.read).startswith(f"cannot read '{giant}/short': ClientPayloadError: ")
