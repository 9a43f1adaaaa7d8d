"""Files of programs: whole there and back, and refused when they are not whole."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import struct
import sys
import tracemalloc
import zlib
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from anytpu.chip import file, file_parts
from anytpu.chip.file import read, write
from anytpu.chip.file_parts import PARTS, join_parts, split_parts
from anytpu.chip.graph import nodes
from anytpu.chip.graph.nodes import Function, HostStep, Node
from anytpu.chip.image import serialization
from anytpu.chip.image.image import Image
from anytpu.chip.isa.instructions import Halt, MatrixMultiply
from anytpu.chip.loading import load
from anytpu.chip.network import operations
from anytpu.errors import ChipError, ChipFileError
from anytpu.files import memory
from anytpu.units import format_bytes
from chip_samples import dense_image, every_node, host_step, service_image, tables_network

COPY = "Copy it again, or save it again, with ChipProgram.save or anytpu chip compile."


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
    image, network = service_image(), every_node()
    path = write(tmp_path / "all.tpu", image, network, False)
    again, network_again, spill = read(str(path))
    assert network_again is not None and spill is False
    assert file.to_bytes(again, network_again, spill) == path.read_bytes()
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


def test_a_file_that_is_there_is_replaced(tmp_path: Path):
    path = tmp_path / "a.tpu"
    write(path, dense_image())
    write(path, dataclasses.replace(dense_image(), name="other"))
    assert read(path)[0].name == "other"


def test_every_flipped_byte_is_found(tmp_path: Path):
    content = bytearray(file.to_bytes(service_image(), every_node()))
    for place in range(len(content)):
        content[place] ^= 1 << place % 8
        with pytest.raises(ChipFileError):
            file.from_bytes(bytes(content), "a.tpu")
        content[place] ^= 1 << place % 8
    file.from_bytes(bytes(content), "a.tpu")


def test_every_cut_is_found():
    content = file.to_bytes(dense_image())
    for stop in range(len(content)):
        with pytest.raises(ChipFileError, match=r"is empty|is cut short"):
            file.from_bytes(content[:stop], "a.tpu")


BEGINNING = 16 + 5 * 28 + 4


def unpacked(content: bytes) -> dict[str, bytes]:
    return {name: part.unpack(2**20) for name, part in file_parts.split_parts(content, "a.tpu").items()}


def altered(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def with_sum(head: bytes) -> bytes:
    return head + struct.pack("<I", google_crc32c.value(head))


REFUSED = [
    (lambda c: b"", f"is empty. {COPY}"),
    (
        lambda c: b"PK\3\4" + c,
        "is no program for the chip: it does not begin as one. Compile one, or save it again, with ChipProgram.save or "
        "anytpu chip compile.",
    ),
    (lambda c: c[:9], f"is cut short: it has 9 bytes, too few for its beginning. {COPY}"),
    (lambda c: c[:40], f"is cut short: it has 40 bytes, too few for its beginning. {COPY}"),
    (lambda c: c[:-7], f"is cut short: it has LENGTH-7 of LENGTH bytes. {COPY}"),
    (lambda c: c + b"abc", f"has 3 bytes too many at its end. {COPY}"),
    (
        lambda c: c[:8] + b"\2" + c[9:],
        "is of format 2, and this release of anytpu reads formats up to 1. Install a newer one: pip install --upgrade "
        "anytpu",
    ),
    (
        lambda c: altered(c, 30),
        f"was altered or damaged after it was written: its beginning is not what was recorded. {COPY}",
    ),
    (
        lambda c: altered(c, 12),
        f"was altered or damaged after it was written: its beginning is not what was recorded. {COPY}",
    ),
    (
        lambda c: altered(c, BEGINNING + 9),
        f"was altered or damaged after it was written: its part 'header' is not what was recorded. {COPY}",
    ),
]


@pytest.mark.parametrize(("change", "text"), REFUSED)
def test_what_is_no_whole_file_is_refused(tmp_path: Path, change, text: str):
    content = file.to_bytes(dense_image())
    path = tmp_path / "a.tpu"
    path.write_bytes(change(content))
    with pytest.raises(ChipFileError) as caught:
        read(path)
    text = text.replace("LENGTH-7", f"{len(content) - 7:,}").replace("LENGTH", f"{len(content):,}")
    assert str(caught.value) == f"The file {str(path)!r} {text}"


def test_a_file_that_is_not_there(tmp_path: Path):
    path = tmp_path / "none.tpu"
    with pytest.raises(ChipFileError) as caught:
        read(path)
    assert str(caught.value) == f"The file {str(path)!r} cannot be read: No such file or directory."


def test_where_a_file_cannot_be_written(tmp_path: Path):
    path = tmp_path / "no folder" / "a.tpu"
    with pytest.raises(ChipFileError) as caught:
        write(path, dense_image())
    assert str(caught.value) == f"The file {str(path)!r} cannot be written: No such file or directory."
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
    assert str(caught.value) == f"The file {str(path)!r} cannot be written: File too large."
    assert read(path)[0].name == "dense"
    assert [file.name for file in tmp_path.iterdir()] == ["a.tpu"]


def test_every_kind_of_node_can_be_written():
    kinds = {kind for kind in vars(nodes).values() if isinstance(kind, type) and issubclass(kind, Node)}
    assert kinds - {Node, Function} == {type(node) for node in every_node().nodes}


def test_an_array_of_no_numbers():
    with pytest.raises(ChipError) as caught:
        serialization.join_arrays([np.array(["a"])])
    assert str(caught.value) == "An array of str32 cannot be written: only integers and floats can."


def test_a_whole_file_that_makes_no_sense():
    parts = unpacked(file.to_bytes(dense_image()))
    again = "Compile it again, or save it again, with ChipProgram.save or anytpu chip compile."

    def refusal(**changed: bytes) -> str:
        with pytest.raises(ChipFileError) as caught:
            file.from_bytes(file_parts.join_parts({**parts, **changed}), "a.tpu")
        return str(caught.value)

    assert refusal(code=b"\2\0") == (
        f"The file 'a.tpu' cannot be used. Byte 1 of the instructions is 0x00, which is no opcode. {again}"
    )
    assert refusal(network=b'{"name": "a"}') == (
        "The file 'a.tpu' cannot be used. Its description is invalid (KeyError: 'shapes'). " + again
    )
    assert refusal(arrays=b"1234") == (
        "The file 'a.tpu' cannot be used: its part 'arrays' has 4 bytes, and 0 is the most that it can have. " + again
    )
    listed = json.dumps({**json.loads(parts["header"]), "arrays": [["int8", [7]]]}).encode()
    assert refusal(header=listed, arrays=b"1234567") == (
        "The file 'a.tpu' cannot be used. Its description is invalid (ValueError: 7 bytes, and the "
        "arrays that are listed take 16). " + again
    )
    makes_no_sense = "The file 'a.tpu' cannot be used. Its header is invalid (JSONDecodeError: "
    assert refusal(header=b"{").startswith(makes_no_sense)
    no_chip = "The file 'a.tpu' cannot be used. Its header is invalid (KeyError: 'design'). "
    assert refusal(header=b"{}") == no_chip + again


def test_a_network_whose_output_the_instructions_do_not_compute(tmp_path: Path):
    load(write(tmp_path / "a.tpu", dense_image(), tables_network("y")))
    path = write(tmp_path / "a.tpu", dense_image(), tables_network("y", "t"))
    with pytest.raises(ChipFileError) as caught:
        load(path)
    assert str(caught.value) == (
        f"The file {str(path)!r} cannot be used: its instructions do not compute 't', an output of its network. {AGAIN}"
    )


def test_a_network_of_other_tensors_than_the_instructions(tmp_path: Path):
    path = write(tmp_path / "a.tpu", dense_image(), every_node())
    with pytest.raises(ChipFileError) as caught:
        load(path)
    assert str(caught.value) == (
        f"The file {str(path)!r} cannot be used: its instructions hold 'x' in another form than its network "
        f"describes. {AGAIN}"
    )


def crafted(
    changes: dict[str, bytes] | None = None,
    packed: dict[str, bytes] | None = None,
    sizes: dict[str, int] | None = None,
    names: dict[str, bytes] | None = None,
) -> bytes:
    """A file of `dense_image` with something changed, all of whose checksums are right."""
    parts = unpacked(file.to_bytes(dense_image())) | (changes or {})
    contents = {name: zlib.compress(part) for name, part in parts.items()} | (packed or {})
    table = [struct.pack("<8sII", file_parts.MAGIC, file_parts.FORMAT, len(parts))]
    for name, content in contents.items():
        size = (sizes or {}).get(name, len(parts[name]))
        shown = (names or {}).get(name, name.encode())
        table.append(struct.pack("<8sQQI", shown, len(content), size, google_crc32c.value(content)))
    return b"".join([with_sum(b"".join(table)), *contents.values()])


def with_header(**changes: object) -> dict[str, bytes]:
    header = json.loads(unpacked(file.to_bytes(dense_image()))["header"])
    return {"header": json.dumps(header | changes).encode()}


DESIGN = dataclasses.asdict(dense_image().design)
MANY_LISTS = b"[" + b",".join([b"[]"] * 2_000_000) + b"]"
ALTERED = "was altered or damaged after it was written: its {} is not what was recorded. " + COPY
AGAIN = "Compile it again, or save it again, with ChipProgram.save or anytpu chip compile."
USELESS = "cannot be used. {} " + AGAIN
SENSELESS = USELESS.format("Its header is invalid ({}).")
TOO_LARGE = "cannot be used: its part {!r} has {:,} bytes, and {:,} is the most that it can have. " + AGAIN
DEEP = "ValueError: it nests too deeply"
MANY = "ValueError: it has 2,000,001 values, and 1,048,576 is the most that it can have"
HOSTILE = {
    "a size that no number of C holds": (lambda: crafted(sizes={"header": 2**63}), ALTERED.format("part 'header'")),
    "a size that is too large": (lambda: crafted(sizes={"weights": 2**62}), ALTERED.format("part 'weights'")),
    "a size that is too small": (lambda: crafted(sizes={"code": 3}), ALTERED.format("part 'code'")),
    "a name in no alphabet": (lambda: crafted(names={"header": b"\xff\xfe"}), ALTERED.format("beginning")),
    "another part": (lambda: crafted(names={"arrays": b"code"}), ALTERED.format("beginning")),
    "more behind what was packed": (
        lambda: crafted(packed={"network": zlib.compress(b"null") + b"JUNK"}),
        ALTERED.format("part 'network'"),
    ),
    "what is not packed": (lambda: crafted(packed={"network": b"null"}), ALTERED.format("part 'network'")),
    "a deep header": (lambda: crafted({"header": b"[" * 200_000}), SENSELESS.format(DEEP)),
    "a deep network": (lambda: crafted({"network": b"[" * 200_000}), SENSELESS.format(DEEP)),
    "a header of many values": (lambda: crafted({"header": MANY_LISTS}), SENSELESS.format(MANY)),
    "a network of many values": (lambda: crafted({"network": MANY_LISTS}), SENSELESS.format(MANY)),
    "a chip beyond all floats": (
        lambda: crafted(with_header(design=DESIGN | {"array": 10**400})),
        SENSELESS.format(f"SettingError: array of a chip must be an integer from 1 to 2,048, not {10**400}."),
    ),
    "a large chip": (
        lambda: crafted(with_header(design=DESIGN | {"accumulator_rows": 2**50})),
        SENSELESS.format(f"SettingError: accumulator_rows of a chip must be an integer from 1 to 65,536, not {2**50}."),
    ),
    "a large buffer of the host": (
        lambda: crafted(with_header(host_bytes=2**50)),
        USELESS.format(
            "The size of the host's buffer of 'dense' must be an integer from 0 to 1099511627776, not 1125899906842624."
        ),
    ),
    "no batch": (
        lambda: crafted(with_header(batch=2.5)),
        USELESS.format("The batch of 'dense' must be an integer from 1 to 4294967295, not 2.5."),
    ),
    "a spill that is none": (
        lambda: crafted(with_header(settings={"spill": 1})),
        SENSELESS.format("SettingError: spill must be True or False, not 1."),
    ),
    "an array of no size": (
        lambda: crafted(with_header(arrays=[["int8", [-1]]])),
        USELESS.format("Its description is invalid (ValueError: an array of shape [-1])."),
    ),
    "an array of several kinds": (
        lambda: crafted(with_header(arrays=[["i1,i1", [1]]])),
        USELESS.format("Its description is invalid (TypeError: there is no dtype 'i1,i1')."),
    ),
    "an array of no kind": (
        lambda: crafted(with_header(arrays=[[None, [1]]])),
        USELESS.format("Its description is invalid (TypeError: there is no dtype None)."),
    ),
    "more weights than the header says": (
        lambda: crafted({"weights": bytes(2**20)}),
        TOO_LARGE.format("weights", 2**20, 4096),
    ),
    "more weights than the Weight Memory holds": (
        lambda: crafted(with_header(design=DESIGN | {"weight_memory_bytes": 4095})),
        TOO_LARGE.format("weights", 4096, 4095),
    ),
    "weights of no size": (
        lambda: crafted(with_header(weights_bytes=float("nan")) | {"weights": bytes(2**20)}),
        SENSELESS.format("ValueError: weights of nan bytes"),
    ),
    "a small file of much code": (lambda: crafted({"code": bytes(2**25)}), TOO_LARGE.format("code", 2**25, 2**24)),
    "a small file of much header": (
        lambda: crafted({"header": b" " * (2**24 + 1)}),
        TOO_LARGE.format("header", 2**24 + 1, 2**24),
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_no_one_wrote_is_refused_and_fills_no_memory(name: str):
    make, expected = HOSTILE[name]
    content = make()
    tracemalloc.start()
    try:
        with pytest.raises(ChipFileError) as caught:
            file.from_bytes(content, "a.tpu")
        assert tracemalloc.get_traced_memory()[1] < 2**26
    finally:
        tracemalloc.stop()
    assert str(caught.value) == f"The file 'a.tpu' {expected}"


def with_rows(rows: int, batch: int) -> bytes:
    """A file of `service_image` whose step is for some rows, consistently, with right checksums."""
    parts = unpacked(file.to_bytes(service_image()))
    header = json.loads(parts["header"]) | {"batch": batch}
    for step in header["steps"]["steps"]:
        for argument in (*step["arguments"], step["result"]):
            argument["lay"]["rows"] = argument["shape"][argument["lay"]["axis"]] = rows
        for operation in step["operations"]:
            operation["shape"][0] = rows
    return join_parts({**parts, "header": json.dumps(header).encode()})


def large_step() -> HostStep:
    """The step of `service_image`, for a hundred million rows."""
    step = service_image().services[0].step
    shape = (10**8, *step.steps.operations[0].shape[1:])
    operations = tuple(dataclasses.replace(one, shape=shape) for one in step.steps.operations)
    result = dataclasses.replace(step.steps.result, layout=dataclasses.replace(step.steps.result.layout, rows=10**8))
    return dataclasses.replace(step, steps=dataclasses.replace(step.steps, operations=operations, result=result))


TOO_MUCH = (
    "The host's step 'negate/h' computes {rows:,} rows at a time, which is too much: it unpacks from {small} to "
    "{large}, and above 1 GiB a file may unpack to 100 times its size."
)


def test_the_results_of_a_whole_batch_are_bounded():
    """In pieces of 4 rows, of 8 numbers each: two times 64 GB, as they are concatenated."""
    content = with_rows(4, 10**9)
    with pytest.raises(ChipFileError) as caught:
        file.from_bytes(content, "a.tpu")
    why = (
        f"The host's step 'negate/h' computes 1,000,000,000 rows in all, which is too much: it unpacks from "
        f"{format_bytes(len(content))} to {format_bytes(4 * 32 * 4 + 2 * 32 * 10**9)}, and above 1 GiB a file may "
        "unpack to 100 times its size."
    )
    assert str(caught.value) == f"The file 'a.tpu' cannot be used. {why} {AGAIN}"


@pytest.mark.parametrize("batch", [4, 10**6])
def test_a_step_of_many_rows_is_bounded_whatever_the_batch_is(batch: int):
    few = file.from_bytes(with_rows(10_000, batch), "a.tpu")[0]
    assert few.services[0].step.steps.rows == 10_000
    for rows in (10**8, 10**30):
        content = with_rows(rows, batch)
        with pytest.raises(ChipFileError) as caught:
            file.from_bytes(content, "a.tpu")
        # An input, a result and two operations, each of 8 numbers a row.
        why = TOO_MUCH.format(rows=rows, small=format_bytes(len(content)), large=format_bytes(4 * 32 * rows))
        assert str(caught.value) == f"The file 'a.tpu' cannot be used. {why} {AGAIN}"


def test_a_step_that_is_too_large_to_be_read_is_not_written():
    image = service_image()
    service = dataclasses.replace(image.services[0], step=large_step())
    with pytest.raises(ChipFileError) as caught:
        file.to_bytes(dataclasses.replace(image, services=(service,)))
    start, _, end = str(caught.value).partition("it unpacks from ")
    assert start == (
        "The program cannot be written. The host's step 'negate/h' computes 100,000,000 rows at a time, which is too "
        "much: "
    )
    assert end.endswith("times its size. Compile it from a Program of a smaller batch.")


def test_a_small_file_of_many_instructions_takes_little_memory():
    content = crafted({"code": b"\1" * 2**20})
    tracemalloc.start()
    try:
        image, _, _ = file.from_bytes(content, "a.tpu")
        assert len(image.instructions) == 2**20 and len(content) < 2**13
        assert tracemalloc.get_traced_memory()[1] < 30 * 2**20
    finally:
        tracemalloc.stop()


def test_what_would_not_be_read_is_not_written():
    name = "n" * 2**24
    with pytest.raises(ChipFileError) as caught:
        file.to_bytes(dataclasses.replace(dense_image(), name=name))
    size = len(unpacked(file.to_bytes(dense_image()))["header"]) + len(name) - len("dense")
    assert str(caught.value) == (
        f"The program cannot be written: part 'header' of its file would have {size:,} bytes, and 16,777,216 is the "
        "most that it can have."
    )


def test_a_part_that_unpacks_to_much_more_than_it_is(monkeypatch: pytest.MonkeyPatch):
    parts = {name: bytes(2**20) if name == "weights" else b"" for name in PARTS}
    content = join_parts(parts)
    assert split_parts(content, "some.tpu")["weights"].unpack(2**20) == parts["weights"]
    monkeypatch.setattr(memory, "FREELY_UNPACKED_BYTES", 2**19)
    with pytest.raises(ChipFileError) as caught:
        split_parts(content, "some.tpu")["weights"].unpack(2**20)
    packed = struct.unpack_from("<Q", content, 16 + 2 * 28 + 8)[0]
    assert str(caught.value) == (
        f"The file 'some.tpu' cannot be used: its part 'weights' is too large: it unpacks from {format_bytes(packed)} "
        "to 1 MiB, and above 512 KiB a file may unpack to 100 times its size. Copy it again, or save it again, with "
        "ChipProgram.save or anytpu chip compile."
    )
    # What anytpu writes itself is stored, where it is that large.
    assert split_parts(join_parts(parts), "some.tpu")["weights"].unpack(2**20) == parts["weights"]


def test_a_part_is_held_once():
    weights = np.random.default_rng(0).bytes(2**24)
    packed = split_parts(join_parts({name: weights if name == "weights" else b"" for name in PARTS}), "a")["weights"]
    tracemalloc.start()
    try:
        found = packed.unpack(2**24)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == weights and peak_bytes < 1.5 * len(weights)
