"""`anytpu chip`: from a file with a model to a page, by the command line alone."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import chip_onnx_sample
from anytpu.chip.actions import parse_design_parameters
from anytpu.cli import main
from anytpu.errors import SettingError

SCRIPT = """\
    import keras
    import numpy as np
    from keras import layers


    def create_model():
        keras.utils.set_random_seed(1)
        return keras.Sequential([keras.Input((6,)), layers.Dense(8, "relu"), layers.Dense(3)], name="tiny")


    def with_examples():
        return create_model(), np.random.default_rng(0).normal(size=(20, 6))


    def two_inputs():
        a, b = keras.Input((6,), name="a"), keras.Input((6,), name="b")
        joined = layers.Concatenate()([a, b])
        return keras.Model({"a": a, "b": b}, [layers.Dense(3)(joined), layers.Dense(2)(joined)], name="joint")


    def with_weights():
        rng = np.random.default_rng(0)
        return (lambda weights, x: x @ weights), rng.normal(size=(20, 6)), rng.normal(size=(6, 3)).astype("float32")
    """
TEXT = """\
.name "add"
.batch 1
halt
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of models, examples, and the program that was compiled of them."""
    path = tmp_path_factory.mktemp("chip")
    (path / "nets.py").write_text(textwrap.dedent(SCRIPT))
    rng = np.random.default_rng(0)
    np.save(path / "x.npy", rng.normal(size=(20, 6)).astype("float32"))
    np.save(path / "labels.npy", rng.integers(0, 3, 20))
    np.save(path / "x0.npy", np.zeros((0, 6), "float32"))
    np.save(path / "y0.npy", np.zeros(0))
    np.save(path / "far.npy", np.arange(100, 120))
    a, b = rng.normal(size=(2, 20, 6)).astype("float32")
    np.savez(path / "ba.npz", b=b, a=a)
    np.savez(path / "arr.npz", a, b)
    np.savez(path / "pair.npz", a=a, c=b)
    (path / "prog.s").write_text(TEXT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.setattr(sys, "path", [*sys.path])
        assert main(["chip", "compile", "nets.py:create_model", "--calibration", "x.npy", "--batch", "4"]) == 0
    return path


@pytest.fixture(autouse=True)
def there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])


def output(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["chip", *words]) == 0
    return capsys.readouterr().out


def error(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["chip", *words]) == 2, words
    return capsys.readouterr().err.splitlines()[-1].removeprefix("anytpu: ")


def test_compile_says_what_became_of_the_model(capsys: pytest.CaptureFixture[str]):
    text = output(capsys, "compile", "nets.py:with_examples", "-o", "other.tpu", "--bits", "16", "--onnx", "other.onnx")
    assert "tiny" in text and text.endswith("Wrote other.tpu\nWrote other.onnx\n")
    assert Path("other.tpu").stat().st_size > 0 and Path("other.onnx").stat().st_size > 0


def test_run_prints_or_writes_the_results(capsys: pytest.CaptureFixture[str]):
    assert output(capsys, "run", "nets.tpu", "--input", "x.npy").startswith("float32 [20, 3]\n[[")
    text = output(capsys, "run", "nets.tpu", "--input", "x.npy", "--int8", "-o", "q.npy", "--labels", "labels.npy")
    assert re.fullmatch(r"int8 \[20, 3\]\n\d+ of 20 right, \d+\.\d\d%\nWrote q\.npy\n", text)
    assert np.load("q.npy").dtype == np.int8


def test_time_is_predicted_and_knobs_are_turned(capsys: pytest.CaptureFixture[str]):
    words = ["time", "nets.tpu", "--batch", "200", "--json", "time.json", "--trace", "trace.json"]
    text = output(capsys, *words, "--set", "array=512", "--set", "weight_bytes_per_s=136e9")
    assert "Predicted" in text and text.endswith("Wrote time.json\nWrote trace.json\n")
    record = json.loads(Path("time.json").read_text())
    assert record["batch"] == 200 and record["predicted"] is True
    assert record["examples_per_s"] == 200 / record["time_s"] and record["ops_per_s"] > 0
    assert record["design"]["array"] == 512 and record["design"]["weight_bytes_per_s"] == 136e9
    assert json.loads(Path("trace.json").read_text())["traceEvents"]


def test_text_becomes_a_program_and_a_program_text(capsys: pytest.CaptureFixture[str]):
    assert output(capsys, "asm", "prog.s") == "Wrote prog.tpu\n"
    assert "halt" in output(capsys, "disasm", "prog.tpu")
    assert output(capsys, "disasm", "nets.tpu", "--weights", "-o", "nets.s") == "Wrote nets.s\n"
    assert output(capsys, "asm", "nets.s", "-o", "again.tpu") == "Wrote again.tpu\n"
    run = ["--input", "x.npy", "--int8"]
    assert output(capsys, "run", "again.tpu", *run).count("\n") == output(capsys, "run", "nets.tpu", *run).count("\n")


def test_report_prints_or_writes(capsys: pytest.CaptureFixture[str]):
    assert "tiny" in output(capsys, "report", "nets.tpu")
    text = output(capsys, "report", "nets.tpu", "--html", "chip.html", "--svg", "plots", "--png", "plots")
    assert text.startswith("Wrote chip.html\nWrote plots")
    assert "<html" in Path("chip.html").read_text()


ERRORS = """
compile nets.py
    name the job to compile: a function in a file, like train.py:create_model, a program file, .anytpu, or a quantized
    file, .onnx or .mlir
