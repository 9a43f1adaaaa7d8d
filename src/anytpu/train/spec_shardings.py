"""Check the shardings of input specs: Programs of Keras models and estimators split axis 0 over all devices.

Rule: a sharding of that layout is ignored, as is that of an array on one device. Any other raises an error that names
the input.
"""

from __future__ import annotations

import math

import jax
from jax.sharding import NamedSharding, Sharding

from anytpu.errors import ProgramError
from anytpu.program.leaves import leaf_names
from anytpu.program.program import Tree


def refuse_other_layouts(job: str, input_specs: Tree) -> None:
    """Reject an input sharding that does not split axis 0 alone, over all devices of its mesh.

    Args:
        job: the job, as errors name it: "the model 'net'".
        input_specs: tree of arrays or `jax.ShapeDtypeStruct`.

    Raises:
        ProgramError: an input has such a sharding.
    """
    for name, leaf in zip(leaf_names(input_specs, "input_specs"), jax.tree.leaves(input_specs), strict=True):
        sharding = getattr(leaf, "sharding", None) if isinstance(leaf, jax.ShapeDtypeStruct | jax.Array) else None
        if sharding is not None and not _is_data_parallel(sharding):
            raise ProgramError(
                f"{name!r} of the input_specs of {job} has the sharding {_text(sharding)}, which its Program would not "
                "follow: it is data-parallel, axis 0 of each input split over all devices. Leave the sharding out, or "
                "plan the step as a JAX function, step(state, batch), whose shardings are followed"
            )


def _is_data_parallel(sharding: Sharding) -> bool:
    if not isinstance(sharding, NamedSharding):
        return sharding.num_devices == 1
    first, *others = (*sharding.spec, None)
    names = first if isinstance(first, tuple) else (first,)
    sizes = dict(sharding.mesh.shape)
    return not any(others) and math.prod(sizes.get(name, 1) for name in names) == sharding.mesh.size


def _text(sharding: Sharding) -> str:
    if not isinstance(sharding, NamedSharding):
        return repr(sharding)
    axes = ", ".join(f"{name}={size}" for name, size in sharding.mesh.shape.items())
    return f"{sharding.spec} over a mesh ({axes})"
