"""`Outcome`: the values that one run of a step computed, by name, as NumPy arrays.

This module is also the child process of a check: `python -m anytpu.checking.outcome FOLDER CORES`. It reads
FOLDER/step.anytpu and FOLDER/batch.npz, and runs one step on the local backend, which splits the batch over the devices
of the process. Then it writes FOLDER/outcome.npz. If there is FOLDER/plain.anytpu, the step without taps, it is
compiled, and its HLO text is written to FOLDER/module.hlo.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from anytpu.engine import backend_of
from anytpu.engine.executable import CompiledExecutable
from anytpu.program import read
from anytpu.program.program import Tree, array_layouts, leaf_names
from anytpu.system.cores import Address
from anytpu.system.lifecycle import running_system

PLAIN = "plain.anytpu"
"""File of the step without taps, whose exchanges are wanted."""

MODULE = "module.hlo"
"""File of the compiled module of that step."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The values of one step.

    Attributes:
        marked: the marked values by mark, see `marking`.
        logs: the step's logs by name.
        state: the leaves of the new state.
        exchanged: a sentence on each exchange between devices that a layout did not ask for.
    """

    marked: dict[str, np.ndarray]
    logs: dict[str, np.ndarray]
    state: tuple[np.ndarray, ...]
    exchanged: tuple[str, ...] = ()


def outcome_of(state: Tree, outputs: Tree) -> Outcome:
    """Return the results of a step with taps as an `Outcome`. Half precision is converted to float32 exactly.

    Args:
        state: the arrays of the new state.
        outputs: the pair of the logs and the marked values.
    """
    logs, values = outputs
    names = leaf_names(logs, "output")
    return Outcome(
        {mark: _readable(value) for mark, value in values.items()},
        {name: _readable(value) for name, value in zip(names, jax.tree.leaves(logs), strict=True)},
        tuple(map(_readable, jax.tree.leaves(state))),
    )


def outcome_to_arrays(outcome: Outcome) -> dict[str, np.ndarray]:
    """Return an outcome as one flat dictionary of arrays, for a file."""
    return {
        **{f"marked {mark}": value for mark, value in outcome.marked.items()},
        **{f"log {name}": value for name, value in outcome.logs.items()},
        **{f"state {index:06d}": value for index, value in enumerate(outcome.state)},
    }


def arrays_to_outcome(arrays: dict[str, np.ndarray]) -> Outcome:
    """Return the outcome from the dictionary that `outcome_to_arrays` made."""

    def part(start: str) -> dict[str, np.ndarray]:
        return {name.removeprefix(start): arrays[name] for name in sorted(arrays) if name.startswith(start)}

    return Outcome(part("marked "), part("log "), tuple(part("state ").values()))


def _readable(value: Any) -> np.ndarray:
    """Return a copy in a dtype that .npz files support; a later step may consume the memory of the original."""
    array = np.array(value)
    return array.astype("float32") if array.dtype.kind == "V" or array.dtype.name == "bfloat16" else array


def main(folder: Path, cores: int) -> None:
    """Run the step of a Program file, in the child process.

    Args:
        folder: the folder of the files.
        cores: number of devices that this process must have.
    """
    program = read(folder / "step.anytpu", tensors=True)
    backend = backend_of(running_system(Address("local", cores)))
    assert len(backend.cores) == cores, f"{len(backend.cores)} devices, not {cores}"
    with np.load(folder / "batch.npz") as file:
        arrays = [file[f"{index:06d}"] for index in range(len(file.files))]
    state_layouts, batch_layouts = array_layouts(program)
    batch = [backend.put(*pair) for pair in zip(arrays, jax.tree.leaves(batch_layouts), strict=True)]
    step = backend.compile(program)
    state = jax.tree.map(backend.put, program.tensors, state_layouts)
    new_state, outputs = step.step(state, jax.tree.unflatten(jax.tree.structure(program.batch), batch))
    results = outcome_to_arrays(outcome_of(backend.get(new_state), backend.get(outputs)))
    np.savez(folder / "outcome.npz", **results)  # pyright: ignore[reportArgumentType]
    if (folder / PLAIN).exists():
        plain = backend.compile(read(folder / PLAIN))
        assert isinstance(plain, CompiledExecutable)
        (folder / MODULE).write_text(plain.text)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
