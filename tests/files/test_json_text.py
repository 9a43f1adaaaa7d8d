"""The one reader of JSON from a file: bounded in size, in values and in depth; and every other reader uses it."""

from __future__ import annotations

import ast
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from anytpu.cli.machine import _saved_backend
from anytpu.errors import AnyTPUError, DamageError, FileError, PortError, ProgramError, SettingError
from anytpu.files import json_text
from anytpu.files.json_text import MAX_DEPTH, check_json, read_json
from anytpu.migrate.port.notebook import ported_notebook
from anytpu.planning.records.lock import read_lock
from anytpu.program import manifest as program_manifest
from anytpu.sharding.searched import read_layout
from anytpu.train.checkpoint import manifest as checkpoint_manifest
from anytpu.train.checkpoint.lock import Writer
from source_tree import modules

OWN_TEXT = {
    "anytpu.chip.assembly.operands": "a quoted word of one line",
    "anytpu.engine.random_state": "sent by a host of the same job",
    "anytpu.files.json_text": "the reader",
    "anytpu.pipeline.walk": "made in the same expression",
    "anytpu.planning.serving.language_models": "a file of the package",
    "anytpu.planning.timing.rates": "a file of the package",
    "anytpu.migrate.port.trial": "written by a child of this process",
    "anytpu.system.join_rules": "a line of a connection, at most `MAX_LINE_BYTES`",
    "anytpu.system.joining": "a line of a connection, at most `MAX_LINE_BYTES`",
    "anytpu.system.rendezvous": "a line of a connection, at most `MAX_LINE_BYTES`",
    "anytpu.system.watch": "a line of a connection to the own host",
}
"""Modules that call `json.loads`, and the text that they read: none reads a file that someone else may have written."""

DEEP = b"[" * 100_000
REFUSED: dict[str, tuple[bytes | str, str]] = {
    "deep": (DEEP, "it nests too deeply"),
    "deep objects": (b'{"a":' * 300 + b"0" + b"}" * 300, "it nests too deeply"),
    "deep beside brackets in a string": ('["]]]]]]]"' * (MAX_DEPTH + 1), "it nests too deeply"),
    "many lists": (b"[" + b"[]," * 70 + b"[]]", "it has 72 values, and 64 is the most that it can have"),
    "many numbers": (b"[" + b"1," * 70 + b"1]", "it has 72 values, and 64 is the most that it can have"),
    "large": (b" " * 1025, "it has 1,025 bytes, and 1,024 is the most that it can have"),
    "many digits": (b"9" * 5000, "it has a number of too many digits"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str):
    content, expected = REFUSED[name]
    with pytest.raises(ValueError) as caught:
        read_json(content, 1024 if name in ("many lists", "many numbers", "large") else json_text.MAX_JSON_BYTES)
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    "value",
    [
        None,
        "[" * 1000 + '\\"',
        ["\\", '"', "[,]", "é∞"],
        {"[": {"]": [[], {}, [[]]]}},
        [list(range(40)), {str(number): [number] for number in range(20)}],
        [[[[0]]]] * 10,
    ],
)
def test_what_is_read(value: object):
    for content in (json.dumps(value), json.dumps(value, indent=1).encode(), json.dumps(value, ensure_ascii=False)):
        assert read_json(content) == value
    nested: object = value
    for _ in range(MAX_DEPTH - 7):
        nested = [nested]
    assert read_json(json.dumps(nested)) == nested


def test_a_text_of_the_maximum_size_takes_little_memory():
    lists = b"[" + b"[0]," * 500_000
    content = lists + b" " * (json_text.MAX_JSON_BYTES - len(lists) - 2) + b"0]"
    tracemalloc.start()
    try:
        assert len(read_json(content)) == 500_001
        assert tracemalloc.get_traced_memory()[1] < 8 * json_text.MAX_JSON_BYTES
    finally:
        tracemalloc.stop()


def test_every_reader_of_a_file_is_bounded():
    found = {
        module.name
        for module in modules().values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr) in (("json", "loads"), ("json", "load"), ("json", "JSONDecoder"))
    }
    assert found <= OWN_TEXT.keys()


READERS: dict[str, tuple[Callable[[Path], object], type[AnyTPUError], str]] = {
    "a layout": (
        lambda path: read_layout(str(path)),
        SettingError,
        "{path!r} is no file of layouts: write one with anytpu shard --json, or found.to_json(path)",
    ),
    "a lock": (
        read_lock,
        SettingError,
        "the lock {path!r} cannot be read (it nests too deeply); write it again: anytpu plan ... --lock {path}",
    ),
    "a notebook": (
        lambda path: ported_notebook(path.read_text(), "a.ipynb"),
        PortError,
        "a.ipynb is not a notebook: it must be JSON with a list of cells, as Jupyter writes it",
    ),
    "the manifest of a program": (
        lambda path: program_manifest.from_json(path.read_bytes()),
        ProgramError,
        "Its manifest cannot be understood: ValueError: it nests too deeply",
    ),
    "the manifest of a checkpoint": (
        lambda path: checkpoint_manifest.from_json(path.read_bytes()),
        DamageError,
        "its manifest.json was changed or cut off after it was saved",
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_a_deep_file_is_refused(tmp_path: Path, name: str):
    read, kind, expected = READERS[name]
    path = tmp_path / "deep.json"
    path.write_bytes(DEEP)
    with pytest.raises(kind) as caught:
        read(path)
    assert str(caught.value) == expected.format(path=str(path))


def test_a_deep_file_that_need_not_be_read(tmp_path: Path):
    path = tmp_path / "keras.json"
    path.write_bytes(DEEP)
    assert _saved_backend(path) is None
    assert Writer.of(DEEP) is None


def test_what_would_not_be_read_is_not_written():
    nested: object = 0
    for _ in range(MAX_DEPTH):
        nested = [nested]
    with pytest.raises(FileError) as caught:
        checkpoint_manifest.to_json(checkpoint_manifest.CheckpointManifest(3, (), nested))
    assert str(caught.value) == (
        "the checkpoint of step 3 cannot be written, for its manifest.json: it nests too deeply. Keep less in the "
        "states of the callbacks"
    )
    with pytest.raises(ValueError, match=r"^it nests too deeply$"):
        check_json(json.dumps([nested]))
