"""A StableHLO file (".mlir") as a Program.

Idea: such a file has no states, names or rows, but some attributes. A donated argument, whose memory a result reuses,
is state, and that result is the new state. If arguments have shardings over a mesh, the Program has that placement, and
the example axis is the one that a data axis of the mesh splits. All other arguments are batch. They are replicated
unless the user declares that their rows are split.

Rule: nothing is guessed from shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from anytpu.errors import ProgramError
from anytpu.files.opening import read_file
from anytpu.program.batch_axes import split_layout
from anytpu.program.program import REPLICATED, Layout, Placement, Program
from anytpu.program.stablehlo import StableHLO, parse
from anytpu.program.trial import try_parsing

SUFFIX = ".mlir"
"""File name suffix of a StableHLO file."""


def read_stablehlo(path: str | Path, layouts: Mapping[int, Layout] | None = None) -> Program:
    """Read a Program from a StableHLO file, text or bytecode.

    Args:
        path: path of the file.
        layouts: layouts of arguments of its main function, by index: `{1: ROWS}`; other arguments are replicated.

    Raises:
        ProgramError: the file cannot be read, is not StableHLO with one main function and static shapes, or the layouts
            do not fit its arguments.
    """
    try:
        content = read_file(Path(path))
        if not content.strip():
            raise ProgramError("The file is empty: write jax.jit(step).lower(...).as_text() into it.")
        try_parsing(content)
        module = parse(content)
        return _program(Path(path).stem, module, _layouts(module, layouts))
    except OSError as error:
        raise ProgramError(f"The StableHLO file {str(path)!r} cannot be read: {error.strerror or error}.") from error
    except ProgramError as error:
        raise ProgramError(f"The StableHLO file {str(path)!r} cannot be used. {error}") from error


def _layouts(module: StableHLO, layouts: Mapping[int, Layout] | None) -> list[Layout]:
    count = len(module.arguments)
    is_mapping = isinstance(layouts, Mapping) and all(isinstance(layout, Layout) for layout in layouts.values())
    if layouts is not None and not is_mapping:
        raise ProgramError(
            "Its shapes are fixed; input_specs can only name the arguments that are split over the devices, as "
            f"{{number: anytpu.program.ROWS}}, and not {layouts!r}."
        )
    for index, layout in (layouts or {}).items():
        if index not in range(count):
            raise ProgramError(f"It has no argument {index!r}: its {count} arguments count from 0.")
        argument = module.arguments[index]
        if layout.axis is not None and argument.becomes is not None:
            raise ProgramError(f"Its argument {index} is state, whose memory a result takes: that is REPLICATED.")
        if layout.axis is not None and len(argument.spec.shape) <= layout.axis:
            raise ProgramError(f"Its argument {index} has the shape {argument.spec.shape} and no rows to split.")
    return [(layouts or {}).get(index, REPLICATED) for index in range(count)]


def _program(name: str, module: StableHLO, layouts: list[Layout]) -> Program:
    state, batch = _indices(module)
    arguments, placement = module.arguments, _placement(module, (*state, *batch))
    specs = [arguments[index].spec for index in batch]
    layout, note = tuple(layouts[index] for index in batch), ""
    if placement is not None and all(leaf_layout == REPLICATED for leaf_layout in layout):
        layout, note = split_layout(tuple(f"argument {index}" for index in batch), specs, placement)
    return Program(
        name=f"{name}/{'train' if state else 'infer'}",
        step=_step(module, state, batch),
        state=tuple(arguments[index].spec for index in state),
        batch=tuple(specs),
        layout=layout,
        mode="train" if state else "infer",
        state_names=tuple(f"argument {index}" for index in state),
        placement=placement,
        notes=(note,) if note else (),
    )


def _indices(module: StableHLO) -> tuple[list[int], list[int]]:
    """Return the indices of the state arguments, and of the batch arguments."""
    indices = range(len(module.arguments))
    state = [index for index in indices if _is_state(module, index)]
    return state, [index for index in indices if index not in state]


def _is_state(module: StableHLO, index: int) -> bool:
    argument = module.arguments[index]
    return argument.becomes is not None and module.results[argument.becomes] == argument.spec


def _placement(module: StableHLO, indices: Sequence[int]) -> Placement | None:
    if not module.mesh:
        return None
    return Placement(module.mesh, tuple(module.arguments[index].sharding or () for index in indices))


def _step(module: StableHLO, state: list[int], batch: list[int]) -> Callable[[Any, Any], tuple[Any, Any]]:
    order = [*state, *batch]
    new_state = [module.arguments[index].becomes for index in state]

    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        arguments = dict(zip(order, jax.tree.leaves((state, batch)), strict=True))
        results = module.exported.call(*[arguments[index] for index in range(len(arguments))])
        outputs = tuple(result for index, result in enumerate(results) if index not in new_state)
        return tuple(results[index] for index in new_state if index is not None), outputs

    return step
