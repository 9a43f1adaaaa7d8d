"""Plans, with the real TPU compiler: one small network, few compilations."""

from __future__ import annotations

import importlib.metadata
import json
import threading
from typing import Any

import jax
import jax.numpy as jnp
import keras
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

import anytpu as tpu
from anytpu.errors import ProgramError, SettingError, UnknownTPUError
from anytpu.planning.compiler import children
from anytpu.planning.costs.waits import FIT_CALL_S
from anytpu.planning.forecasts.forecast import layout_notes, table_notes
from anytpu.planning.plans.planner import run_together
from anytpu.planning.records.target import target_named
from anytpu.program import ROWS, Placement, Program


def network(width: int = 512) -> keras.Model:
    """Return a compiled network of two layers."""
    model = keras.Sequential(
        [keras.Input((256,)), keras.layers.Dense(width, "relu", name="dense"), keras.layers.Dense(10, name="logits")],
        name="net",
    )
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@pytest.fixture(scope="module")
def said() -> list[str]:
    return []


@pytest.fixture(scope="module")
def plan(said):
    return tpu.plan(
        network(), batch_size=1000, tpu=["v2-8", "v3-8"], examples=50_000, epochs=3, sweep_batches=[2048, 1000],
        progress=said.append,
    )  # fmt: skip


def test_a_prediction_for_each_system(plan):
    assert [prediction.target.name for prediction in plan] == ["v2-8", "v3-8"]
    for prediction in plan:
        assert prediction.program == "net/train"
        assert prediction.batch_size == 1000
        assert prediction.fits
        assert prediction.predicted_by.startswith("the TPU compiler (libtpu ")
        low, high = prediction.interval_s
        assert 0 < low < prediction.step_s < high
        assert prediction.examples_per_s == 1000 / prediction.step_s
        assert 0 < prediction.mfu < 1


def test_products_are_counted(plan):
    # Forward, and backward for the weights of both layers and the input of the second: 125 rows a core.
    rows, into, width, out = 125, 256, 512, 10
    assert plan["v3-8"].flops == pytest.approx(2 * rows * (2 * into * width + 3 * width * out), rel=0.03)


def test_the_memory_holds_the_weights(plan):
    memory = plan["v3-8"].memory
    assert {"net/dense/kernel", "dense/kernel"} & {buffer.name for buffer in memory.buffers}
    assert 4 * (256 * 512 + 512 * 10) < memory.peak_bytes < memory.limit_bytes


def test_the_uneven_batch_is_told(plan):
    assert tpu.plan(network(), batch_size=1001, tpu="v3-8")["v3-8"].notes == (
        "8 devices do not divide a batch of 1,001: each takes 126 rows, the last ones fewer, as fit runs it.",
    )


def test_a_sweep_and_what_is_said_of_it(plan, said):
    assert [(prediction.target.name, prediction.batch_size) for prediction in plan.sweep] == [
        ("v2-8", 2048),
        ("v3-8", 2048),
    ]
    assert "net/train on v2-8 (v2:2x2), 1,000 examples a step" in said
    assert "net/train on v3-8 (v3:2x2), 2,048 examples a step" in said


def test_the_cost_of_the_run(plan):
    cost = plan["v2-8"].cost
    assert cost.usd_per_hour == 4.5
    assert cost.usd_per_step == pytest.approx(4.5 / 3600 * plan["v2-8"].step_s)
    assert cost.usd_per_run == pytest.approx(3 * cost.usd_per_epoch)
    assert plan.cheapest.target.name in ("v2-8", "v3-8")
    assert plan.fastest.step_s == min(prediction.step_s for prediction in plan)


def test_json_holds_everything(plan, tmp_path):
    record = json.loads(plan.to_json(tmp_path / "plan.json").read_text())
    assert [prediction["tpu"] for prediction in record["predictions"]] == ["v2-8", "v3-8"]
    assert record["format"] == 1
    assert (record["fastest"], record["cheapest"]) == (plan.fastest.target.name, plan.cheapest.target.name)
    assert record["predictions"][0]["step_s"] == plan["v2-8"].step_s
    assert record["predictions"][0]["target"]["topology"] == "v2:2x2"


@pytest.mark.parametrize("method", ["lock", "to_json", "to_html", "to_svg"])
def test_what_is_no_path_is_not_written(plan, method):
    noun = {"lock": "the lock", "to_json": "the plan", "to_html": "the page", "to_svg": "the plots"}[method]
    with pytest.raises(SettingError) as raised:
        getattr(plan, method)(None)
    assert str(raised.value) == f"{noun} cannot be written to None: give a path, such as 'plan.html'"


