"""Parsing of StableHLO modules: the arguments and results of the main function, and the module as a JAX export.

Idea: `jax.export` can run and compile any module in the portable form of StableHLO. So a module from any source (JAX,
PyTorch/XLA, a compiler's dump) is parsed and converted to that form. Then JAX exports a dummy function with the same
arguments and results, and the module replaces its code.

Rule: every shape is static. Anything that is not StableHLO is rejected here with its line, before a compiler sees it.
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
"""Name of the entry function."""

DIALECTS = ("builtin", "func", "stablehlo", "chlo", "sdy", "mhlo", "vhlo")
"""The MLIR dialects whose operations XLA accepts."""

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
class MainArgument:
    """One argument of the main function.

    Attributes:
        spec: shape and dtype.
        sharding: for each dimension the mesh axes that split it; None without a sharding attribute.
        becomes: index of the result that reuses its memory, or None.
    """

    spec: jax.ShapeDtypeStruct
    sharding: tuple[tuple[str, ...], ...] | None = None
    becomes: int | None = None


@dataclasses.dataclass(frozen=True)
class StableHLO:
    """A module that can be called.

    Attributes:
        arguments: the arguments of its main function.
        results: specs of the results.
        mesh: (name, size) of each axis of its mesh; () without a mesh.
        exported: the module as a JAX export for any platform. It needs as many devices as the mesh if an operation in
            it has a sharding; otherwise any number.
    """

    arguments: tuple[MainArgument, ...]
    results: tuple[jax.ShapeDtypeStruct, ...]
    mesh: tuple[tuple[str, int], ...]
    exported: jax.export.Exported


def parse(content: bytes) -> StableHLO:
    """Parse StableHLO, as text or as MLIR's bytecode.

    Raises:
        ProgramError: the content is not StableHLO, has not exactly one main function, or has a dynamic shape. The
            message is a sentence about "it".
    """
    with mlir.make_ir_context():
        # 1. Parse the module, and check that it is StableHLO.
        module = _module(content)
        _check_dialects(module)
        main = _main(module)
        # 2. Read what describes its call, before these attributes are removed.
        arguments = tuple(_arguments(main))
        results = tuple(_spec(f"result {index}", result) for index, result in enumerate(_type(main).results))
        mesh = _mesh(module)
        # 3. Convert the rest to the portable form.
        _remove_call_attributes(module, main)
        code, devices = _portable(module), 1 if _is_unplaced(module) else math.prod(size for _, size in mesh)
    return StableHLO(arguments, results, mesh, _exported(arguments, results, devices, code))


def _module(content: bytes) -> ir.Module:
    try:
        return ir.Module.parse(content)
    except ir.MLIRError as error:
        raise ProgramError(f"It is not StableHLO: {_diagnostic(error)}.") from error


_MAX_DIAGNOSTIC = 300
"""Maximum number of characters of a parser diagnostic in an error: it repeats names of any length."""


def _diagnostic(error: Exception) -> str:
    """Return the first diagnostic of MLIR's parser, with its line: 'line 4, column 21: invalid SSA name'."""
    match = re.search(r'error: "-":(\d+):(\d+): (.*)', str(error))
    if match is None:
        return str(error).strip().splitlines()[-1][:_MAX_DIAGNOSTIC]
    line, column, message = match.groups()
    message = message.strip().rstrip(".")[:_MAX_DIAGNOSTIC]
    return f"line {line}, column {column}: {message}" if int(line) else message


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
    """Return the function named main, or the only public one, which is renamed to main."""
    functions = [operation for operation in module.body.operations if operation.operation.name == "func.func"]
    names = [ir.StringAttr(function.attributes["sym_name"]).value for function in functions]
    if MAIN in names:
        return functions[names.index(MAIN)]
    public = [function for function in functions if not _is_private(function)]
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


