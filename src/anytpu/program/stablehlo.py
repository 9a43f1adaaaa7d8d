"""A module of StableHLO text: what its main function takes and returns, and the module as `jax.export` calls it.

Idea: `jax.export` runs and compiles what it has serialised, and all that it needs is a module in the portable form of
StableHLO. So text that anyone wrote (JAX, PyTorch/XLA, a compiler's dump) is parsed and brought to that form; JAX
exports a function of the same arguments and results that computes nothing, and the module takes the place of its code.

Rule: every shape is fixed. What is not StableHLO is refused here, by its line, before a compiler sees it.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
from jax.extend.mlir import ir, serialize_portable_artifact
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir

from anytpu.errors import ProgramError

MAIN = "main"
"""The function that is run."""

DIALECTS = ("builtin", "func", "stablehlo", "chlo", "sdy", "mhlo", "vhlo")
"""The dialects of MLIR whose operations XLA takes."""

_DTYPES = {
    "i1": "bool",
    **{f"{sign}i{bits}": f"{kind}{bits}" for sign, kind in (("", "int"), ("u", "uint")) for bits in (4, 8, 16, 32, 64)},
    **{"f16": "float16", "f32": "float32", "f64": "float64", "bf16": "bfloat16"},
    **{"complex<f32>": "complex64", "complex<f64>": "complex128"},
    **{"f8E4M3FN": "float8_e4m3fn", "f8E5M2": "float8_e5m2"},
}
_OLD_SHARDING, _SHARDING = "mhlo.sharding", "sdy.sharding"
_DONATED = "tf.aliasing_output"


@dataclasses.dataclass(frozen=True)
class Argument:
    """One argument of the main function.

    Attributes:
        spec: its shape and dtype.
        sharding: the axes of the mesh that each of its dimensions is split over, or None where nothing is said.
        becomes: the number of the result that takes its memory, or None.
    """

    spec: jax.ShapeDtypeStruct
    sharding: tuple[tuple[str, ...], ...] | None = None
    becomes: int | None = None


@dataclasses.dataclass(frozen=True)
class StableHLO:
    """A module that can be called.

    Attributes:
        arguments: what its main function takes.
        results: the specs of what it returns.
        mesh: name and size of each axis of the mesh that it was written for; () where it names none.
        exported: the module as JAX calls it, on any platform; on as many devices as its mesh has where something inside
            of it lies on the mesh, else on any number.
    """

    arguments: tuple[Argument, ...]
    results: tuple[jax.ShapeDtypeStruct, ...]
    mesh: tuple[tuple[str, int], ...]
    exported: jax.export.Exported


def parse(content: bytes) -> StableHLO:
    """Parse StableHLO, as text or as MLIR's bytecode.

    Raises:
        ProgramError: it is none, or has no one main function, or leaves a size open; a sentence about "it".
    """
    with mlir.make_ir_context():
        module = _module(content)
        _check_dialects(module)
        main = _main(module)
        arguments = tuple(_arguments(main))
        results = tuple(_spec(f"result {number}", of) for number, of in enumerate(_type(main).results))
        mesh = _mesh(module)
        _plain(module, main)
        code, devices = _portable(module), 1 if _is_unplaced(module) else math.prod(size for _, size in mesh)
    return StableHLO(arguments, results, mesh, _exported(arguments, results, devices, code))


def _module(content: bytes) -> ir.Module:
    try:
        return ir.Module.parse(content)
    except ir.MLIRError as error:
        raise ProgramError(f"It is not StableHLO: {_diagnostic(error)}.") from error


_MOST_SAID = 300
"""Characters of the parser's complaint that are shown: it repeats names, however long."""


def _diagnostic(error: Exception) -> str:
    """Return the first complaint of MLIR's parser, with its line: 'line 4, column 21: invalid SSA name'."""
    found = re.search(r'error: "-":(\d+):(\d+): (.*)', str(error))
    if found is None:
        return str(error).strip().splitlines()[-1][:_MOST_SAID]
    line, column, said = found.groups()
    said = said.strip().rstrip(".")[:_MOST_SAID]
    return f"line {line}, column {column}: {said}" if int(line) else said


def _check_dialects(module: ir.Module) -> None:
    for operation in _operations(module.operation):
        if operation.name.split(".")[0] not in DIALECTS:
            raise ProgramError(
                f"It is MLIR, and not StableHLO: it has the operation {operation.name!r}. Lower it to StableHLO first."
            )


def _operations(operation: Any) -> Iterator[Any]:
    yield operation
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from _operations(inner.operation)


def _main(module: ir.Module) -> Any:
    """Return the function named main, or the only one that is public; it is named main then."""
    functions = [one for one in module.body.operations if one.operation.name == "func.func"]
    names = [ir.StringAttr(one.attributes["sym_name"]).value for one in functions]
    if MAIN in names:
        return functions[names.index(MAIN)]
    public = [one for one in functions if not _is_private(one)]
    if len(public) != 1:
        listed = ", ".join(map(repr, names[:5])) or "none"
        raise ProgramError(f"It has no function named 'main', and no single public one; its functions are {listed}.")
    public[0].attributes["sym_name"] = ir.StringAttr.get(MAIN)
    return public[0]


def _is_private(function: Any) -> bool:
    attributes = function.attributes
    return "sym_visibility" in attributes and ir.StringAttr(attributes["sym_visibility"]).value == "private"