def test_json_that_cannot_be_written(plan, tmp_path):
    with pytest.raises(SettingError) as raised:
        plan.to_json(tmp_path / "no" / "plan.json")
    assert str(raised.value) == (
        f"the plan cannot be written to {str(tmp_path / 'no' / 'plan.json')!r}: No such file or directory"
    )


def test_a_system_that_was_not_planned_for(plan):
    with pytest.raises(SettingError) as raised:
        plan["v5e-8"]
    assert str(raised.value) == "'v5e-8' is not in this plan, which is for 'v2-8', 'v3-8'; plan again with tpu='v5e-8'"


@pytest.fixture(scope="module")
def hungry():
    """Return a step whose memory grows with the batch: 8 KiB an example or more."""

    def step(state, batch):
        wide = jnp.tanh(batch @ state)
        return state + batch.T @ wide, wide.sum()

    specs = (jax.ShapeDtypeStruct((64, 4096), "float32"), jax.ShapeDtypeStruct((64, 64), "float32"))
    return step, specs


def test_what_does_not_fit_is_an_answer(hungry):
    step, specs = hungry
    said = []
    found = tpu.plan(step, 2**24, "v2-8", input_specs=specs, progress=said.append)["v2-8"]
    assert said[2] == "16,777,216 examples do not fit on v2-8: looking for the largest batch that does"
    assert any(line.startswith(f"{found.largest_batch:,} examples on v2-8: fits, with ") for line in said), said
    assert (found.fits, found.step_s, found.time) == (False, None, None)
    assert found.memory.missing_bytes == found.memory.peak_bytes - found.memory.limit_bytes > 0
    assert 0 < found.largest_batch < 2**24
    assert found.advice[0].text == f"Use a batch of {found.largest_batch:,}, the largest that fits."
    assert tpu.max_batch_size(step, "v2-8", input_specs=specs) == pytest.approx(found.largest_batch, rel=0.04)


def test_larger_slices():
    plan = tpu.scaling(network(), "v3", [8, 32], batch_size=256)
    assert [(prediction.target.name, prediction.batch_size) for prediction in plan] == [("v3-8", 256), ("v3-32", 1024)]
    same = tpu.scaling(network(), "v3", [8, 32], batch_size=256, grow=False)
    assert [prediction.batch_size for prediction in same] == [256, 256]


def test_a_program_has_one_batch(hungry):
    step, specs = hungry
    program = tpu.program.of(step, specs)
    assert tpu.plan(program, tpu="v2-8")["v2-8"].batch_size == 64
    with pytest.raises(ProgramError) as raised:
        tpu.plan(program, tpu="v2-8", sweep_batches=[128])
    assert str(raised.value) == (
        "The program 'step/train' has one batch of 64 rows and one precision, and cannot be changed to "
        "batch_size=128. Give the model or the function instead: "
        "anytpu.program.of(model, batch_size=128)."
    )


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"tpu": []}, 'tpu must name at least one system, such as "v3-8" or ["v2-8", "v3-8"], not []'),
        ({"tpu": None}, 'tpu must name at least one system, such as "v3-8" or ["v2-8", "v3-8"], not None'),
        ({"tpu": [8]}, 'tpu must name at least one system, such as "v3-8" or ["v2-8", "v3-8"], not [8]'),
        ({"sweep_batches": 8}, "sweep_batches must list batch sizes, such as [256, 512], not 8"),
        ({"sweep_batches": [None]}, "sweep_batches must list batch sizes, such as [256, 512], not [None]"),
        ({"batch_size": 0}, "batch_size must be a positive integer, not 0"),
        ({"batch_size": [8, -8], "tpu": ["v2-8", "v3-8"]}, "batch_size must be a positive integer, not -8"),
        (
            {"batch_size": [8], "tpu": ["v2-8", "v3-8"]},
            "batch_size must be one number, or one for each system in tpu (2), not [8]",
        ),
        ({"batch_size": "8"}, "batch_size must be a positive integer, not '8'"),
        (
            {"batch_size": 2**70},
            f"batch_size must be a positive integer below 2**31, the rows of a global batch, not {2**70}.",
        ),
        ({"sweep_batches": "8"}, "sweep_batches must list batch sizes, such as [256, 512], not '8'"),
        (
            {"prices": 3},
            "prices must be the path of a CSV file whose first line is "
            "chip,usd_per_chip_hour,spot_usd_per_chip_hour,date, not 3",
        ),
        ({"sweep_batches": [-1]}, "sweep_batches must be a positive integer, not -1"),
    ],
)
def test_bad_settings(settings, says):
    with pytest.raises(SettingError) as raised:
        tpu.plan(network(), **{"batch_size": 8, **settings})
    assert str(raised.value) == says