def _arguments(main: Any) -> Iterator[MainArgument]:
    types = _type(main).inputs
    has_attributes = "arg_attrs" in main.attributes
    attributes = list(ir.ArrayAttr(main.attributes["arg_attrs"])) if has_attributes else [None] * len(types)
    for index, (argument, dictionary) in enumerate(zip(types, attributes, strict=True)):
        known = {entry.name: entry.attr for entry in ir.DictAttr(dictionary)} if dictionary is not None else {}
        if _OLD_SHARDING in known:
            raise ProgramError(
                f"Its argument {index} is sharded by {_OLD_SHARDING}, which XLA's older partitioner reads. Lower it "
                'again with jax.config.update("jax_use_shardy_partitioner", True), which writes sdy.sharding.'
            )
        yield MainArgument(
            spec=_spec(f"argument {index}", argument),
            sharding=_sharding(index, str(known[_SHARDING])) if _SHARDING in known else None,
            becomes=ir.IntegerAttr(known[_DONATED]).value if _DONATED in known else None,
        )


def _spec(what: str, tensor_type: Any) -> jax.ShapeDtypeStruct:
    text = str(tensor_type)
    if not text.startswith("tensor<"):
        raise ProgramError(f"Its {what} is {text}; a program takes and returns tensors.")
    ranked = ir.RankedTensorType(tensor_type) if not text.startswith("tensor<*") else None
    if ranked is None or not ranked.has_static_shape:
        raise ProgramError(
            f"Its {what} is {text}, which has a dynamic size, and a TPU program has static shapes. Lower it again for "
            "arrays of fixed shapes, the batch included."
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
    """Return the axes of the mesh; () if no mesh of more than one device is declared."""
    declared = [operation for operation in module.body.operations if operation.operation.name == "sdy.mesh"]
    texts = {str(operation.attributes["mesh"]) for operation in declared}
    meshes = {tuple((name, int(size)) for name, size in re.findall(r'"([^"]+)"=(\d+)', text)) for text in texts}
    meshes.discard(())
    if len(meshes) > 1:
        raise ProgramError(f"It names {len(meshes)} meshes of devices, and a program has one.")
    return meshes.pop() if meshes else ()


def _sharding(index: int, text: str) -> tuple[tuple[str, ...], ...]:
    """Return the axes of each dimension, from '#sdy.sharding<@mesh, [{"x"}, {}]>'."""
    dimensions = re.search(r"\[(.*?)\]", text)
    if dimensions is None or ":(" in text:
        raise ProgramError(f"Its argument {index} is sharded by {text}, which splits an axis of the mesh in parts.")
    return tuple(tuple(re.findall(r'"([^"]+)"', axes)) for axes in re.findall(r"\{(.*?)\}", dimensions.group(1)))


def _remove_call_attributes(module: ir.Module, main: Any) -> None:
    """Remove attributes that only describe the call of the module: donations, shardings, the mesh.

    The caller sets them again.
    """
    for name in ("arg_attrs", "res_attrs"):
        if name in main.attributes:
            del main.attributes[name]
    if _is_unplaced(module):
        for mesh in [operation for operation in module.body.operations if operation.operation.name == "sdy.mesh"]:
            mesh.operation.erase()


def _is_unplaced(module: ir.Module) -> bool:
    """Return whether no operation of a module has a sharding, so that it can run on any number of devices."""
    return not any(
        (operation.name.startswith("sdy.") and operation.name != "sdy.mesh")
        or "#sdy.sharding" in str(operation.attributes)
        for operation in _operations(module.operation)
    )


def _portable(module: ir.Module) -> bytes:
    version = stablehlo.get_current_version()
    try:
        try:
            return serialize_portable_artifact(module, version, True)
        except TypeError:  # jaxlib 0.10.0 takes bytecode; delete this with the pin jax>=0.10.1.
            return serialize_portable_artifact(mlir.module_to_bytecode(module), version, True)
    except (ValueError, RuntimeError, ir.MLIRError) as error:
        raise ProgramError(f"It cannot be converted to StableHLO's portable form: {_diagnostic(error)}.") from error


def _exported(
    arguments: tuple[MainArgument, ...], results: tuple[jax.ShapeDtypeStruct, ...], devices: int, code: bytes
) -> jax.export.Exported:
    """Return the export of a dummy function with these arguments and results, with its code replaced by `code`."""
    dummy = jax.jit(lambda *_: tuple(jnp.zeros(result.shape, result.dtype) for result in results), keep_unused=True)
    export = jax.export.export(dummy, platforms=("tpu",), disabled_checks=[jax.export.DisabledSafetyCheck.platform()])
    exported = export(*[argument.spec for argument in arguments])
    return dataclasses.replace(exported, mlir_module_serialized=code, nr_devices=devices)
