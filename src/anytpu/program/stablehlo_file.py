"""A StableHLO file (".mlir") as a Program.

Idea: such a file says nothing of states, names or rows; what it does say is kept. An argument whose memory a result
takes (it was donated) is state, that result the new state. Where arguments are laid out over a mesh, the Program is
placed on it, and examples lie along the axis that a data axis of the mesh splits. All else is batch, and lies whole on
each device unless the user says that its rows are split.

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
"""How the name of a StableHLO file ends."""


def read_stablehlo(path: str | Path, layouts: Mapping[int, Layout] | None = None) -> Program:
    """Read a Program from a StableHLO file, text or bytecode.

    Args:
        path: the file.
        layouts: how arguments of its main function, by their numbers, lie on the devices: `{1: ROWS}`; those that are
            left out lie whole on each.

    Raises:
        ProgramError: the file cannot be read, is no StableHLO of one main function and fixed shapes, or the layouts do
            not fit its arguments.
    """
    try:
        content = read_file(Path(path))
        if not content.strip():
            raise ProgramError("The file is empty: write jax.jit(step).lower(...).as_text() into it.")
        try_parsing(content)
        module = parse(content)
        given = _layouts(module, layouts)
        return _program(Path(path).stem, module, given)
    except OSError as error:
        raise ProgramError(f"The StableHLO file {str(path)!r} cannot be read: {error.strerror or error}.") from error
    except ProgramError as error:
        raise ProgramError(f"The StableHLO file {str(path)!r} cannot be used. {error}") from error


def _layouts(module: StableHLO, given: Mapping[int, Layout] | None) -> list[Layout]:
    count = len(module.arguments)
    is_mapping = isinstance(given, Mapping) and all(isinstance(one, Layout) for one in given.values())
    if given is not None and not is_mapping:
        raise ProgramError(
            "Its shapes are fixed; input_specs can only say which of its arguments lie split over the devices, as "
            f"{{number: anytpu.program.ROWS}}, and not {given!r}."
        )
    for number, layout in (given or {}).items():
        if number not in range(count):
            raise ProgramError(f"It has no argument {number!r}: its {count} arguments count from 0.")
        argument = module.arguments[number]
        if layout.axis is not None and argument.becomes is not None:
            raise ProgramError(f"Its argument {number} is state, whose memory a result takes: that is REPLICATED.")
        if layout.axis is not None and len(argument.spec.shape) <= layout.axis:
            raise ProgramError(f"Its argument {number} has the shape {argument.spec.shape} and no rows to split.")
    return [(given or {}).get(number, REPLICATED) for number in range(count)]


def _program(name: str, module: StableHLO, layouts: list[Layout]) -> Program:
    state, batch = _numbers(module)
    arguments, placement = module.arguments, _placement(module, (*state, *batch))
    specs = [arguments[number].spec for number in batch]
    layout, said = tuple(layouts[number] for number in batch), ""
    if placement is not None and all(one == REPLICATED for one in layout):
        layout, said = split_layout(tuple(f"argument {number}" for number in batch), specs, placement)
    return Program(
        name=f"{name}/{'train' if state else 'infer'}",
        step=_step(module, state, batch),
        state=tuple(arguments[number].spec for number in state),
        batch=tuple(specs),
        layout=layout,
        mode="train" if state else "infer",
        state_names=tuple(f"argument {number}" for number in state),
        placement=placement,
        notes=(said,) if said else (),
    )


def _numbers(module: StableHLO) -> tuple[list[int], list[int]]:
    """Return the numbers of the arguments that are state, and of the others."""
    numbers = range(len(module.arguments))
    state = [number for number in numbers if _is_state(module, number)]
    return state, [number for number in numbers if number not in state]


def _is_state(module: StableHLO, number: int) -> bool:
    argument = module.arguments[number]
    return argument.becomes is not None and module.results[argument.becomes] == argument.spec


def _placement(module: StableHLO, numbers: Sequence[int]) -> Placement | None:
    if not module.mesh:
        return None
    return Placement(module.mesh, tuple(module.arguments[number].sharding or () for number in numbers))


def _step(module: StableHLO, state: list[int], batch: list[int]) -> Callable[[Any, Any], tuple[Any, Any]]:
    order = [*state, *batch]
    new = [module.arguments[number].becomes for number in state]

    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        given = dict(zip(order, jax.tree.leaves((state, batch)), strict=True))
        results = module.exported.call(*[given[number] for number in range(len(given))])
        outputs = tuple(one for number, one in enumerate(results) if number not in new)
        return tuple(results[number] for number in new if number is not None), outputs

    return step