def test_a_tpu_that_does_not_exist():
    with pytest.raises(UnknownTPUError) as raised:
        tpu.plan(network(), 8, "v3-9")
    assert str(raised.value).startswith(
        '\'v3-9\' is not a TPU that exists: the number counts TensorCores, and the nearest are "v3-8" and "v3-32".'
    )


def test_a_slice_by_two_names_is_planned_once():
    assert [prediction.target.name for prediction in tpu.plan(network(), 256, ["v5e-1", "v5litepod-1"])] == ["v5e-1"]


def test_a_step_that_is_written_for_one_batch():
    def step(state, batch):
        wide = jnp.tanh(batch.reshape(2**24, 64) @ state)
        return state + batch.T @ wide, wide.sum()

    specs = (jax.ShapeDtypeStruct((64, 4096), "float32"), jax.ShapeDtypeStruct((2**24, 64), "float32"))
    found = tpu.plan(step, tpu="v2-8", input_specs=specs, advise=True)["v2-8"]
    assert (found.fits, found.largest_batch) == (False, None)
    assert found.notes[1].startswith("The largest batch that fits was not found: cannot reshape array of shape ")
    assert [(advice.text, advice.tried) for advice in found.advice] == [
        (
            "Use v7x-8 (4 chips): of the smallest slices that hold it, a step takes least time there.",
            "tpu='v7x-8'",
        )
    ]


@pytest.mark.parametrize("solve", [jnp.linalg.solve, lambda a, b: jax.scipy.sparse.linalg.cg(a, b)[0]])
def test_a_step_with_a_linear_solve(solve):
    matrix, right = jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((64,), "float32")
    found = tpu.plan(lambda state, batch: (state, solve(state, batch)), tpu="v5e-1", input_specs=(matrix, right))
    assert found["v5e-1"].basis == "compiled"


def test_fit_starts_many_steps_with_a_call():
    one, many = (tpu.plan(network(), 256, "v3-8", steps_per_execution=steps)["v3-8"] for steps in (1, None))
    assert (one.steps_per_execution, many.steps_per_execution) == (1, 1024)
    assert one.step_s == FIT_CALL_S > many.step_s
    assert one.interval_s == (FIT_CALL_S / 2, 2 * FIT_CALL_S)
    (advice,) = [piece for piece in one.advice if piece.topic == "steps_per_execution"]
    assert advice.text == (
        "Start 1024 steps with one call: model.compile(..., steps_per_execution=1024), or leave it to fit."
    )
    assert advice.evidence.startswith("The host bounds: the devices need ")
    assert " a step, and a call takes the host 565 µs; " in advice.evidence
    assert not [piece for piece in many.advice if piece.topic == "steps_per_execution"]


def test_a_call_of_fit_starts_no_more_steps_than_an_epoch_has():
    run: dict[str, Any] = {"batch_size": 512, "tpu": "v5e-1", "examples": 1438, "epochs": 20}
    chosen, one = (tpu.plan(network(), **run, steps_per_execution=steps)["v5e-1"] for steps in (None, 1))
    assert chosen.steps_per_execution == 3
    assert chosen.step_s == pytest.approx(FIT_CALL_S / 3)
    assert [piece.text for piece in chosen.advice if piece.topic == "steps_per_execution"] == []
    (advice,) = [piece for piece in one.advice if piece.topic == "steps_per_execution"]
    assert advice.text == "Start 3 steps with one call: model.compile(..., steps_per_execution=3), or leave it to fit."
    assert advice.step_s == chosen.step_s


def test_larger_slices_of_a_step_with_a_batch_of_its_own(hungry):
    step, specs = hungry
    plan = tpu.scaling(step, "v3", [8, 32], input_specs=specs, sweep_batches=[512])
    assert [prediction.batch_size for prediction in plan] == [64, 256]
    assert [prediction.target.name for prediction in plan.sweep] == ["v3-8", "v3-32"]


HWCN = jax.ShapeDtypeStruct((24, 24, 8, 1024), "float32"), jax.ShapeDtypeStruct((1024,), "float32")


