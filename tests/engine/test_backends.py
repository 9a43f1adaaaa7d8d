"""One battery for every backend: virtual and twin in this process, local on 8 devices and on 1 in a process of its own.

Every Program of the battery also lowers for each platform, and runs from a file in a process without its code.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import jax
import numpy as np
import pytest

from anytpu.engine import Backend
from anytpu.engine.twin import TwinBackend
from anytpu.engine.virtual import VirtualBackend
from anytpu.program import REPLICATED, lower, write
from anytpu.program.lowering import PLATFORMS
from anytpu.system.topologies import row_of_cores
from engine import battery, samples
from forked import python
from mesh_checks import EIGHT_DEVICES

TESTS = Path(__file__).parents[1]
IN_PROCESS = {"virtual": VirtualBackend, "twin": TwinBackend}
RUN_FILES = """
import sys
from pathlib import Path
import jax, numpy as np
from anytpu.program import read

folder = Path(sys.argv[1])
for path in folder.glob("*.anytpu"):
    program = read(path, tensors=True)
    specs, structure = jax.tree.flatten(program.batch)
    with np.load(path.with_suffix(".npz")) as given:
        words = [given[name] for name in sorted(given.files)]
    leaves = [word.view(spec.dtype).reshape(spec.shape) for word, spec in zip(words, specs, strict=True)]
    batch = structure.unflatten(leaves)
    results = jax.tree.leaves(jax.jit(program.step)(program.tensors, batch))
    path.with_suffix(".bytes").write_bytes(b"".join(np.asarray(leaf).tobytes() for leaf in results))
assert "engine" not in sys.modules
"""


ONE_CORE = pytest.param(("virtual", 1), marks=pytest.mark.battery)


@pytest.fixture(scope="module", params=[("virtual", 8), ONE_CORE, ("twin", 3)], ids=str)
def backend(request: pytest.FixtureRequest) -> Backend:
    kind, cores = request.param
    return IN_PROCESS[kind](row_of_cores(cores, kind=kind).cores)


@pytest.mark.parametrize("name", battery.CASES)
def test_backend(backend: Backend, name: str):
    battery.CASES[name](backend)


@pytest.fixture(scope="module")
def local_failures() -> dict[str, dict[str, str | None]]:
    """What became of each case on the local backend, by the number of devices."""
    script = [*python(), str(TESTS / "engine" / "battery.py"), "8", "1"]
    done = subprocess.run(
        script, env={**os.environ, **EIGHT_DEVICES, "PYTHONPATH": str(TESTS)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.timeout(400)
@pytest.mark.parametrize("devices", ["8", "1"])
def test_it_is_the_local_backend(local_failures: dict, devices: str):
    assert local_failures[devices]["class"] == "LocalBackend"


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", battery.CASES)
@pytest.mark.parametrize("devices", ["8", "1"])
def test_local(local_failures: dict, devices: str, name: str):
    failure = local_failures[devices][name]
    assert failure is None, failure


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("name", samples.EVERY)
def test_every_program_lowers(name: str, platform: str):
    assert lower(samples.EVERY[name]().program, platform).platforms == (platform,)


def test_from_files_in_a_process_without_the_code(tmp_path: Path):
    backend, expected = VirtualBackend(row_of_cores(8).cores), {}
    for name, make in samples.EVERY.items():
        sample = make()
        write(sample.program, tmp_path / f"{name}.anytpu", tensors=sample.state)
        words = [np.frombuffer(leaf.tobytes(), "uint8") for leaf in jax.tree.leaves(sample.batch)]
        np.savez(tmp_path / f"{name}.npz", **{f"{i:03d}": word for i, word in enumerate(words)})
        batch = battery.put_batch(backend, sample.program, sample.batch)
        result = backend.compile(sample.program).step(backend.put(sample.state, REPLICATED), batch)
        expected[name] = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(backend.get(result)))
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": ""}
    script = [*python(), "-c", RUN_FILES, str(tmp_path)]
    done = subprocess.run(script, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {name: (tmp_path / f"{name}.bytes").read_bytes() for name in expected} == expected
