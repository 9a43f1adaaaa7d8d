"""Predictions of layouts from the disk: equal to the first ones, and never those of another step or setting."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from anytpu.planning.jobs.job import PlanJob
from anytpu.planning.jobs.settings import PlanSettings
from anytpu.planning.records import Price
from anytpu.planning.records.target import target_named
from anytpu.planning.shardings import known
from anytpu.planning.shardings.candidates import candidates
from anytpu.planning.shardings.depth import SearchedJob
from anytpu.planning.shardings.search import traced_job

SPEC = jax.ShapeDtypeStruct
V5E = target_named("v5e-8")
SETTINGS = PlanSettings(is_trial=True, stage="schedule")


def searched(scale=2.0, width=1024, constant=1.0):
    table = jnp.full((8,), constant)

    def step(state, batch):
        return {"w": state["w"] - scale * jnp.mean(batch @ state["w"])}, table

    specs = ({"w": SPEC((width, 512), "float32")}, SPEC((64, width), "float32"))
    job = PlanJob(step, specs)
    return SearchedJob(job, traced_job(job, None), None)


def layouts(job):
    return list(candidates(job.traced, 8))


def test_a_prediction_from_the_disk_equals_the_first(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYTPU_CACHE_DIR", str(tmp_path))
    job, again = searched(), searched()
    for layout in layouts(job)[:2]:
        first = job.predict(layout, V5E, SETTINGS)
        answers = set((tmp_path / "plan").iterdir())
        second = again.predict(layout, V5E, SETTINGS)
        assert first.compile_s is not None and second.compile_s is None
        assert second == dataclasses.replace(first, compile_s=None)
        assert set((tmp_path / "plan").iterdir()) == answers


def test_an_entry_that_cannot_be_read_is_predicted_again(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYTPU_CACHE_DIR", str(tmp_path))
    job = searched()
    layout = layouts(job)[0]
    first = job.predict(layout, V5E, SETTINGS)
    known.cache.write(known.key_of(str(job.digest), layout, V5E, SETTINGS), {"program": "step"}, b"")
    assert job.predict(layout, V5E, SETTINGS) == dataclasses.replace(first, compile_s=None)


@pytest.mark.parametrize("changes", [{"scale": 3.0}, {"width": 2048}, {"constant": 2.0}])
def test_another_step_has_another_digest(changes):
    assert searched().digest == searched().digest is not None
    assert searched(**changes).digest != searched().digest


def test_the_key_has_the_layout_the_system_the_settings_and_the_versions(monkeypatch):
    monkeypatch.delenv("LIBTPU_INIT_ARGS", raising=False)
    job = searched()
    first, other = layouts(job)[:2]

    def key(layout=first, target=V5E, **settings):
        return known.key_of(str(job.digest), layout, target, dataclasses.replace(SETTINGS, **settings))

    assert key() == key(timeout_s=1.0, progress=print)
    prices = {"v5e": Price("v5e", 9.0, None, None, "2026-01", "a test")}
    keys = [
        key(),
        key(other),
        key(dataclasses.replace(first, remat="by block")),
        key(target=target_named("v6e-8")),
        key(stage="code"),
        key(options={"xla_tpu_scoped_vmem_limit_kib": "65536"}),
        key(prices=prices),
        key(examples=1000),
        key(input_examples_per_s=10.0),
    ]
    with jax.threefry_partitionable(False):
        keys.append(key())
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_enable_async_collective_fusion=false")
    keys.append(key())
    monkeypatch.setattr(known._env, "libtpu_version", lambda: "9.9")
    keys.append(key())
    monkeypatch.setattr(known, "_package_digest", lambda: "another release")
    keys.append(key())
    assert len(set(keys)) == len(keys)
