"""The child process of a check: run one step of a Program file, partitioned over the devices of this process.

It is started as `python -m anytpu.train.checking.child FOLDER CORES`. It reads FOLDER/step.anytpu and FOLDER/batch.npz,
and runs one step on the local backend, which splits the batch over the devices. Then it writes FOLDER/outcome.npz.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import numpy as np

from anytpu.engine import backend_of
from anytpu.program import REPLICATED, read
from anytpu.system.cores import Address
from anytpu.system.lifecycle import running_system
from anytpu.train.checking.outcome import outcome_of, outcome_to_arrays


def main(folder: Path, cores: int) -> None:
    """Run the step.

    Args:
        folder: the folder of the files.
        cores: number of devices that this process must have.
    """
    program = read(folder / "step.anytpu", tensors=True)
    backend = backend_of(running_system(Address("local", cores)))
    assert len(backend.cores) == cores, f"{len(backend.cores)} devices, not {cores}"
    with np.load(folder / "batch.npz") as file:
        arrays = [file[f"{index:06d}"] for index in range(len(file.files))]
    batch = [backend.put(array, layout) for array, (_, layout) in zip(arrays, program.leaves(), strict=True)]
    step = backend.compile(program)
    state = backend.put(program.tensors, REPLICATED)
    new_state, outputs = step.step(state, jax.tree.unflatten(jax.tree.structure(program.batch), batch))
    results = outcome_to_arrays(outcome_of(backend.get(new_state), backend.get(outputs)))
    np.savez(folder / "outcome.npz", **results)  # pyright: ignore[reportArgumentType]


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
