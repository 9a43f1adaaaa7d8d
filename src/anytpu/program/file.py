"""The file format of a Program, which another process can run without the model's code.

Idea: a `.anytpu` file is a zip of

    program.bin         StableHLO of the step over a flat list of arrays, as `jax.export` serialises it
    program.json        the names, shapes, dtypes, layouts and nesting of those arrays (`manifest.py`)
    tensors/000.npy ... (optional) the values of the state, one file per leaf
    checksums.json      the sha-256 of each part

Rule: weights are inputs, never constants; no pickle anywhere. Per-replica code is stored in its form for one device:
the leading axis of each split array is the replica, and there are no collectives. So it is read back as whole-batch
code.

Read only files that you trust, as `jax.export` also requires: the checksums detect accidental damage, not attacks.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.export

from anytpu._calls import explain_arguments
from anytpu.errors import ProgramError
from anytpu.files.json_text import MAX_JSON_BYTES
from anytpu.program.archive import ArchiveParts, max_npy_bytes, npy_to_tensors, tensor_part, tensors_to_npy, write_parts
from anytpu.program.lowering import check_platforms, lower_traced, trace
from anytpu.program.makers import check_fixed
from anytpu.program.manifest import FORMAT, ProgramManifest, format_of, from_json, to_json, tree_entry, tree_of
from anytpu.program.program import Layout, Program, Tree, leaf_names, leaf_text, state_names
from anytpu.program.stablehlo_file import SUFFIX as STABLEHLO_SUFFIX
from anytpu.program.stablehlo_file import read_stablehlo

SUFFIX = ".anytpu"
"""File name suffix of a program file."""

_MAX_QUOTED = 600
_CODE, _MANIFEST = "program.bin", "program.json"


@explain_arguments
def write(
    program: Program, path: str | Path, tensors: Tree | None = None, platforms: tuple[str, ...] = ("cpu",)
) -> None:
    """Write a Program as a file that runs without the code that made it.

    Args:
        program: the program to write.
        path: path of the file; the name ends in ".anytpu". An existing file is replaced.
        tensors: values of the state to store, in its structure; None: those that the program carries, if any.
        platforms: target platforms, some of "cpu", "cuda" and "tpu". With more than one, `plan` shows no source lines.

    Raises:
        ProgramError: the program cannot be lowered or serialised, `tensors` do not fit its state, or the file cannot be
            written.
        ReplicaError: a new state of per-replica code differs between the replicas.

    Example:
        >>> write(program, "step.anytpu", tensors=state)
        >>> read("step.anytpu", tensors=True).tensors["w"].shape
        (3,)
    """
    place = _checked_path(path)
    check_platforms(platforms)
    values = program.tensors if tensors is None else tensors
    stored = [] if values is None else tensors_to_npy(program, values)
    generators = None if values is None else tuple(generator for generator, _ in stored)
    manifest, code = encode(program, platforms, generators=generators)
    arrays = {tensor_part(index): content for index, (_, content) in enumerate(stored)}
    write_parts(place, {_MANIFEST: manifest, _CODE: code, **arrays})


def encode(
    program: Program,
    platforms: tuple[str, ...],
    custom_calls: tuple[str, ...] = (),
    generators: tuple[str | None, ...] | None = None,
) -> tuple[bytes, bytes]:
    """Return the manifest and the code of a program file.

    Args:
        program: the program.
        platforms: target platforms.
        custom_calls: custom calls that the code may contain although JAX does not promise to keep them.
        generators: for each stored value of the state its random generator; None if no values are stored.

    Raises:
        ProgramError: the program cannot be lowered or serialised.
        ReplicaError: a new state of per-replica code differs between the replicas.
    """
    traced = trace(program)
    code = _serialise(program, lower_traced(program, traced, platforms, custom_calls))
    manifest = ProgramManifest(
        name=program.name,
        mode=program.mode,
        replicas=program.replicas,
        platforms=platforms,
        jax=jax.__version__,
        state=tree_entry(program.state, "state", names=program.state_names),
        batch=tree_entry(program.batch, "batch", layouts=[layout for _, layout in program.leaves()]),
        outputs=tree_entry(traced.out_info[1], "outputs"),
        tensors=generators,
        placement=program.placement,
    )
    return to_json(manifest), code


def decode(manifest: bytes, code: bytes) -> Program:
    """Return the Program of a manifest and its code, without values of the state.

    Raises:
        ProgramError: they cannot be read, or do not fit each other.
    """
    program = _program(from_json(manifest), code)
    _check_width(program)
    return program


@explain_arguments
def read(path: str | Path, tensors: bool = False) -> Program:
    """Read a Program from a file. Read only files that you trust.

    The program runs on the platforms that it was written for. Containers other than dict, list and tuple are read back
    as tuples. Per-replica code is read back as whole-batch code (`replicas` is None) on stacked arrays.

    Args:
        path: path of the file.
        tensors: also read the values of the state into `program.tensors`, as NumPy arrays.

    Raises:
        ProgramError: the file is missing, is not a program file, is truncated, was altered, or has a newer format.
            Also raised if `tensors` is true and the file has no values of the state.

    Example:
        >>> write(program, "step.anytpu")
        >>> state, outputs = read("step.anytpu").step(state, batch)
    """
    place = _checked_path(path)
    # 1. Read manifest and code. The version is checked first; see `_check_format`.
    with ArchiveParts(place, (_MANIFEST, _CODE)) as parts:
        _check_format(place, parts)
        description, code = parts.read(_MANIFEST, MAX_JSON_BYTES), parts.read(_CODE)
        with _naming_file(place):
            manifest = from_json(description)
            program = decode(description, code)
        # 2. Read the values of the state, if they are wanted.
        if not tensors:
            return program
        if manifest.tensors is None:
            raise ProgramError(
                f"The program file {str(place)!r} does not hold the values of the state. Write it with "
                "anytpu.program.write(program, path, tensors=state)."
            )
        arrays = [
            parts.read(tensor_part(index), max_npy_bytes(spec))
            for index, spec in enumerate(jax.tree.leaves(program.state))
        ]
    # 3. Convert them outside the `with` block: the file is closed then.
    with _naming_file(place):
        return dataclasses.replace(program, tensors=npy_to_tensors(program, arrays, manifest.tensors))


class FileMaker:
    """Makes a Program from the path of a program file."""

    def claims(self, job: Any) -> bool:
        """Return whether the job is the path of a file that holds a step."""
        return isinstance(job, str | Path) and Path(job).suffix in (SUFFIX, STABLEHLO_SUFFIX)

    def make(
        self,
        job: Any,
        input_specs: Any,
        mode: str,
        tensors: bool,
        *,
        batch_size: int | None = None,
        precision: str | None = None,
        batch_axis: Tree = None,
    ) -> Program:
        """Read the program. Its shapes, precision and mode are fixed in the file.

        Args:
            job: the path of a program file (".anytpu") or of a StableHLO file (".mlir").
            input_specs: None; for a StableHLO file also the `Layout` of arguments, by index.
            mode: ignored.
            tensors: also read the values of the state; a StableHLO file has none.
            batch_size: None, or the number of rows in the file.
            precision: None.
            batch_axis: None; the file defines its example axes.

        Raises:
            ProgramError: the file cannot be read, or the caller requests shapes, a precision, a batch size or values
                that the file does not have.
        """
        if Path(job).suffix == STABLEHLO_SUFFIX:
            if tensors:
                raise ProgramError(f"The StableHLO file {str(job)!r} holds no values of a state: leave tensors out.")
            program = read_stablehlo(job, input_specs)
            check_fixed(f"The StableHLO file {str(job)!r}", program, batch_size, precision, batch_axis)
            return program
        if input_specs is not None:
            raise ProgramError(
                f"The shapes of the program file {str(job)!r} are fixed in the file: leave input_specs out."
            )
        program = read(job, tensors=tensors)
        check_fixed(f"The program file {str(job)!r}", program, batch_size, precision, batch_axis)
        return program


FILE_MAKER = FileMaker()
"""The entry point "file" of the group "anytpu.programs"."""


def _checked_path(path: str | Path) -> Path:
    place = Path(path)
    if place.suffix == STABLEHLO_SUFFIX:
        raise ProgramError(
            f"{str(path)!r} is the name of a StableHLO file, and a program file's ends in {SUFFIX!r}. Make a Program "
            f"of it with anytpu.program.of({str(path)!r}); lower(program).mlir_module() returns StableHLO."
        )
    if place.suffix != SUFFIX:
        raise ProgramError(f"The name of a program file must end in {SUFFIX!r}, unlike {str(path)!r}.")
    return place


@contextlib.contextmanager
def _naming_file(place: Path) -> Iterator[None]:
    """Add the path of the file to errors raised in a block."""
    try:
        yield
    except ProgramError as error:
        why = str(error)
        # The inner error may quote a damaged manifest of any length.
        why = why if len(why) <= _MAX_QUOTED else f"{why[:_MAX_QUOTED]}..."
        raise ProgramError(f"The program file {str(place)!r} cannot be used. {why}") from error


def _check_format(place: Path, parts: ArchiveParts) -> None:
    # Check the version before any checksum: a newer format may store its checksums elsewhere.
    version = format_of(parts.unchecked(_MANIFEST, MAX_JSON_BYTES))
    if version is not None and version > FORMAT:
        raise ProgramError(
            f"The program file {str(place)!r} is of format {version}, and this release of anytpu reads formats up to "
            f"{FORMAT}. Install a newer one: pip install --upgrade anytpu"
        )


def _serialise(program: Program, exported: jax.export.Exported) -> bytes:
    try:
        return bytes(exported.serialize())
    except (ValueError, NotImplementedError) as error:
        raise ProgramError(f"The program {program.name!r} cannot be written as a file: {error}") from error


def _deserialise(manifest: ProgramManifest, code: bytes) -> jax.export.Exported:
    try:
        return jax.export.deserialize(bytearray(code))
    except Exception as error:  # JAX parses it with flatbuffers and MLIR, and does not wrap their exceptions.
        raise ProgramError(
            f"JAX {jax.__version__} cannot read the code in it, which JAX {manifest.jax} wrote: {error}"
        ) from error


def _program(manifest: ProgramManifest, code: bytes) -> Program:
    exported = _deserialise(manifest, code)
    states, batches = len(manifest.state.leaves), len(manifest.batch.leaves)
    if (len(exported.in_avals), len(exported.out_avals)) != (states + batches, states + len(manifest.outputs.leaves)):
        raise ProgramError("Its code takes or returns another number of arrays than its manifest lists.")
    if manifest.placement is not None and len(manifest.placement.specs) != states + batches:
        raise ProgramError("Its manifest places another number of arrays than it lists.")
    state = tree_of(manifest.state, exported.in_avals[:states])
    batch = tree_of(manifest.batch, exported.in_avals[states:])
    outputs = tree_of(manifest.outputs, exported.out_avals[states:])
    layouts = [Layout(leaf.axis) for leaf in manifest.batch.leaves]
    return Program(
        name=manifest.name,
        step=_nested_step(exported, state, outputs),
        state=state,
        batch=batch,
        layout=jax.tree.unflatten(jax.tree.structure(batch), layouts),
        mode=manifest.mode,
        state_names=tuple(leaf.name for leaf in manifest.state.leaves),
        placement=manifest.placement,
    )


def _nested_step(
    exported: jax.export.Exported, state: Tree, outputs: Tree
) -> Callable[[Tree, Tree], tuple[Tree, Tree]]:
    state_structure, output_structure = jax.tree.structure(state), jax.tree.structure(outputs)

    def step(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        flat = exported.call(*jax.tree.leaves((state, batch)))
        count = state_structure.num_leaves
        return jax.tree.unflatten(state_structure, flat[:count]), jax.tree.unflatten(output_structure, flat[count:])

    return step


def _check_width(program: Program) -> None:
    for name, spec in zip(
        (*state_names(program), *leaf_names(program.batch, "batch")),
        jax.tree.leaves((program.state, program.batch)),
        strict=True,
    ):
        if jax.dtypes.canonicalize_dtype(spec.dtype, allow_extended_dtype=True) != spec.dtype:
            raise ProgramError(
                f"Its {name!r} is {leaf_text(spec)}, and JAX computes with 32 bits in this process: set "
                'JAX_ENABLE_X64=1, or call jax.config.update("jax_enable_x64", True) first.'
            )