def convolve(weights, batch):
    def loss(weights):
        numbers = ("HWCN", "HWIO", "HWCN")
        return ((jax.lax.conv_general_dilated(images, weights, (1, 1), "SAME", dimension_numbers=numbers)) ** 2).mean()

    images, labels = batch
    return weights - jax.grad(loss)(weights), labels.sum()


def over_data(devices: int) -> Any:
    mesh = AbstractMesh((devices,), ("data",))
    lies = NamedSharding(mesh, PartitionSpec(None, None, None, "data")), NamedSharding(mesh, PartitionSpec("data"))
    return jax.tree.map(lambda one, how: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=how), HWCN, lies)


def test_examples_along_another_axis_than_the_first():
    weights = jax.ShapeDtypeStruct((3, 3, 8, 8), "float32")
    run = {"tpu": "v5e-4", "examples": 1_000_000, "epochs": 90}
    by_layout = tpu.plan(convolve, input_specs=(weights, over_data(4)), **run)["v5e-4"]
    by_user = tpu.plan(convolve, input_specs=(weights, HWCN), batch_axis=(3, 0), **run)["v5e-4"]
    for found in (by_layout, by_user):
        assert (found.batch_size, found.notes) == (1024, ())
        assert found.examples_per_s == 1024 / found.step_s
        assert found.cost.run_s == pytest.approx(90 * 977 * found.step_s)
    assert by_layout.hbm_bytes == by_user.hbm_bytes


def test_rows_that_a_thousand_devices_divide():
    program = tpu.program.of(convolve, (jax.ShapeDtypeStruct((3, 3, 8, 8), "float32"), over_data(1024)))
    assert layout_notes(program, target_named("v5p-2048")) == []


def test_larger_slices_of_a_step_over_a_mesh():
    def create(devices):
        return convolve, (jax.ShapeDtypeStruct((3, 3, 8, 8), "float32"), over_data(devices))

    plan = tpu.scaling(create, "v5e", [1, 4])
    assert [(prediction.target.devices, prediction.batch_size) for prediction in plan] == [(1, 1024), (4, 1024)]
    assert [prediction.target.name for prediction in tpu.plan(create, 2048, ["v5e-4"])] == ["v5e-4"]
    grown = tpu.scaling(create, "v5e", [1, 4], batch_size=512)
    assert [prediction.batch_size for prediction in grown] == [512, 2048]


def test_scaling_of_a_layout():
    mesh = {"data": -1, "model": 2}
    plan = tpu.scaling(network(), "v5e", [4, 8], batch_size=256, layout="fsdp", mesh=mesh)
    assert [prediction.layout.partition(";")[0] for prediction in plan] == [
        "mesh data=2, model=2",
        "mesh data=4, model=2",
    ]
    assert {prediction.layout_name for prediction in plan} == {"fsdp"}
    with pytest.raises(SettingError) as raised:
        tpu.scaling(network(), "v5e", [4, 8], batch_size=256, layout="fsdp", mesh={"data": 2, "model": 2})
    assert str(raised.value) == (
        "the mesh data=2, model=2 has 4 devices, and the system has 8: its sizes must multiply to 8. A size of -1 "
        'fills any system: mesh={"data": -1, "model": 2}'
    )


def test_the_largest_batch_of_a_layout():
    """A weight of 4 GiB and its gradient are more than a core has; an eighth of each is not."""

    def step(weight, x):
        return weight - 0.1 * jax.grad(lambda weight: ((x @ weight) ** 2).mean())(weight), ()

    spec = jax.ShapeDtypeStruct
    specs = spec((32768, 32768), "float32"), spec((64, 32768), "float32")
    whole, split = (tpu.max_batch_size(step, "v2-8", input_specs=specs, layout=layout) for layout in (None, "fsdp"))
    assert whole == 0 < split
    with pytest.raises(SettingError) as raised:
        tpu.max_batch_size(step, "v2-8", input_specs=specs, mesh={"data": 8})
    assert str(raised.value) == "mesh={'data': 8} is the mesh of a layout: give one too, such as layout=\"fsdp\""


