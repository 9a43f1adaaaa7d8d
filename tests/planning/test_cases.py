"""The programs of `benchmarks/plan_cases`: each can be made again, and is as large as what was measured."""

import json
import math
import sys
from importlib import resources
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import plan_cases
from anytpu.planning.records.target import target_named
from anytpu.program.program import leaf_names
from anytpu.sharding import resolve
from anytpu.sharding.placing import check_spec
from plan_cases.attention import SPLASH
from plan_cases.bert import Bert
from plan_cases.case import Case
from plan_cases.llamas import LEVANTER
from plan_cases.maxtext import LLAMA_8B, LLAMA_70B, LLAMA_405B, MIXTRAL_8X7B, flags, scaled
from plan_cases.mixture import Mixture
from plan_cases.resnet import ResNet
from plan_cases.sharded import CASES as SHARDED
from plan_cases.sharded import ShardedCase
from plan_cases.tpuchat import Chat

CASES = plan_cases.CASES
NAMES = [case.name for case in CASES]
ACCURACY = json.loads((Path(plan_cases.__file__).parents[1] / "results" / "plan_accuracy.json").read_text())


def test_names_are_unique():
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_says_what_was_measured_and_where(case: Case):
    assert math.isfinite(case.measured_s) and case.measured_s > 0
    assert case.source and case.arithmetic and case.family
    assert case.trust in "ABC"
    assert case.stack and 2018 <= case.year <= 2026
    assert all(isinstance(value, str) for value in case.options.values())


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_specs_lie_on_the_devices_of_the_slice(case: Case):
    step, (state, batch) = case.build()
    meshes = {leaf.sharding.mesh for leaf in jax.tree.leaves((state, batch))}
    (mesh,) = meshes
    assert callable(step)
    assert mesh.size == target_named(case.target).devices
    for leaf in jax.tree.leaves((state, batch)):
        leaf.sharding.shard_shape(leaf.shape)  # Raises where a dimension is not divisible.


def of_steps(names: set[str]) -> dict[str, int]:
    """Return the families of the steps of these names for each chip."""
    steps = [case for case in CASES if case.kind == "step" and case.name in names]
    chips = {case.generation for case in steps}
    return {chip: len({case.family for case in steps if case.generation == chip}) for chip in sorted(chips)}


FITTED = {row["name"] for row in ACCURACY["cases"]}


def test_every_case_was_fitted_or_is_told_as_not_compiled():
    assert sorted([*FITTED, *ACCURACY["not_compiled"]]) == sorted(NAMES)
    evidence = json.loads((resources.files("anytpu.planning.timing") / "calibration.json").read_text())["evidence"]
    assert {line.partition(" took ")[0] for lines in evidence.values() for line in lines} <= FITTED
    for chip, lines in evidence.items():
        steps = {case.name for case in CASES if case.kind == "step" and case.generation == chip} & FITTED
        assert steps <= {line.partition(" took ")[0] for line in lines}


def test_steps_of_so_many_families_were_fitted_on_each_chip():
    assert of_steps(FITTED) == {"v2": 2, "v3": 4, "v4": 4, "v5e": 4, "v5p": 3, "v6e": 5, "v7x": 2}
    assert of_steps(set(NAMES)) == {"v2": 2, "v3": 4, "v4": 4, "v5e": 4, "v5p": 4, "v6e": 9, "v7x": 2}


def test_a_slice_of_several_is_of_its_chip():
    assert {case.generation for case in CASES if case.target == "2xv5e-256"} == {"v5e"}


def test_a_micro_benchmark_of_each_kind_can_be_traced():
    by_kind = {case.kind: case for case in CASES if case.kind != "step"}
    assert set(by_kind) == {"matmul", "copy", "collective"}
    for case in by_kind.values():
        step, specs = case.build()
        jax.eval_shape(step, *specs)


def test_a_training_step_returns_its_state():
    case = next(case for case in CASES if case.name.startswith("maxtext_16b"))
    step, specs = case.build()
    state, outputs = jax.eval_shape(step, *specs)
    assert jax.tree.map(lambda leaf: leaf.shape, state) == jax.tree.map(lambda leaf: leaf.shape, specs[0])
    assert outputs["loss"].shape == ()


def test_resnet_50_has_as_many_parameters_as_published():
    weights = jax.eval_shape(ResNet(batch=8, replicas=1).weights)
    assert sum(leaf.size for leaf in jax.tree.leaves(weights)) == 25_557_032


def test_bert_large_has_as_many_parameters_as_published():
    assert Bert(batch=8, replicas=1).parameters() == pytest.approx(336e6, rel=0.001)


@pytest.mark.parametrize(("model", "billions"), [(LLAMA_8B, "8.03"), (LLAMA_70B, "70.55"), (LLAMA_405B, "405.85")])
def test_llamas_have_as_many_parameters_as_published(model, billions):
    assert f"{model.parameters() / 1e9:.2f}" == billions


def test_other_models_have_as_many_parameters_as_published():
    assert f"{MIXTRAL_8X7B.parameters() / 1e9:.1f}" == "46.7"
    assert f"{Chat().parameters() / 1e6:.1f}" == "163.6"
    assert LEVANTER.model.parameters() == 1_431_373_824


def test_a_mixture_drops_what_an_expert_has_no_room_for():
    mixture = Mixture(experts=2, chosen=1, capacity=0.5)
    which = jnp.array([[[0], [0], [1], [0]]])
    there, back = mixture.masks(jnp.full(which.shape, 0.25), which)
    assert there.shape == (1, 4, 2, 1)
    assert there.sum((2, 3)).tolist() == [[1.0, 0.0, 1.0, 0.0]]
    assert (back == 0.25 * there).all()


@pytest.mark.parametrize("scale", [16, 32, 64, 128])
def test_a_scaled_decoder_has_about_so_many_billions(scale):
    assert scaled(scale, SPLASH).parameters() / 1e9 == pytest.approx(scale, rel=0.02)


def test_flags_are_options():
    assert flags("--xla_a=true xla_b=3") == {"xla_a": "true", "xla_b": "3"}


@pytest.mark.parametrize("case", SHARDED, ids=[case.name for case in SHARDED])
def test_a_layout_of_a_sharded_case_splits_its_weights(case: ShardedCase):
    assert case.name not in NAMES or case.name not in FITTED
    assert case.source.startswith("https://") and case.measured_s > 0
    _, (state, batch) = case.training.unplaced()
    assert all(leaf.sharding is None for leaf in jax.tree.leaves((state, batch)))
    layout = resolve(case.layout, case.mesh, target_named(case.target).devices)
    weights = zip(leaf_names(state["weights"], "weights"), jax.tree.leaves(state["weights"]), strict=True)
    split = {f"weights/{name}": layout.spec_of(f"weights/{name}", leaf.shape) for name, leaf in weights}
    for (name, spec), leaf in zip(split.items(), jax.tree.leaves(state["weights"]), strict=True):
        assert spec, name
        check_spec(name, leaf.shape, spec, case.mesh)