compile nets.py:create_model
    input examples are missing; the value ranges for quantization are calibrated on them: --calibration x.npy
compile nets.py:create_model --calibration none.npy
    'none.npy' cannot be read as an array: No such file or directory; np.save('none.npy', x) writes one
time nets.tpu --set clock
    --set takes KNOB=VALUE, such as weight_bytes_per_s=136e9 or array=512, not 'clock'
run nets.tpu --input labels.npy
    the input of tiny must have the shape (rows, 6), not (20,).
run nets.tpu --input x.npy --labels x.npy
    --labels takes one class per row, for a program with one score per class; the program returned (20, 3), the file has
    (20, 6)
run nets.tpu --input x.npy -o no/y.npy
    -o no/y.npy: there is no folder 'no'; make it: mkdir -p no
asm none.s
    'none.s' cannot be read: No such file or directory
disasm nets.tpu -o no/n.s
    -o no/n.s: there is no folder 'no'; make it: mkdir -p no
run nets.tpu --input x.npy --labels far.npy
    --labels takes a class index per row, from 0 to 2 for this program's scores; 'far.npy' holds int64, such as 100
run nets.tpu --input x.npy --labels pair.npz
    --labels takes one array, but 'pair.npz' holds 2; np.save writes one
fly
    argument ACTION: invalid choice: 'fly' (choose from 'compile', 'run', 'time', 'asm', 'disasm', 'report'); see
    `anytpu chip --help`
time nets.tpu --jsn a
    anytpu chip time does not take --jsn a; did you mean --json? see `anytpu chip time --help`
"""
PLACES = """
compile -o out.bin
    a program is written to a file whose name ends in .tpu: -o out.tpu
compile -o no/out.tpu
compile --onnx no/out.onnx
run --input none.npy -o y.csv
    a result is written to a file whose name ends in .npy or .npz: -o y.npy
run --input none.npy -o y
    a result is written to a file whose name ends in .npy or .npz: -o y.npy
time --json no/t.json
time --trace no/t.json
asm -o no/a.tpu
asm -o a.bin
    a program is written to a file whose name ends in .tpu: -o a.tpu
report --html no/a.html
report --svg x.npy
    'x.npy' is not a folder; name a folder, which is created: --svg plots
report --png x.npy
    'x.npy' is not a folder; name a folder, which is created: --png plots
