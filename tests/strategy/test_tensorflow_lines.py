"""The programs of tensorflow_lines.toml: anytpu answers as TensorFlow did, or differently for a reason in that list."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.pipeline import Dataset

TESTS = Path(__file__).parents[1]
LINES = {line["name"]: line for line in tomllib.loads((TESTS / "tensorflow_lines.toml").read_text())["line"]}
GOLDEN = json.loads((TESTS / "golden" / "lines.json").read_text())


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """Return what the names of the programs mean here."""
    strategy = tpu.connect("virtual", cores=8)

    def run(step: Any, *args: Any) -> Any:
        return strategy.run(step, args=args)

    def do(step: Any) -> None:
        run(lambda: [step(), None][1])

    def variable(value: Any, aggregation: str = "none", synchronization: str = "auto") -> keras.Variable:
        with strategy.scope():
            return keras.Variable(np.float32(value), aggregation=aggregation, synchronization=synchronization)

    def gradients(loss: Any, variables: list[Any], local: bool = False) -> Any:
        if local:  # of one replica's own value, as a tape has it
            return [jax.grad(lambda value: _with(variables[0], value, loss))(variables[0].value)]
        return tpu.value_and_grad(loss, variables)()[1]

    def index() -> jax.Array:
        context = tpu.get_replica_context()
        assert context is not None
        return context.replica_id_in_sync_group.astype("float32")

    def each(function: Any) -> Any:
        return strategy.experimental_distribute_values_from_function(
            lambda one: np.asarray(function(one.replica_id_in_sync_group), np.result_type(_single(function(0))))
        )

    def same(run: Any, step: Any) -> bool:
        found: list[Any] = []
        run(lambda: found.append(step()))
        return found[0] is strategy

    return {
        "np": np,
        "strategy": strategy,
        "default": tpu.get_strategy(),
        "run": run,
        "do": do,
        "context": tpu.get_replica_context,
        "index": index,
        "each": each,
        "variable": variable,
        "read": lambda variable: np.asarray(variable.value),
        "gradients": gradients,
        "array": jnp.asarray,
        "total": jnp.sum,
        "where": jnp.where,
        "keras": keras,
        "average_loss": tpu.compute_average_loss,
        "regularization": tpu.scale_regularization_loss,
        "dataset": Dataset.range,
        "rows": lambda batch: [len(part) for part in strategy.experimental_local_results(batch)],
        "same": same,
    }


def _single(value: Any) -> Any:
    return np.float32(0) if isinstance(value, float) else np.asarray(value)


def _with(variable: keras.Variable, value: Any, call: Any) -> Any:
    with keras.StatelessScope([(variable, value)]):
        return call()


def plain(value: Any) -> Any:
    """Return a result as JSON: the parts of a value of the replicas as a list named "each"."""
    if isinstance(value, tpu.PerReplica):
        return {"each": [plain(part) for part in value.values]}
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return np.asarray(value).tolist()


def answer(program: str, names: dict[str, Any]) -> Any:
    names = dict(names)
    try:
        exec(program, names)
        return plain(names.get("answer"))
    except Exception as error:
        return {"raises": [kind.__name__ for kind in type(error).__mro__]}


def is_close(found: Any, expected: Any) -> bool:
    """Return whether two answers are of one form, and their numbers equal to float32's sums in another order."""
    if isinstance(expected, dict) and "raises" in expected:
        # An error of ours is also of TensorFlow's class, so that a program's handlers work.
        return isinstance(found, dict) and expected["raises"] in found.get("raises", ())
    if isinstance(expected, dict):
        return (
            isinstance(found, dict)
            and found.keys() == expected.keys()
            and all(map(is_close, found.values(), expected.values()))
        )
    if isinstance(expected, list):
        return isinstance(found, list) and len(found) == len(expected) and all(map(is_close, found, expected))
    if isinstance(expected, float) or isinstance(found, float):
        return isinstance(found, float | int) and found == pytest.approx(expected, rel=2e-5, abs=1e-6, nan_ok=True)
    return found == expected


@pytest.mark.parametrize("name", LINES)
@pytest.mark.filterwarnings("ignore")
def test_a_program(name: str, names: dict[str, Any]):
    line, golden = LINES[name], GOLDEN[name]
    found = answer(line["program"], names)
    expected = json.loads(line["here"]) if "here" in line else golden
    assert is_close(found, expected), f"{found} is not {expected}"


def test_every_difference_has_a_reason():
    for name, line in LINES.items():
        assert line.keys() in ({"name", "program"}, {"name", "program", "here", "reason"}), name
        if "here" in line:
            assert not is_close(json.loads(line["here"]), GOLDEN[name]), name
            assert len(line["reason"].split()) >= 6, name


def test_every_program_has_tensorflows_answer():
    assert [name for name in GOLDEN if name != "made_by"] == list(LINES)
    assert len(LINES) >= 150
