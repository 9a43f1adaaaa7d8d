"""`anytpu shard`, up to the public function that it calls."""

import json

import pytest

import anytpu as tpu
from anytpu.cli.entry import main
from plan_samples import layouts

MODEL = """\
import keras
def create_model():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    return model
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(MODEL)
    return f"{path}:create_model"


@pytest.fixture
def calls(monkeypatch):
    made = []

    def find_layouts(job, **settings):
        made.append((job, settings))
        return layouts()

    monkeypatch.setattr(tpu, "find_layouts", find_layouts, raising=False)
    return made


def test_the_command_passes_its_settings_and_prints_the_layouts(script, calls, capsys, tmp_path):
    words = ["--tpu", "v5e-8,v6e-8", "--batch", "64", "--compile", "3", "--rank", "cost", "--infer"]
    assert main(["shard", script, *words, "--json", str(tmp_path / "found.json")]) == 0
    (job, settings) = calls[0]
    assert job.name.startswith("sequential")
    assert settings["tpu"] == ["v5e-8", "v6e-8"]
    assert (settings["batch_size"], settings["compile"], settings["rank"], settings["mode"]) == (64, 3, "cost", "infer")
    out = capsys.readouterr().out
    assert out.startswith("Layouts of net/train by the time of a step, predicted")
    assert out.splitlines()[-1] == f"Wrote {tmp_path / 'found.json'}"
    assert len(json.loads((tmp_path / "found.json").read_text())["candidates"]) == 3


def test_a_model_without_a_batch_is_told_the_option(script, calls, capsys):
    assert main(["shard", script]) == 2
    assert calls == []
    assert capsys.readouterr().err.splitlines()[-1].partition("' has")[2] == (
        " no fixed batch; give the examples per step over all devices: --batch 1024"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tpu", "v5e-7"], "'v5e-7' is not a TPU that exists"),
        (["--compile", "0"], "argument --compile: must be a positive integer, not '0'"),
        (["--rank", "speed"], "argument --rank: invalid choice: 'speed'"),
    ],
)
def test_bad_words_get_one_message_and_status_2(script, words, message, capsys):
    try:
        status = main(["shard", script, *words])
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    assert message in capsys.readouterr().err
