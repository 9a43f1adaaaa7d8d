"""Files of programs: whole there and back, and refused when they are not whole."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from anytpu.chip.compiler import compile_image
from anytpu.chip.file import read, write
from anytpu.chip.graph import nodes
from anytpu.chip.graph.nodes import Function, HostStep, Node
from anytpu.chip.image import serialization
from anytpu.chip.image.image import Image
from anytpu.chip.isa.instructions import Halt, MatrixMultiply
from anytpu.chip.loading import load
from anytpu.chip.network import operations
from anytpu.errors import ChipError, ChipFileError
from anytpu.files import memory
from anytpu.program.archive import write_parts
from anytpu.units import format_bytes
from chip_samples import dense_image, every_node, host_step, parts_of, service_image, tables_network, with_parts

AGAIN = "Compile it again, or save it again, with ChipProgram.save or anytpu chip compile."
WRITER = "ChipProgram.save or anytpu chip compile."


def test_an_image_there_and_back(tmp_path: Path):
    image = dense_image()
    path = write(tmp_path / "dense.tpu", image)
    again, network, spill = read(path)
    assert network is None and spill is True
    for field in dataclasses.fields(Image):
        if field.name != "weights":
            assert getattr(again, field.name) == getattr(image, field.name), field.name
    assert np.array_equal(again.weights, image.weights) and again.weights.dtype == np.uint8
    assert os.listdir(tmp_path) == ["dense.tpu"]


def test_services_and_networks_there_and_back(tmp_path: Path):
    network = every_node()
    image = compile_image(network, batch=2)
    path = write(tmp_path / "all.tpu", image, network, False)
    again, network_again, spill = read(str(path))
    assert network_again is not None and spill is False
    assert write(tmp_path / "again.tpu", again, network_again, spill).read_bytes() == path.read_bytes()
    assert [type(node) for node in network_again.nodes] == [type(node) for node in network.nodes]
    assert (network_again.inputs, network_again.outputs) == (network.inputs, network.outputs)
    assert (network_again.shapes, network_again.quantizations) == (network.shapes, network.quantizations)
    for node, same in zip(network.nodes, network_again.nodes, strict=True):
        for field in dataclasses.fields(node):
            ours, theirs = getattr(node, field.name), getattr(same, field.name)
            if isinstance(ours, np.ndarray):
                assert np.array_equal(ours, theirs) and ours.dtype == theirs.dtype
            elif field.name != "steps":
                assert ours == theirs
    x = np.random.default_rng(0).normal(size=(6, 1, 1, 8)).astype(np.float32)
    for node in (network_again.nodes[-1], again.services[0].step):
        assert isinstance(node, HostStep)
        assert np.array_equal(operations.compute(node, [x]), operations.compute(host_step(), [x]))
    assert again.services[0].inputs == image.services[0].inputs and again.services[0].output is None
    path = write(tmp_path / "step.tpu", service_image())
    assert write(tmp_path / "again.tpu", read(path)[0]).read_bytes() == path.read_bytes()


def test_a_file_that_is_there_is_replaced(tmp_path: Path):
    path = tmp_path / "a.tpu"
    write(path, dense_image())
    write(path, dataclasses.replace(dense_image(), name="other"))
    assert read(path)[0].name == "other"


def refusal(path: Path) -> str:
    with pytest.raises(ChipFileError) as caught:
        read(path)
    return str(caught.value).replace(str(path), "a.tpu")


def test_each_flipped_byte_is_found_or_changes_nothing(tmp_path: Path):
    """A few bytes of a zip, such as the time of a member, have no meaning."""
    path = write(tmp_path / "a.tpu", service_image())
    content, image = bytearray(path.read_bytes()), read(path)[0]
    for place in range(0, len(content), 3):
        content[place] ^= 1 << place % 8
        path.write_bytes(content)
        try:
            again = read(path)[0]
        except ChipFileError:
            pass
        else:
            assert (again.instructions, again.tags, again.batch) == (image.instructions, image.tags, image.batch)
            assert np.array_equal(again.weights, image.weights)
        content[place] ^= 1 << place % 8


def test_what_is_no_whole_file_is_refused(tmp_path: Path):
    path = write(tmp_path / "a.tpu", dense_image())
    content = path.read_bytes()
    cut = (
        "The program file 'a.tpu' is cut short or damaged: the list of its parts, which is at its end, cannot be read. "
        f"Copy it again, or write it again with {WRITER}"
    )
    foreign = f"'a.tpu' is not a program file: it is not a zip file. Program files are written by {WRITER}"
    empty = f"The program file 'a.tpu' is empty. Copy it again, or write it again with {WRITER}"
    compiled = "Compile it again, with tpu.chip.compile or anytpu chip compile."
    former = f"The program file 'a.tpu' is of format 1, not 2. {compiled}"
    cases = [(b"", empty), (b"\x89TPU\r\n\x1a\n", former), (b"\x89PNG", foreign), (content[:40], cut)]
    for changed, text in (*cases, (content[:-7], cut)):
        path.write_bytes(changed)
        assert refusal(path) == text
    for stop in range(1, len(content), 11):
        path.write_bytes(content[:stop])
        assert refusal(path) in (cut, foreign)
    path.unlink()
    assert refusal(path) == "The program file 'a.tpu' cannot be read: No such file or directory."
    assert refusal(Path("a\0.tpu")) == "The program file 'a\\x00.tpu' cannot be read: embedded null byte."


def test_a_newer_format_is_known_before_its_parts(tmp_path: Path):
    path = write(tmp_path / "a.tpu", dense_image())
    parts = {**parts_of(path), **header(path, format=3)}
    del parts["arrays"]
    write_parts(path, parts)
    assert refusal(path) == (
        "The program file 'a.tpu' is of format 3, and this release of anytpu reads format 2. Install a newer one: pip "
        "install --upgrade anytpu"
    )


def test_where_a_file_cannot_be_written(tmp_path: Path):
    path = tmp_path / "no folder" / "a.tpu"
    with pytest.raises(ChipFileError) as caught:
        write(path, dense_image())
    assert str(caught.value) == f"The program file {str(path)!r} cannot be written: No such file or directory."
    with pytest.raises(ChipFileError) as caught:
        write("a\0.tpu", dense_image())
    assert str(caught.value) == "The program file 'a\\x00.tpu' cannot be written: embedded null byte."
    with pytest.raises(ChipFileError) as caught:
        write("model.onnx", dense_image())
    assert str(caught.value) == "The name of a program for the chip must end in '.tpu', unlike 'model.onnx'."


def test_nothing_is_written_when_an_instruction_has_no_bytes(tmp_path: Path):
    image = dataclasses.replace(dense_image(), instructions=(MatrixMultiply(0, 0, 0), Halt()))
    with pytest.raises(ChipError) as caught:
        write(tmp_path / "a.tpu", image)
    assert str(caught.value) == ("Instruction 0, matrix_multiply: rows must be a number from 1 to 4294967295, not 0.")
    assert not list(tmp_path.iterdir())


def test_the_old_file_stays_when_the_new_one_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write(tmp_path / "a.tpu", dense_image())
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Or Python cuts off what it compiles.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(ChipFileError) as caught:
            write(path, dataclasses.replace(dense_image(), name="other"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(caught.value) == f"The program file {str(path)!r} cannot be written: File too large."
    assert read(path)[0].name == "dense"
    assert [file.name for file in tmp_path.iterdir()] == ["a.tpu"]


def test_every_kind_of_node_can_be_written():
    kinds = {kind for kind in vars(nodes).values() if isinstance(kind, type) and issubclass(kind, Node)}
    assert kinds - {Node, Function} == {type(node) for node in every_node().nodes}


def test_an_array_of_no_numbers():
    with pytest.raises(ChipError) as caught:
        serialization.join_arrays([np.array(["a"])])
    assert str(caught.value) == "An array of str32 cannot be written: only integers and floats can."


def test_a_network_that_does_not_fit_the_instructions(tmp_path: Path):
    load(write(tmp_path / "a.tpu", dense_image(), tables_network("y")))
    path = write(tmp_path / "a.tpu", dense_image(), tables_network("y", "t"))
    assert refusal(path) == (
        f"The file 'a.tpu' cannot be used. Its instructions do not compute 't', an output of its network. {AGAIN}"
    )
    path = write(tmp_path / "a.tpu", dense_image(), every_node())
    assert refusal(path) == (
        "The file 'a.tpu' cannot be used. Its instructions hold 'x' in another form than its network describes. "
        f"{AGAIN}"
    )


def header(path: Path, **changes: object) -> dict[str, bytes]:
    """The header of a file with values of the image changed, and others."""
    described = json.loads(parts_of(path)["header.json"])
    own = {name: value for name, value in changes.items() if name in described}
    image = {name: value for name, value in changes.items() if name not in described}
    return {"header.json": json.dumps({**described, **own, "image": {**described["image"], **image}}).encode()}


DESIGN = dataclasses.asdict(dense_image().design)
MANY_LISTS = b"[" + b",".join([b"[]"] * 2_000_000) + b"]"
SENSELESS, INVALID = "Its header is invalid ({}).", "Its description is invalid ({})."
TOO_LARGE = "Its part {!r} has {:,} bytes, and {:,} is the most that it can have. Write it again with " + WRITER
DEEP = "ValueError: it nests too deeply"
MANY = "ValueError: it has 2,000,001 values, and 1,048,576 is the most that it can have"
HOSTILE = {
    "no instructions": (lambda _: {"code": b"\2\0"}, "Byte 1 of the instructions is 0x00, which is no opcode."),
    "no network": (
        lambda _: {"network.json": b'{"name": "a"}'},
        INVALID.format(
            "TypeError: Network.__init__() missing 5 required positional arguments: 'inputs', 'outputs', 'shapes', "
            "'quantizations', and 'nodes'"
        ),
    ),
    "more arrays than the header says": (
        lambda _: {"arrays": bytes(2**27)},
        TOO_LARGE.format("arrays", 2**27, 0),
    ),
    "an array too many": (
        lambda path: {**header(path, arrays=[["int8", [7]]]), "arrays": b"1234567"},
        INVALID.format("ValueError: 7 bytes, and the arrays that are listed take 16"),
    ),
    "no header": (
        lambda _: {"header.json": b"{"},
        SENSELESS.format(
            "JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
        ),
    ),
    "an empty header": (lambda _: {"header.json": b"{}"}, SENSELESS.format("KeyError: 'format'")),
    "a format that never was": (
        lambda path: header(path, format="3"),
        "It is of format '3', and this release of anytpu reads format 2.",
    ),
    "a deep header": (lambda _: {"header.json": b"[" * 200_000}, SENSELESS.format(DEEP)),
    "a deep network": (lambda _: {"network.json": b"[" * 200_000}, SENSELESS.format(DEEP)),
    "a header of many values": (lambda _: {"header.json": MANY_LISTS}, SENSELESS.format(MANY)),
    "a network of many values": (lambda _: {"network.json": MANY_LISTS}, SENSELESS.format(MANY)),
    "a chip beyond all floats": (
        lambda path: header(path, design=DESIGN | {"array": 10**400}),
        SENSELESS.format(f"SettingError: array of a chip must be an integer from 1 to 2,048, not {10**400}."),
    ),
    "a large chip": (
        lambda path: header(path, design=DESIGN | {"accumulator_rows": 2**50}),
        SENSELESS.format(f"SettingError: accumulator_rows of a chip must be an integer from 1 to 65,536, not {2**50}."),
    ),
    "a large buffer of the host": (
        lambda path: header(path, host_bytes=2**50),
        "The size of the host's buffer of 'dense' must be an integer from 0 to 1099511627776, not 1125899906842624.",
    ),
    "no batch": (lambda path: header(path, batch=2.5), INVALID.format("TypeError: the batch of a Image is 2.5")),
    "a field too many": (lambda path: header(path, more=1), INVALID.format("TypeError: a Image has no 'more'")),
    "a spill that is none": (
        lambda path: header(path, spill=1),
        SENSELESS.format("SettingError: spill must be True or False, not 1."),
    ),
    "an array of no size": (
        lambda path: header(path, arrays=[["int8", [-1]]]),
        INVALID.format("ValueError: an array of shape [-1]"),
    ),
    "an array of several kinds": (
        lambda path: header(path, arrays=[["i1,i1", [1]]]),
        INVALID.format("TypeError: there is no dtype 'i1,i1'"),
    ),
    "an array of no kind": (
        lambda path: header(path, arrays=[[None, [1]]]),
        INVALID.format("TypeError: there is no dtype None"),
    ),
    "weights of no size": (
        lambda path: header(path, weights_bytes=float("nan")),
        SENSELESS.format("ValueError: weights of nan bytes"),
    ),
    "more weights than the header says": (
        lambda _: {"weights": bytes(2**20)},
        TOO_LARGE.format("weights", 2**20, 4096),
    ),
    "more weights than the Weight Memory holds": (
        lambda path: header(path, design=DESIGN | {"weight_memory_bytes": 4095}),
        TOO_LARGE.format("weights", 4096, 4095),
    ),
    "a small file of much code": (lambda _: {"code": bytes(2**25)}, TOO_LARGE.format("code", 2**25, 2**24)),
    "a small file of much header": (
        lambda _: {"header.json": b" " * (2**24 + 1)},
        TOO_LARGE.format("header.json", 2**24 + 1, 2**24),
    ),
}


def test_what_no_one_wrote_is_refused_and_fills_no_memory(tmp_path: Path):
    wrong = []
    for name, (changes, why) in HOSTILE.items():
        path = write(tmp_path / "a.tpu", dense_image())
        with_parts(path, changes(path))
        tracemalloc.start()
        try:
            said = refusal(path)
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        file, end = ("program file", "") if why.endswith(WRITER) else ("file", f" {AGAIN}")
        if said != f"The {file} 'a.tpu' cannot be used. {why}{end}" or peak_bytes >= 2**26:
            wrong.append((name, said, peak_bytes))
    assert wrong == []


def with_rows(path: Path, rows: int, batch: int) -> int:
    """Write a file of `service_image` whose step is for some rows, consistently; return its size."""
    described = json.loads(parts_of(write(path, service_image()))["header.json"])
    described["image"]["batch"] = batch
    for step in described["steps"]:
        for argument in (*step["arguments"], step["result"]):
            argument["layout"]["rows"] = argument["shape"][argument["layout"]["axis"]] = rows
        for operation in step["operations"]:
            operation["shape"][0] = rows
    return with_parts(path, {"header.json": json.dumps(described).encode()}).stat().st_size


def test_the_rows_of_a_step_are_bounded_at_a_time_and_in_all(tmp_path: Path):
    """Rows have 8 numbers: of an input, a result and two operations. Results of a batch are also concatenated."""
    path = tmp_path / "a.tpu"
    cases = [(rows, batch, rows, "at a time", 4 * 32 * rows) for batch in (4, 10**6) for rows in (10**8, 10**30)] + [
        (4, 10**9, 10**9, "in all", 4 * 32 * 4 + 2 * 32 * 10**9)
    ]
    for rows, batch, told, when, needed in cases:
        size = with_rows(path, rows, batch)
        assert refusal(path) == (
            f"The file 'a.tpu' cannot be used. The host's step 'negate/h' computes {told:,} rows {when}, which is too "
            f"much: it unpacks from {format_bytes(size)} to {format_bytes(needed)}, and above 1 GiB a file may unpack "
            f"to 100 times its size. {AGAIN}"
        )
    with_rows(path, 10_000, 10**6)
    assert read(path)[0].services[0].step.steps.rows == 10_000


def with_step_of(rows: int) -> Image:
    """Return `service_image` with a step for some rows."""
    step = service_image().services[0].step
    shape = rows, *step.steps.operations[0].shape[1:]
    layout = dataclasses.replace(step.steps.result.layout, rows=rows)
    many = dataclasses.replace(
        step.steps,
        operations=tuple(dataclasses.replace(one, shape=shape) for one in step.steps.operations),
        result=dataclasses.replace(step.steps.result, layout=layout),
    )
    service = dataclasses.replace(service_image().services[0], step=dataclasses.replace(step, steps=many))
    return dataclasses.replace(service_image(), services=(service,))


def test_what_would_not_be_read_is_not_written(tmp_path: Path):
    path = write(tmp_path / "a.tpu", dense_image())
    name = "n" * 2**24
    with pytest.raises(ChipFileError) as caught:
        write(path, dataclasses.replace(dense_image(), name=name))
    size = len(parts_of(path)["header.json"]) + len(name) - len("dense")
    assert str(caught.value) == (
        f"The program cannot be written: part 'header.json' of its file would have {size:,} bytes, and 16,777,216 is "
        "the most that it can have."
    )
    with pytest.raises(ChipFileError) as caught:
        write(path, with_step_of(10**8))
    start, _, end = str(caught.value).partition("it unpacks from ")
    assert start == (
        "The program cannot be written. The host's step 'negate/h' computes 100,000,000 rows at a time, which is too "
        "much: "
    )
    assert end.endswith("times its size. Compile it from a Program of a smaller batch.")


def test_a_step_is_bounded_by_the_written_file_as_when_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The step takes less than 100 times what the parts unpack to, and more than 100 times the file."""
    image = dataclasses.replace(with_step_of(2**14), weights=np.zeros(2**19, np.uint8))
    needed = image.services[0].step.steps.size_bytes
    monkeypatch.setattr(memory, "FREELY_UNPACKED_BYTES", needed - 1)
    with pytest.raises(ChipFileError) as caught:
        write(tmp_path / "a.tpu", image)
    assert str(caught.value).startswith(
        "The program cannot be written. The host's step 'negate/h' computes 16,384 rows"
    )
    assert not os.listdir(tmp_path)


def test_a_small_file_of_many_instructions_takes_little_memory(tmp_path: Path):
    path = with_parts(write(tmp_path / "a.tpu", dense_image()), {"code": b"\1" * 2**20})
    tracemalloc.start()
    try:
        assert len(read(path)[0].instructions) == 2**20 and path.stat().st_size < 2**13
        assert tracemalloc.get_traced_memory()[1] < 30 * 2**20
    finally:
        tracemalloc.stop()


def test_the_hosts_buffer_is_bounded_when_written_and_when_read(tmp_path: Path):
    path = write(tmp_path / "a.tpu", dense_image())
    with_parts(path, header(path, host_bytes=2**32))
    said = "ts host's buffer of 4,294,967,296 bytes is too large: it unpacks from"
    assert said in refusal(path)
    with pytest.raises(
        ChipFileError, match=rf"^The program cannot be written\. I{said}.* Compile it for a smaller batch\.$"
    ):
        write(tmp_path / "b.tpu", dataclasses.replace(dense_image(), host_bytes=2**32))
    assert os.listdir(tmp_path) == ["a.tpu"]
