"""Programs for the chip: `.tpu` files and assembly."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import chip_onnx_sample
from anytpu import chip
from anytpu.chip import file
from anytpu.chip.assembly import disassemble
from anytpu.chip.compiler import compile_image
from anytpu.chip.file import PARTS
from anytpu.chip.given.onnx_operators import OPERATORS, SCALED_OPERATORS
from anytpu.program.archive import CHECKSUMS, write_parts
from fuzz.battery import Battery
from fuzz.damage import BYTES, JSON, TEXT, Damage, change_json, members_of, swell_member
from quantized_samples import SMALL, Sketch

SAME = ((1, 1), (1, 1))


def _network() -> Any:
    sketch = Sketch(8)
    a = sketch.convolution(sketch.input(6, 5, 3), 12, (3, 3), padding=SAME)
    pooled = sketch.pool("max", a, (2, 2), (2, 2))
    b = sketch.convolution(sketch.negate_on_host(pooled), 4)
    return sketch.network(sketch.table(b))


def _written(*programs: tuple[Any, Any]) -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        return [file.write(Path(folder, "a.tpu"), *program).read_bytes() for program in programs]


def tpu_files() -> list[bytes]:
    """Return `.tpu` files with and without the network that they were compiled from."""
    network = _network()
    image = compile_image(network, batch=3, design=SMALL)
    return _written((image, network), (image, None))


def texts() -> list[bytes]:
    """Return the text of a program."""
    return [disassemble(compile_image(_network(), batch=3, design=SMALL), weights=True).encode()]


def whole_files() -> list[bytes]:
    """Return a file with a network of every kind of node."""
    sketch = Sketch(8)
    x = sketch.convolution(sketch.input(6, 5, 3), 12, (3, 3), padding=SAME)
    added = sketch.elementwise("add", sketch.pool("max", x, (3, 3), padding=SAME), x)
    negated = sketch.negate_on_host(sketch.pool("average", added, (2, 2), (2, 2), ((0, 0), (0, 1))))
    both = sketch.concatenate([negated, sketch.cut(negated, 1, 0, 2)], 1)
    network = sketch.network(sketch.table(sketch.reshape(both, 1, 1, 180)), added)
    return _written((compile_image(network, batch=3, design=SMALL), network))


def _resealed(content: bytes, draw: random.Random, name: str, kinds: Sequence[Damage]) -> bytes:
    """Damage one part and record the checksums anew."""
    parts = members_of(content)
    if name not in parts:
        return content
    parts.pop(CHECKSUMS, None)
    parts[name] = draw.choice(kinds)(parts[name], draw)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.tpu")
        write_parts(path, parts)
        return path.read_bytes()


def resealed(content: bytes, draw: random.Random) -> bytes:
    """Damage any part and record the checksums anew."""
    name = draw.choice((*PARTS, "header.json", "header.json"))
    return _resealed(content, draw, name, JSON if name.endswith(".json") else BYTES)


def resealed_values(content: bytes, draw: random.Random) -> bytes:
    """Change a value of the network, or of the header with its steps, and record the checksums anew."""
    name = draw.choice(("network.json", "network.json", "header.json"))
    return _resealed(content, draw, name, (change_json,))


def _tpu(path: Path) -> Any:
    program = chip.load(path)
    found = _used(program)
    # One row runs in an image of its own, compiled from the network of the file.
    x = tuple(np.zeros((1, *port.shape), np.float32) for port in program.inputs)
    program.run(x[0] if len(x) == 1 else x)
    return found


def _used(program: Any) -> Any:
    """Do what one does with a program that was read: show it, disassemble it, time it, run it."""
    found = [repr(program), program.disassemble(weights=True)]
    program.time()
    x = tuple(np.zeros((program.batch, *port.shape), np.float32) for port in program.inputs)
    found.append(program.run(x[0] if len(x) == 1 else x))
    return found


def _assembly(path: Path) -> Any:
    """Read as `anytpu chip asm` does."""
    text = path.read_bytes().decode("utf-8", "replace")
    return _used(chip.assemble(text, path.stem))


def onnx_files() -> list[bytes]:
    """Return quantized ONNX files: a picture through a convolution, a pool, a dense layer and a softmax."""
    return [chip_onnx_sample.small_file(qdq).SerializeToString() for qdq in (True, False)]


def changed_model(content: bytes, draw: random.Random) -> bytes:
    """Change an operator, an attribute, an input, a constant or a shape of an ONNX file."""
    try:
        model = onnx.load_model_from_string(content)
    except Exception:
        return content
    graph, kind = model.graph, draw.choice(("operator", "attribute", "input", "constant", "shape"))
    node = draw.choice(graph.node)
    if kind == "operator":
        node.op_type = draw.choice((*OPERATORS, *SCALED_OPERATORS, "QuantizeLinear", "DequantizeLinear"))
    elif kind == "attribute":
        name = draw.choice(
            ("axis", "pads", "strides", "dilations", "kernel_shape", "group", "perm", "auto_pad", "ceil_mode")
        )
        value = draw.choice(
            (-1, 0, 1, 3, 2**15, 2**40, b"SAME_UPPER", *[[draw.choice((-9, 0, 1, 2, 2**31))] * n for n in (1, 2, 4)])
        )
        node.attribute.append(onnx.helper.make_attribute(name, value))
    elif kind == "input" and node.input:
        node.input[draw.randrange(len(node.input))] = draw.choice(
            [tensor.name for tensor in graph.initializer] + list(node.output)
        )
    elif kind == "constant":
        tensor = draw.choice(graph.initializer)
        array = onnx.numpy_helper.to_array(tensor)
        changed = draw.choice((array * 0, array[..., None], array.astype(np.float32), array.reshape(-1)[:1], -array))
        tensor.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(changed), tensor.name))
    elif kind == "shape":
        sizes = graph.input[0].type.tensor_type.shape.dim
        sizes[draw.randrange(len(sizes))].dim_value = draw.choice((0, 1, 5, 2**16, 2**40))
    return model.SerializeToString()


def _given(path: Path) -> Any:
    """Compile a file that holds its scales, and run it."""
    return _used(chip.compile(path, batch=2))


BATTERIES = (
    Battery(
        "tpu", tpu_files, _tpu, ".tpu", resealed=(*[resealed] * 9, swell_member), is_checked=True, names_file=False
    ),
    Battery("tpu network", whole_files, _tpu, ".tpu", damage=(resealed_values,), names_file=False),
    Battery("assembly", texts, _assembly, ".s", damage=TEXT, names_file=False),
    Battery("quantized onnx", onnx_files, _given, ".onnx", resealed=(changed_model,), names_file=False),
)