def _type(main: Any) -> ir.FunctionType:
    return ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)


def _arguments(main: Any) -> Iterator[Argument]:
    types = _type(main).inputs
    given = list(ir.ArrayAttr(main.attributes["arg_attrs"])) if "arg_attrs" in main.attributes else [None] * len(types)
    for number, (of, attributes) in enumerate(zip(types, given, strict=True)):
        known = {one.name: one.attr for one in ir.DictAttr(attributes)} if attributes is not None else {}
        if _OLD_SHARDING in known:
            raise ProgramError(
                f"Its argument {number} is laid out by {_OLD_SHARDING}, which XLA's older partitioner reads. Lower it "
                'again with jax.config.update("jax_use_shardy_partitioner", True), which writes sdy.sharding.'
            )
        yield Argument(
            spec=_spec(f"argument {number}", of),
            sharding=_sharding(number, str(known[_SHARDING])) if _SHARDING in known else None,
            becomes=ir.IntegerAttr(known[_DONATED]).value if _DONATED in known else None,
        )


def _spec(what: str, of: Any) -> jax.ShapeDtypeStruct:
    text = str(of)
    if not text.startswith("tensor<"):
        raise ProgramError(f"Its {what} is {text}; a program takes and gives tensors.")
    ranked = ir.RankedTensorType(of) if not text.startswith("tensor<*") else None
    if ranked is None or not ranked.has_static_shape:
        raise ProgramError(
            f"Its {what} is {text}, which leaves a size open, and a TPU program has one size for each. Lower it again "
            "for arrays of fixed shapes, the batch included."
        )
    element = str(ranked.element_type)
    if element not in _DTYPES:
        raise ProgramError(f"Its {what} is {text}, and JAX has no arrays of {element}.")
    return jax.ShapeDtypeStruct(tuple(ranked.shape), _dtype(what, text, _DTYPES[element]))


def _dtype(what: str, text: str, name: str) -> Any:
    dtype = jnp.dtype(name)
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ProgramError(
            f"Its {what} is {text}, and JAX computes with 32 bits in this process: set JAX_ENABLE_X64=1, or call "
            'jax.config.update("jax_enable_x64", True) first.'
        )
    return dtype


def _mesh(module: ir.Module) -> tuple[tuple[str, int], ...]:
    """Return the axes of the mesh; () where none of more than one device is declared."""
    texts = {str(one.attributes["mesh"]) for one in module.body.operations if one.operation.name == "sdy.mesh"}
    meshes = {tuple((name, int(size)) for name, size in re.findall(r'"([^"]+)"=(\d+)', text)) for text in texts}
    meshes.discard(())
    if len(meshes) > 1:
        raise ProgramError(f"It names {len(meshes)} meshes of devices, and a program has one.")
    return meshes.pop() if meshes else ()


def _sharding(number: int, text: str) -> tuple[tuple[str, ...], ...]:
    """Return the axes of each dimension, from '#sdy.sharding<@mesh, [{"x"}, {}]>'."""
    dimensions = re.search(r"\[(.*?)\]", text)
    if dimensions is None or ":(" in text:
        raise ProgramError(f"Its argument {number} is laid out by {text}, which splits an axis of the mesh in parts.")
    return tuple(tuple(re.findall(r'"([^"]+)"', one)) for one in re.findall(r"\{(.*?)\}", dimensions.group(1)))


def _plain(module: ir.Module, main: Any) -> None:
    """Take off what only says how a whole module is called: donations, shardings, the mesh. The caller says that."""
    for name in ("arg_attrs", "res_attrs"):
        if name in main.attributes:
            del main.attributes[name]
    if _is_unplaced(module):
        for mesh in [one for one in module.body.operations if one.operation.name == "sdy.mesh"]:
            mesh.operation.erase()


def _is_unplaced(module: ir.Module) -> bool:
    """Say whether nothing inside of a module lies on a mesh, so that it can be called on any number of devices."""
    return not any(
        (one.name.startswith("sdy.") and one.name != "sdy.mesh") or "#sdy.sharding" in str(one.attributes)
        for one in _operations(module.operation)
    )


def _portable(module: ir.Module) -> bytes:
    version = stablehlo.get_current_version()
    try:
        try:
            return serialize_portable_artifact(module, version, True)
        except TypeError:  # jaxlib 0.10.0 takes bytecode; delete this with the pin jax>=0.10.1.
            return serialize_portable_artifact(mlir.module_to_bytecode(module), version, True)
    except (ValueError, RuntimeError, ir.MLIRError) as error:
        raise ProgramError(f"It cannot be brought to StableHLO's portable form: {_diagnostic(error)}.") from error


def _exported(
    arguments: tuple[Argument, ...], results: tuple[jax.ShapeDtypeStruct, ...], devices: int, code: bytes
) -> jax.export.Exported:
    nothing = jax.jit(lambda *_: tuple(jnp.zeros(one.shape, one.dtype) for one in results), keep_unused=True)
    export = jax.export.export(nothing, platforms=("tpu",), disabled_checks=[jax.export.DisabledSafetyCheck.platform()])
    exported = export(*[one.spec for one in arguments])
    return dataclasses.replace(exported, mlir_module_serialized=code, nr_devices=devices)
