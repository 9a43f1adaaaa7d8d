"""Storage of state values as .npy files, which NumPy alone can read.

Rule: a .npy file supports only NumPy's own dtypes. bfloat16 and other extended dtypes are stored as unsigned integers
of their width, and a typed random key as its raw words. The manifest has the original types.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anytpu.errors import ProgramError
from anytpu.files.npy import MAX_HEADER_BYTES, read_npy
from anytpu.program.leaves import leaf_text, state_names
from anytpu.program.program import Program, Tree

_MAGIC_BYTES = 16
"""Upper bound of the bytes before the header of an .npy file."""


def tensor_part(index: int) -> str:
    """Return the name of the part with the value of the leaf at an index."""
    return f"tensors/{index:03d}.npy"


def max_npy_bytes(spec: Any) -> int:
    """Return the maximum size in bytes of the part of a leaf of this shape and dtype.

    Example:
        >>> max_npy_bytes(jax.ShapeDtypeStruct((250,), "float32"))
        11016
    """
    return math.prod(spec.shape) * spec.dtype.itemsize + _MAGIC_BYTES + MAX_HEADER_BYTES


def tensors_to_npy(program: Program, tensors: Tree) -> list[tuple[str | None, bytes]]:
    """Return, for each value, the random generator of a typed key (None for an ordinary array) and its .npy file.

    Args:
        program: the program.
        tensors: tree of arrays with the structure, shapes and dtypes of the program's state.

    Raises:
        ProgramError: the tensors do not match the state; the message names the leaf.
    """
    structure = jax.tree.structure(program.state)
    if jax.tree.structure(tensors) != structure:
        raise ProgramError(
            f"The tensors must be nested like the state of {program.name!r}, {structure}, not "
            f"{jax.tree.structure(tensors)}."
        )
    stored = []
    for name, value, spec in zip(
        state_names(program), jax.tree.leaves(tensors), jax.tree.leaves(program.state), strict=True
    ):
        value = value if isinstance(value, jax.Array) else _canonical(value)
        if (value.shape, value.dtype) != (spec.shape, spec.dtype):
            raise ProgramError(
                f"The tensor {name!r} of {program.name!r} must be {leaf_text(spec)}, not {leaf_text(value)}."
            )
        stored.append(_stored(value))
    return stored


def npy_to_tensors(program: Program, contents: Sequence[bytes], generators: Sequence[str | None]) -> Tree:
    """Return the tree of values from the results of `tensors_to_npy`.

    Raises:
        ProgramError: a file does not match the state of the program.
    """
    leaves, structure = jax.tree.flatten(program.state)
    try:
        loaded = [read_npy(io.BytesIO(content), len(content)) for content in contents]
        values = [_value(*leaf) for leaf in zip(loaded, generators, leaves, strict=True)]
    except (ValueError, TypeError) as error:
        raise ProgramError(f"The values of its state are not what the state declares: {error}") from error
    return jax.tree.unflatten(structure, values)


def _canonical(value: Any) -> np.ndarray:
    """Return a value as a NumPy array with the dtype that JAX would use."""
    array = np.asarray(value)
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


def _stored(value: Any) -> tuple[str | None, bytes]:
    generator = None
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        generator, value = str(jax.random.key_impl(value)), jax.random.key_data(value)
    array = np.asarray(value)
    if array.dtype.kind == "V":
        array = array.view(f"uint{8 * array.itemsize}")
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, allow_pickle=False)
    return generator, buffer.getvalue()


def _value(array: np.ndarray, generator: str | None, spec: Any) -> Any:
    value = array if generator is None else jax.random.wrap_key_data(jnp.asarray(array), impl=generator)
    if generator is None and np.dtype(spec.dtype).kind == "V":
        value = array.view(spec.dtype)
    if (value.shape, value.dtype) != (spec.shape, spec.dtype):
        raise ValueError(f"{leaf_text(value)} is not {leaf_text(spec)}")
    return value