"""
NO_FOLDER = "there is no folder 'no'; make it: mkdir -p no"


def table(text: str) -> list[tuple[list[str], str]]:
    """Return the words of each command, and what it answers, which is indented below it."""
    entries = re.split(r"\n(?=\S)", text.strip())
    return [(line.split(), " ".join(answer.split())) for line, _, answer in (one.partition("\n") for one in entries)]


def test_errors(capsys: pytest.CaptureFixture[str]):
    told = [(" ".join(words), error(capsys, *words), message) for words, message in table(ERRORS)]
    assert [case for case in told if case[1] != case[2]] == []


def test_where_it_is_written_is_looked_at_first(capsys: pytest.CaptureFixture[str]):
    # What is to be read is not there either, and nothing says so.
    wrong = []
    for words, message in table(PLACES):
        text = error(capsys, words[0], "none.py:none" if words[0] == "compile" else "none.tpu", *words[1:])
        if text != f"{words[-2]} {words[-1]}: {message or NO_FOLDER}":
            wrong.append((" ".join(words), text))
    assert wrong == []


def test_no_rows_are_run_too(capsys: pytest.CaptureFixture[str]):
    words = ["run", "nets.tpu", "--input", "x0.npy", "--labels", "y0.npy"]
    assert output(capsys, *words) == "float32 [0, 3]\n[]\n0 of 0 right\n"


def test_inputs_go_by_their_names_and_outputs_into_an_npz_file(capsys: pytest.CaptureFixture[str]):
    output(capsys, "compile", "nets.py:two_inputs", "--calibration", "ba.npz", "-o", "in.tpu")
    assert error(capsys, "run", "in.tpu", "--input", "ba.npz", "-o", "y.npy") == (
        "the program has 2 outputs; name a .npz file: -o y.npz"
    )
    for name in ("ba", "arr"):
        output(capsys, "run", "in.tpu", "--input", f"{name}.npz", "-o", f"y_{name}.npz")
    named, ordered = np.load("y_ba.npz"), np.load("y_arr.npz")
    assert {name: array.shape for name, array in named.items()} == {"output0": (20, 3), "output1": (20, 2)}
    assert all((named[name] == ordered[name]).all() for name in named)
    assert error(capsys, "run", "in.tpu", "--input", "pair.npz") == (
        "the inputs of joint are 'a', 'b', and those given are 'a', 'c'."
    )


def test_a_function_of_jax_brings_its_weights(capsys: pytest.CaptureFixture[str]):
    output(capsys, "compile", "nets.py:with_weights", "-o", "jax.tpu")
    assert output(capsys, "run", "jax.tpu", "--input", "x.npy").startswith("float32 [20, 3]\n")


def test_a_quantized_file_needs_no_examples(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "small.onnx").write_bytes(chip_onnx_sample.small_file(True).SerializeToString())
    np.save(folder / "pictures.npy", np.zeros((3, 2, 4, 6), "float32"))
    assert "Wrote small.tpu" in output(capsys, "compile", "small.onnx")
    assert output(capsys, "run", "small.tpu", "--input", "pictures.npy").startswith("float32 [3, 3]\n")


def test_knobs_that_are_none(capsys: pytest.CaptureFixture[str]):
    cases = {
        typed: f"--set takes KNOB=VALUE, such as weight_bytes_per_s=136e9 or array=512, not {typed!r}"
        for typed in ("=3", "array=", "clock_hz=fast")
    } | {
        typed: f"--set {typed}: array must be an integer, such as array=256"
        for typed in ("array=1.5", "array=nan", "array=inf")
    }
    told = {}
    for typed in cases:
        with pytest.raises(SettingError) as caught:
            parse_design_parameters([typed])
        told[typed] = str(caught.value)
    assert told == cases
    cases = {
        typed: f"a chip has no parameter {typed!r}; the parameters are array, clock_hz, unified_buffer_bytes, "
        "accumulator_rows, weight_fifo_tiles, weight_memory_bytes, weight_bytes_per_s, host_bytes_per_s, dies."
        for typed in ("events", "batch", "size")
    }
    assert {typed: error(capsys, "time", "nets.tpu", "--set", f"{typed}=3") for typed in cases} == cases


def test_a_chip_of_one_row_of_accumulators_and_one_that_cannot_be(capsys: pytest.CaptureFixture[str]):
    assert "Predicted" in output(capsys, "time", "nets.tpu", "--set", "accumulator_rows=1")
    cases = {
        "clock_hz=nan": "clock_hz of a chip must be a number from 0.001 to 1e18, not nan.",
        "array=4096": "array of a chip must be an integer from 1 to 2,048, not 4096.",
    }
    assert {typed: error(capsys, "time", "nets.tpu", "--set", typed) for typed in cases} == cases
