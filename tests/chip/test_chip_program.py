"""`tpu.chip.compile` and what it returns: run, timed, saved and read, for models, JAX functions and assembled text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import anytpu as tpu
from anytpu.chip import ChipProgram, file
from anytpu.chip.image.image import Image
from anytpu.chip.isa.instructions import Activate, Halt, ReadWeights
from anytpu.chip.quantized import reference
from anytpu.errors import (
    AnyTPUError,
    CalibrationError,
    CapacityError,
    ChipError,
    HazardError,
    SettingError,
    SettingTypeError,
)

X = np.random.default_rng(3).normal(size=(40, 8, 8, 2)).astype("float32")


@pytest.fixture(scope="module")
def model() -> Any:
    keras.utils.set_random_seed(5)
    return keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            layers.Conv2D(6, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(4, "softmax"),
        ],
        name="net",
    )


@pytest.fixture(scope="module")
def program(model: Any) -> ChipProgram:
    return tpu.chip.compile(model, X[:32], batch=16)


def refusal(kind: type[AnyTPUError], call: Any) -> str:
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


def test_it_says_what_it_is(program: ChipProgram):
    count = len(program.image().instructions)
    assert repr(program) == f"<ChipProgram 'net', {count} instructions, batches of 16>"
    assert [port.shape for port in (*program.inputs, *program.outputs)] == [(8, 8, 2), (4,)]


def test_it_computes_what_the_model_does(program: ChipProgram, model: Any):
    y = program.run(X)
    assert y.shape == (40, 4) and y.dtype == np.float32
    assert np.abs(y - model.predict(X, verbose=0)).max() < 0.03


def test_its_integers_are_those_of_the_specification(program: ChipProgram):
    scores = program.run_int8(X)
    assert program.network is not None
    logits = program.network.nodes[-1].inputs[0]
    assert scores.dtype == np.int8
    assert (scores == reference.compute(program.network, [X])[logits]).all()


@pytest.mark.parametrize("rows", [0, 1, 15, 16, 17, 40])
def test_any_number_of_rows(program: ChipProgram, rows: int):
    assert (program.run(X[:rows]) == program.run(X)[:rows]).all()
    assert program.run(X[:rows]).shape == (rows, 4)


def test_few_rows_share_a_few_images(program: ChipProgram, tmp_path: Path):
    fresh = tpu.chip.load(program.save(tmp_path / "net.tpu"))
    for rows in (1, 3, 4, 5, 7, 8, 15, 16, 40):
        fresh.run(X[:rows])
    images = list(fresh._images._known.values())
    assert sorted(one.batch for one in images) == [1, 4, 8, 16]
    assert all(one.weights is fresh.image().weights for one in images)


def test_a_knob_stays_out_of_the_instructions(program: ChipProgram):
    program.time(batch=9, weight_bytes_per_s=34e7)
    assert program.image(9).design == program.design


def test_inputs_go_by_their_names():
    keras.utils.set_random_seed(2)
    first, second = keras.Input((6,), name="zeta"), keras.Input((6,), name="alpha")
    model = keras.Model({"zeta": first, "alpha": second}, layers.Subtract()([layers.Dense(3)(first), second[:, :3]]))
    x = {"zeta": X.reshape(-1, 8)[:20, :6], "alpha": X.reshape(-1, 8)[20:40, :6]}
    program = tpu.chip.compile(model, x)
    assert np.abs(program.run(x) - model.predict(x, verbose=0)).max() < 0.1
    assert (program.run({"alpha": x["alpha"], "zeta": x["zeta"]}) == program.run(x)).all()
    assert refusal(ChipError, lambda: program.run({"zeta": x["zeta"], "beta": x["alpha"]})).endswith(
        "are 'alpha', 'zeta', and those given are 'zeta', 'beta'."
    )


def test_an_image_is_compiled_once_for_a_batch(program: ChipProgram):
    assert program.image() is program.image(16) is program.image(design=tpu.chip.TPU_V1)
    assert program.image(3) is program.image(3) is not program.image()


def test_a_knob_changes_the_time_and_a_larger_array_the_instructions(program: ChipProgram):
    before = program.time()
    faster = program.time(weight_bytes_per_s=4 * 34e9)
    assert faster.stall_cycles <= before.stall_cycles and faster.design.weight_bytes_per_s == 4 * 34e9
    assert program.time(array=512).design.array == 512
    assert program.time(batch=200).batch == 200
    assert program.time(events=True).events and not before.events


def test_an_unknown_knob(program: ChipProgram):
    assert refusal(SettingError, lambda: program.time(clock=1e9)) == (
        "a chip has no parameter 'clock'; the parameters are array, clock_hz, unified_buffer_bytes, "
        "accumulator_rows, weight_fifo_tiles, weight_memory_bytes, weight_bytes_per_s, host_bytes_per_s, dies."
    )


@pytest.mark.parametrize("batch", [0, -1, 2.5, True])
def test_a_batch_that_is_none(program: ChipProgram, model: Any, batch: Any):
    message = f"batch must be a positive integer, the examples that go through at a time, not {batch!r}."
    assert refusal(SettingError, lambda: program.time(batch)) == message
    assert refusal(SettingError, lambda: tpu.chip.compile(model, X, batch=batch)) == message


def test_saved_and_read(program: ChipProgram, tmp_path: Path):
    path = program.save(tmp_path / "net.tpu")
    again = tpu.chip.load(path)
    assert (again.run(X) == program.run(X)).all()
    assert again.disassemble(weights=True) == program.disassemble(weights=True)
    assert again.time(batch=7) == program.time(batch=7)


def test_how_it_was_compiled_is_saved_too(model: Any, tmp_path: Path):
    small = tpu.chip.Design(unified_buffer_bytes=16 * 1024)
    firm = tpu.chip.compile(model, X[:32], batch=16, spill=False)
    again = tpu.chip.load(firm.save(tmp_path / "firm.tpu"))
    assert again.time(batch=7) == firm.time(batch=7)
    messages = {refusal(CapacityError, lambda one=one: one.image(design=small)) for one in (firm, again)}
    assert len(messages) == 1 and "spill" in messages.pop()


def test_what_is_loaded_is_checked(tmp_path: Path):
    bare = np.zeros(0, np.uint8)
    pool = file.write(tmp_path / "pool.tpu", Image("pool", (Activate("max", 0, 0, 1), Halt()), bare))
    assert refusal(ChipError, lambda: tpu.chip.load(pool)) == (
        "Instruction 0 (activate) uses the register OUT_PITCH, which is 0. Set it before: set_configuration OUT_PITCH, "
        "..."
    )
    endless = file.write(tmp_path / "endless.tpu", Image("endless", (), bare))
    assert refusal(ChipError, lambda: tpu.chip.load(endless)) == (
        "The program 'endless' does not end: its last instruction must be a halt."
    )
    short = file.write(tmp_path / "short.tpu", Image("short", (ReadWeights(0, 1), Halt()), np.zeros(65536, np.uint8)))
    assert refusal(HazardError, lambda: tpu.chip.load(short)) == (
        "The program ends with something in the weight FIFO, which its next run would take for its own: "
        "read_weights.tile sends for 1, and the products pop 0."
    )


def test_as_text_and_back(program: ChipProgram):
    again = tpu.chip.assemble(program.disassemble(weights=True))
    assert [port.shape for port in again.outputs] == [(4,)]
    assert (again.run(X) == program.run(X)).all()  # the softmax, which the host makes, too
    assert (again.run_int8(X) == program.run_int8(X)).all()
    assert again.image().instructions == program.image().instructions
    assert (again.image().weights == program.image().weights).all()


def test_what_was_assembled_has_one_batch_and_no_network(tmp_path: Path):
    program = tpu.chip.assemble("halt", "stop")
    assert program.network is None and program.time().cycles == 0
    assert refusal(ChipError, lambda: program.image(2)) == (
        "stop was assembled for batches of 1 and for one chip; it has no network to compile anew."
    )
    assert refusal(ChipError, lambda: program.to_onnx(tmp_path / "a.onnx")) == (
        "stop was assembled, so there is no network to write as ONNX."
    )


def test_a_jax_function_with_its_weights_and_one_tensor_as_several_outputs():
    weights = {"w": np.random.default_rng(1).normal(size=(5, 3)).astype("float32")}

    def predict(weights: Any, x: Any) -> Any:
        y = x @ weights["w"]
        return y, y, y.reshape(-1, 1, 3)

    x = X.reshape(-1, 5)[:64]
    program = tpu.chip.compile(predict, x, state=weights)
    assert program.name == "predict"
    assert np.abs(program.run(x)[0] - x @ weights["w"]).max() < 0.2
    for run in (program.run, program.run_int8):
        assert [one.shape for one in run(x)] == [(64, 3), (64, 3), (64, 1, 3)]


def test_a_program_file(model: Any, program: ChipProgram, tmp_path: Path):
    made = tpu.program.of(model, mode="infer", tensors=True, batch_size=8)
    tpu.program.write(made, tmp_path / "net.anytpu")
    again = tpu.chip.compile(tmp_path / "net.anytpu", X[:32])
    assert (again.run_int8(X) == program.run_int8(X)).all()


def test_a_model_that_does_not_know_its_shapes():
    keras.utils.set_random_seed(5)
    model = keras.Sequential([layers.Dense(4, "relu"), layers.Dense(2)])
    x = X.reshape(40, -1)
    assert np.abs(tpu.chip.compile(model, x).run(x) - model.predict(x, verbose=0)).max() < 0.1


def test_sixteen_bits_are_nearer(program: ChipProgram, model: Any):
    exact = model.predict(X, verbose=0)
    wide = tpu.chip.compile(model, X[:32], activation_bits=16)
    assert wide.run_int8(X).dtype == np.int16
    assert np.abs(wide.run(X) - exact).mean() < np.abs(program.run(X) - exact).mean()
    assert wide.time(16).active_cycles == 2 * program.time(16).active_cycles


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"activation_bits": 4}, "activation_bits must be 8 or 16, not 4."),
        ({"method": "max"}, "method must be 'minmax', 'percentile' or 'mse', not 'max'."),
        ({"spill": "no"}, "spill must be True or False, not 'no'."),
        ({"design": None}, "design must be a chip, tpu.chip.TPU_V1 or a tpu.chip.Design, not None."),
        ({"progress": 3}, "progress must be a function that is given a line, such as print, not 3."),
    ],
)
def test_settings_that_are_none(model: Any, keywords: dict[str, Any], message: str):
    assert refusal(SettingError, lambda: tpu.chip.compile(model, X, **keywords)) == message


def test_an_image_for_what_is_no_chip(program: Any):
    assert refusal(SettingError, lambda: program.image(design=3)) == (
        "design must be a chip, tpu.chip.TPU_V1 or a tpu.chip.Design, not 3."
    )


def test_no_calibration(model: Any):
    assert refusal(CalibrationError, lambda: tpu.chip.compile(model)) == (
        "calibration is missing: give examples of what the model will see, from which the ranges of its numbers are "
        "taken, such as calibration=x_train[:256]."
    )


@pytest.mark.parametrize(
    ("calibration", "said"),
    [(5, "5"), (np.float32(2), "np.float32(2.0)"), ({"x": 5}, "5"), ([X, 5], "5"), ([[[1], [2, 3]]], "[[1], [2, 3]]")],
)
def test_calibration_that_is_no_array(model: Any, calibration: Any, said: str):
    assert refusal(CalibrationError, lambda: tpu.chip.compile(model, calibration)) == (
        f"calibration must be an array of examples, or an array for each input, not {said}: give some of what the "
        "model will see, such as calibration=x_train[:256]."
    )


def test_calibration_that_is_a_path(model: Any):
    for calibration in ("x.npy", Path("x.npy"), ["x.npy"]):
        assert refusal(CalibrationError, lambda given=calibration: tpu.chip.compile(model, given)) == (
            "calibration is the name of a file; load it: calibration=np.load('x.npy')."
        )


NO_PATH: Any = None
NO_TEXT: Any = b"halt"


def test_what_is_no_path_and_no_text(program: ChipProgram):
    verbs = (program.save, program.to_onnx, program.to_html, program.trace, program.to_svg, program.to_png)
    for verb in (*verbs, tpu.chip.load):
        assert refusal(SettingTypeError, lambda verb=verb: verb(NO_PATH)) == (
            "a path must be a string or a pathlib.Path, not None."
        )
    assert refusal(SettingTypeError, lambda: tpu.chip.assemble(NO_TEXT)) == (
        "a text in assembly must be a string, not b'halt'."
    )


def test_infinite_numbers_saturate(program: ChipProgram):
    infinite = np.where(X[:4] < 0, -np.inf, np.inf)
    assert (program.run(infinite) == program.run(np.where(X[:4] < 0, -1e30, 1e30))).all()


def test_too_small_a_buffer_spills_or_is_an_error(model: Any, program: ChipProgram):
    # What the convolution makes of 16 examples is 18 KiB, and what it takes 32.
    small = tpu.chip.Design(unified_buffer_bytes=48 * 1024)
    assert (tpu.chip.compile(model, X[:32], batch=8, design=small).run_int8(X) == program.run_int8(X)).all()
    with pytest.raises(CapacityError):
        tpu.chip.compile(model, X[:32], batch=64, design=small, spill=False)


def test_an_unknown_name():
    with pytest.raises(AttributeError) as caught:
        tpu.chip.conpile  # noqa: B018
    assert str(caught.value) == (
        "anytpu.chip has no name 'conpile'; it has TPU_V1, ChipProgram, Design, assemble, compile, load."
    )


def test_a_window_beyond_the_registers():
    x = np.random.default_rng(0).normal(size=(2, 70_000, 1)).astype("float32")
    message = refusal(CapacityError, lambda: tpu.chip.compile(lambda _, b: b.mean(axis=1), x, state={}, batch=1))
    assert message == (
        "layer 'average_pool' is too large for the chip: register KERNEL_WIDTH must be a number from 0 to 65535, not "
        "70000. Use smaller inputs or windows."
    )


def test_no_rows_of_a_program_without_a_network(program: ChipProgram):
    again = tpu.chip.assemble(program.disassemble(weights=True))
    assert again.run(X[:0]).shape == program.run(X[:0]).shape == (0, 4)
    assert again.run_int8(X[:0]).shape == program.run_int8(X[:0]).shape
    assert again.run_int8(X[:0]).dtype == np.int8
