"""Networks that a file may hold, with right checksums: what makes no sense is refused when the file is read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from anytpu.chip import file
from anytpu.cli import main
from anytpu.errors import ChipFileError
from chip_samples import every_node, parts_of, service_image, with_parts

AGAIN = "Compile it again, or save it again, with ChipProgram.save or anytpu chip compile."
CONV, POOL, ADD, TABLE, CAT, CUT, FLAT, HOST = range(8)
LOOP = """
func.func public @main(%a: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %r = stablehlo.while(%x = %a) : tensor<4x8xf32>
    cond { %t = stablehlo.constant dense<true> : tensor<i1>
           stablehlo.return %t : tensor<i1> } do { stablehlo.return %x : tensor<4x8xf32> }
  return %r : tensor<4x8xf32>
}
"""
CALL = """
func.func public @main(%a: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %r = stablehlo.custom_call @xla_python_cpu_callback(%a) {backend_config = "1"} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %r : tensor<4x8xf32>
}
"""


def changed(path: Path, part: str, *changes: tuple[Sequence[Any], Any]) -> Path:
    """Write a file with values of a part changed, and right checksums."""
    described = json.loads(parts_of(file.write(path, service_image(), every_node()))[part])
    for (*keys, last), value in changes:
        owner = described
        for key in keys:
            owner = owner[key]
        owner[last] = value
    return with_parts(path, {part: json.dumps(described).encode()})


def refusals(path: Path, part: str, cases: dict[str, tuple[Sequence[tuple[Sequence[Any], Any]], str]]) -> list[str]:
    """Return the cases whose message is another one."""
    wrong = []
    for name, (changes, expected) in cases.items():
        with pytest.raises(ChipFileError) as caught:
            file.read(changed(path, part, *changes))
        if str(caught.value) != f"The file {str(path)!r} cannot be used. {expected} {AGAIN}":
            wrong.append(f"{name}: {caught.value}")
    return wrong


def node(index: int, field: str, value: Any) -> tuple[Sequence[Any], Any]:
    return ("nodes", index, field), value


NETWORKS: dict[str, tuple[Sequence[tuple[Sequence[Any], Any]], str]] = {
    "a shape of two": (
        [(("shapes", "x"), [5, 6])],
        "Its description is invalid (TypeError: the shapes of a Network is {'x': [5, 6], 'c': [2, 3, 4], 'p': [1, 2, "
        "4], 'a': [1, 2, 4]).",
    ),
    "a shape of a text": (
        [(("shapes", "x"), "abc")],
        "Its description is invalid (TypeError: the shapes of a Network is {'x': 'abc', 'c': [2, 3, 4], 'p': [1, 2, "
        "4], 'a': [1, 2, 4],).",
    ),
    "a stride that is a float": (
        [node(CONV, "strides", [2.5, 1])],
        "Its description is invalid (TypeError: the strides of a Convolution is [2.5, 1]).",
    ),
    "a name that is a number": (
        [node(ADD, "name", 7)],
        "Its description is invalid (TypeError: the name of a Elementwise is 7).",
    ),
    "an unknown kind": (
        [node(POOL, "kind", "sum")],
        "Its description is invalid (TypeError: the kind of a Pool is 'sum').",
    ),
    "weights that are none": (
        [node(CONV, "weights", 3)],
        "Its description is invalid (TypeError: the weights of a Convolution is 3).",
    ),
    "no positions": (
        [(("shapes", "c"), [0, 3, 4])],
        "The tensor 'c' of its network is invalid: its shape is [0, 3, 4].",
    ),
    "a tensor beyond the chip": (
        [(("shapes", "c"), [2**40, 3, 4])],
        "The tensor 'c' of its network is invalid: its shape [1099511627776, 3, 4] is too large for the chip.",
    ),
    "an input of another size": (
        [(("inputs", 0, "shape"), [5, 6])],
        "The input 'x' of its network is invalid: its shape is [5, 6], and [5, 6, 2].",
    ),
    "an input of many axes": (
        [(("inputs", 0, "shape"), [5, 6, 2, *[1] * 99])],
        "The input 'x' of its network is invalid: it has 102 axes.",
    ),
    "an input of no dtype": (
        [(("inputs", 0, "dtype"), "object")],
        "The input 'x' of its network is invalid: its dtype is 'object'.",
    ),
    "a dtype of many digits": (
        [(("inputs", 0, "dtype"), "9" * 5000)],
        f"The input 'x' of its network is invalid: its dtype is '{'9' * 99}.",
    ),
    "no output": ([(("outputs",), [])], "Its network has no input or no output."),
    "an output that is not made": (
        [(("outputs", 0, "tensor"), "q")],
        "The output 'q' of its network is invalid: there is no such tensor.",
    ),
    "a circle": (
        [node(FLAT, "inputs", ["y"])],
        "The node 'flat/r' of its network is invalid: its input 'y' is not made before it.",
    ),
    "made twice": ([node(POOL, "output", "c")], "The node 'pool/p' of its network is invalid: 'c' is made twice."),
    "two inputs": ([node(POOL, "inputs", ["c", "c"])], "The node 'pool/p' of its network is invalid: it has 2 inputs."),
    "a stride of 0": (
        [node(CONV, "strides", [0, 1])],
        "The node 'conv/c' of its network is invalid: its window is [3, 3], [0, 1].",
    ),
    "a large padding": (
        [node(POOL, "padding", [[2**40, 0], [0, 0]])],
        "The node 'pool/p' of its network is invalid: its padding is [1099511627776, 0].",
    ),
    "too many positions": (
        [node(POOL, "window", [3, 2])],
        "The node 'pool/p' of its network is invalid: it has 0 windows, not 1.",
    ),
    "groups that do not divide": (
        [node(CONV, "groups", 3)],
        "The node 'conv/c' of its network is invalid: its groups.",
    ),
    "a clip of nothing": (
        [node(ADD, "low", 5), node(ADD, "high", -5)],
        "The node 'add/a' of its network is invalid: it clips to 5 and -5.",
    ),
    "a table for 16 bits": (
        [(("quantizations", "a", "bits"), 16)],
        "The node 'tanh/t' of its network is invalid: its table is int16 [256].",
    ),
    "an axis that is none": ([node(CAT, "axis", 3)], "The node 'cat/k' of its network is invalid: its axis is 3."),
    "a slice beyond": (
        [node(CUT, "stop", 2**62)],
        "The node 'cut/s' of its network is invalid: it is from 0 to 4611686018427387904 of [1, 2, 8].",
    ),
    "other quantizations": (
        [(("quantizations", "y", "scale"), 0.5)],
        "The node 'flat/r' of its network is invalid: its inputs have other quantizations than its output.",
    ),
    "a step of the host of another shape": (
        [(("shapes", "z"), [1, 2, 4])],
        "The node 'host/h' of its network is invalid: its operations make [1, 1, 8], not [1, 2, 4].",
    ),
}


def test_a_network_that_makes_no_sense(tmp_path: Path):
    assert refusals(tmp_path / "a.tpu", "network.json", NETWORKS) == []


STEP = ("steps", 0)
ROWS = (*STEP, "result", "layout", "rows")
FIRST = (*STEP, "operations", 0)
STEPS: dict[str, tuple[Sequence[tuple[Sequence[Any], Any]], str]] = {
    "many rows": (
        [(ROWS, 10**9)],
        "ValueError: a batch of BatchLayout(axis=0, rows=1000000000, before=1, after=1) in a shape of (4, 8)",
    ),
    "an axis beyond": (
        [((*STEP, "result", "layout", "axis"), 2)],
        "ValueError: a batch of BatchLayout(axis=2, rows=4, before=1, after=1) in a shape of (4, 8)",
    ),
    "a value that is not made": (
        [((*FIRST, "operands"), ["q"])],
        "ValueError: 'negate' of 'q', which is not made before it",
    ),
    "another result": (
        [((*STEP, "operations", 1, "shape"), [4, 9])],
        "ValueError: the result 'c' is not made",
    ),
    "an endless loop": (
        [((*FIRST, "name"), "loop"), ((*FIRST, "attributes"), {"text": LOOP})],
        "ValueError: an operation 'stablehlo.while', which no step of the host has",
    ),
    "a call of the machine's code": (
        [((*FIRST, "name"), "custom_call"), ((*FIRST, "attributes"), {"text": CALL})],
        "ValueError: an operation 'stablehlo.custom_call', which no step of the host has",
    ),
    "no StableHLO": (
        [((*FIRST, "name"), "loop"), ((*FIRST, "attributes"), {"text": "print('x')"})],
        "ValueError: an operation whose text is not StableHLO",
    ),
}


def test_a_step_of_the_host_that_makes_no_sense(tmp_path: Path):
    cases = {name: (changes, f"Its description is invalid ({why}).") for name, (changes, why) in STEPS.items()}
    assert refusals(tmp_path / "a.tpu", "header.json", cases) == []


def test_the_command_prints_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = changed(tmp_path / "a.tpu", "network.json", node(FLAT, "inputs", ["y"]))
    status = main(["chip", "run", str(path), "--input", str(tmp_path / "x.npy")])
    printed = capsys.readouterr()
    assert (status, printed.out) == (2, "")
    assert printed.err == (
        f"anytpu: The file {str(path)!r} cannot be used. The node 'flat/r' of its network is invalid: its "
        f"input 'y' is not made before it. {AGAIN}\n"
    )