@pytest.mark.parametrize(
    ("cores", "batch_size", "says"),
    [
        ([], 64, "cores must list at least one number, such as [8, 32, 128], not []"),
        (8, 64, "cores must list at least one number, such as [8, 32, 128], not 8"),
        ("8", 64, "cores must list at least one number, such as [8, 32, 128], not '8'"),
        ([8, 32], [64, 256], "batch_size must be a positive integer, not [64, 256]"),
        ([8, 32], True, "batch_size must be a positive integer, not True"),
        (
            [32, 8],
            1,
            "batch_size=1 on v3-32 leaves smaller slices less than one example: give more, or grow=False",
        ),
    ],
)
def test_scaling_of_wrong_slices_and_batches(cores, batch_size, says):
    with pytest.raises(SettingError) as raised:
        tpu.scaling(network(), "v3", cores, batch_size)
    assert str(raised.value) == says


@pytest.mark.parametrize("ask", [tpu.max_batch_size, lambda job, names: tpu.ways_to_fit(job, 8, names)])
def test_some_questions_are_about_one_system(ask):
    with pytest.raises(SettingError) as raised:
        ask(network(), ["v2-8"])
    assert str(raised.value) == "tpu must name one system, such as \"v3-8\", not ['v2-8']"


def test_the_first_error_ends_the_others():
    def fails():
        raise ProgramError("no")

    with pytest.raises(ProgramError):
        run_together([fails, fails, fails])


def test_a_task_that_still_traces_when_another_fails_starts_no_compiler():
    traces, refused = threading.Event(), []

    def tracing() -> Any:
        ours = children._CURRENT.get()
        assert ours is not None
        traces.set()
        while not ours.is_closed:
            threading.Event().wait(0.01)
        try:
            with children.borrow_child():
                raise AssertionError("a child was lent")
        except children.ClosedError:
            refused.append(True)
            raise

    def fails() -> Any:
        traces.wait()
        raise ProgramError("no")

    with pytest.raises(ProgramError, match=r"^no"):
        run_together([tracing, fails])  # in this order: the error does not wait for what comes before it
    assert refused == [True]


def test_no_batch_is_sought_where_the_state_alone_does_not_fit():
    def step(state, batch):
        return state - 0.1 * state * batch.mean(), ()

    specs = (jax.ShapeDtypeStruct((5, 2**30), "float32"), jax.ShapeDtypeStruct((64, 128), "float32"))
    said = []
    found = tpu.plan(step, 2**20, "v5e-1", input_specs=specs, progress=said.append)["v5e-1"]
    assert (found.fits, found.largest_batch) == (False, 0)
    assert said == [
        "the step on v5e-1: tracing it",
        "step/train on v5e-1 (v5e:1x1), 1,048,576 examples a step",
        "step/train on v5e-1 (v5e:1x1), 524,288 examples a step",
    ]
    assert any(each.text.startswith("Use v") for each in found.advice)


def test_notes_on_embedding_tables():
    table, other = jax.ShapeDtypeStruct((2**20, 64), "float32"), jax.ShapeDtypeStruct((64, 64), "float32")
    specs = ((("data",), ()), (), (("data",),))
    program = Program(
        name="recommender/train",
        step=lambda state, batch: (state, {}),
        state=[table, other],
        batch=jax.ShapeDtypeStruct((64,), "int32"),
        layout=ROWS,
        state_names=("items/embeddings", "dense/kernel"),
        tables=("items/embeddings",),
        placement=Placement((("data", 8),), specs),
    )
    note = (
        "The embedding tables and their slots (1 array, 256 MiB) take 32 MiB on a device; a step updates the rows of "
        "its batch."
    )
    assert table_notes(program, target_named("v5e-8")) == [note]
    assert table_notes(program, target_named("v6e-8")) == [
        note,
        "Lookups are planned on the TensorCores: the SparseCores of v6e are not used.",
    ]


def test_copies_of_whole_tables_are_named():
    with tpu.shapes_only():
        ids = keras.Input((20,), dtype="int32")
        table = tpu.layers.ShardedEmbedding(1_000_000, 64, combiner="mean", optimizer="adam")
        model = keras.Model(ids, keras.layers.Dense(1)(table(ids)))
        model.compile("adam", "mse")
    notes = tpu.plan(model, 4096, "v5e-1")["v5e-1"].notes
    # libtpu 0.0.42 copies each of the three arrays once, and libtpu 0.0.50 twice.
    copies = 3 if importlib.metadata.version("libtpu").startswith("0.0.4") else 6
    copied = [note for note in notes if note.startswith(f"A step copies {copies} whole tables or slots (")]
    assert len(copied) == 1 and copied[0].endswith(
        "), because of their width. Give the tables a width that is a multiple of 128, or 48 at most."
    )
