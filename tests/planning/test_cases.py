"""The programs of `benchmarks/plan_cases`: each can be made again, and is as large as what was measured."""

import math
import sys
from pathlib import Path

import jax
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import plan_cases
from plan_cases.attention import SPLASH
from plan_cases.bert import Bert
from plan_cases.case import Case
from plan_cases.maxtext import LLAMA_8B, LLAMA_70B, LLAMA_405B, flags, scaled
from plan_cases.resnet import ResNet

from anytpu.planning.target import target_named

CASES = plan_cases.CASES
NAMES = [case.name for case in CASES]


def test_names_are_unique():
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_says_what_was_measured_and_where(case: Case):
    assert math.isfinite(case.measured_s) and case.measured_s > 0
    assert case.source and case.arithmetic and case.family
    assert case.trust in "ABC"
    assert all(isinstance(value, str) for value in case.options.values())


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_specs_lie_on_the_devices_of_the_slice(case: Case):
    step, (state, batch) = case.build()
    meshes = {leaf.sharding.mesh for leaf in jax.tree.leaves((state, batch))}
    (mesh,) = meshes
    assert callable(step)
    assert mesh.size in (1, target_named(case.target).devices)
    for leaf in jax.tree.leaves((state, batch)):
        leaf.sharding.shard_shape(leaf.shape)  # Raises where a dimension is not divisible.


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


@pytest.mark.parametrize("scale", [16, 32, 64, 128])
def test_a_scaled_decoder_has_about_so_many_billions(scale):
    assert scaled(scale, SPLASH).parameters() / 1e9 == pytest.approx(scale, rel=0.02)


def test_flags_are_options():
    assert flags("--xla_a=true xla_b=3") == {"xla_a": "true", "xla_b": "3"}
