"""`anytpu plan`, with the real compiler where a test says so, else up to the public functions that it calls."""

from __future__ import annotations

import dataclasses
import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import anytpu
from anytpu.cli import main
from anytpu.cli.entry import build_parser
from anytpu.cli.script import job_of
from anytpu.errors import SettingError
from anytpu.planning.commands.plan import renewed
from anytpu.planning.commands.planning import show
from anytpu.program import ROWS, Layout, of, write
from cli.commands import anytpu as command

SCRIPT = """\
    import keras
    from keras import layers


    def create_model():
        model = keras.Sequential([layers.Input((16,)), layers.Dense(8), layers.Dense(4)], name="tiny")
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model


    def uncompiled():
        return keras.Sequential([layers.Input((16,)), layers.Dense(4)], name="plain")
    """


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def error_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["plan", *words]) == 2
    return capsys.readouterr().err.splitlines()[-1].removeprefix("anytpu: ")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """What the public functions are called with; nothing is compiled."""
    made: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    @dataclasses.dataclass
    class Answer:
        agrees: bool = False
        job: str = "net/train"

        def __str__(self) -> str:
            return "an answer"

        def show(self) -> None:
            print(self)

        def to_html(self, path: Path) -> Path:
            return path

        to_json = to_html

        def to_svg(self, folder: Path) -> list[Path]:
            return [folder / "a.svg", folder / "b.svg"]

    def function(name: str, answer: Any) -> None:
        def called(*args: Any, progress: Any = str, **settings: Any) -> Any:
            progress(f"{name} works")
            made.append((name, args, settings))
            return answer

        monkeypatch.setitem(vars(anytpu), name, called)

    function("plan", Answer())
    function("scaling", Answer())
    function("check", Answer())
    function("max_batch_size", 1024)
    function("ways_to_fit", Answer())
    function("plan_serving", Answer())
    return made


DEFAULTS = {
    "input_specs": None,
    "mode": None,
    "precision": None,
    "batch_axis": None,
    "layout": None,
    "mesh": None,
    "timeout_s": 600.0,
    "use_cache": True,
    "name": "train.py:create_model",
}
OLD = ("--ways", "--max-batch", "--scaling", "--answer", "--check")
RUN_DEFAULTS = {
    **DEFAULTS,
    "steps_per_execution": None,
    "input_examples_per_s": None,
    "examples": None,
    "epochs": None,
    "prices": None,
    "advise": False,
}


def test_a_plan_of_the_real_compiler(folder: Path):
    words = ["train.py:create_model", "--tpu", "v2-8", "--batch", "64", "--json", "plan.json", "--html", "plan.html"]
    run = command("plan", *words, folder=folder)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[0] == "train.py:create_model"
    assert run.stdout.splitlines()[-2:] == ["Wrote plan.html", "Wrote plan.json"]
    (one,) = json.loads((folder / "plan.json").read_text())["predictions"]
    assert (one["tpu"], one["batch_size"], one["fits"], one["program"]) == ("v2-8", 64, True, "tiny/train")
    assert 0 < one["interval_s"][0] < one["step_s"] < one["interval_s"][1]
    assert run.stderr.splitlines() == [
        "train.py:create_model on v2-8: tracing it",
        "train.py:create_model on v2-8 (v2:2x2), 64 examples a step",
    ]
    assert "<html" in (folder / "plan.html").read_text()


def test_a_stablehlo_file_of_which_nothing_is_split(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "net.mlir").write_text(jax.jit(lambda x: x * 2).lower(np.zeros((64, 128), "float32")).as_text())
    assert main(["plan", "net.mlir", "--tpu", "v2-8", "--json", "plan.json"]) == 0
    (one,) = json.loads((folder / "plan.json").read_text())["predictions"]
    assert one["notes"] == [
        "Nothing of this program is split: each of the 8 devices computes all of it. Of a StableHLO file, say whose "
        "rows are split: input_specs={0: anytpu.program.ROWS}, or --split 0."
    ]
    assert capsys.readouterr().out.splitlines()[0] == "net.mlir"


def test_what_is_asked_of_plan(folder: Path, calls: list, capsys: pytest.CaptureFixture[str]):
    assert main(["plan", "train.py:create_model", "--batch", "64"]) == 0
    ((name, (model,), settings),) = calls
    assert (name, model.name) == ("plan", "tiny")
    systems = ["v2-8", "v3-8", "v4-8", "v5e-8", "v6e-8"]
    assert settings == {"batch_size": 64, "tpu": systems, "sweep_batches": [], **RUN_DEFAULTS}
    assert capsys.readouterr() == ("an answer\n", "plan works\n")


def test_everything_that_can_be_typed(folder: Path, calls: list, capsys: pytest.CaptureFixture[str]):
    words = "--tpu v3-8,v5e-16 --batch 64 --infer --precision bfloat16 --steps-per-execution 50 --batch-axis -1"
    more = "--examples 6400 --epochs 90 --prices p.csv --advise --sweep-batch 32,128 --timeout 60 --no-cache"
    files = "--layout fsdp --mesh data=4,model=2 --input-rate 1e4 --html a.html --json a.json --svg plots"
    (folder / "p.csv").write_text("chip,usd_per_chip_hour\nv3,1.5\n")
    assert main(["plan", "train.py:create_model", *words.split(), *more.split(), *files.split()]) == 0
    ((_, _, settings),) = calls
    assert settings == {
        "batch_size": 64,
        "tpu": ["v3-8", "v5e-16"],
        "sweep_batches": [32, 128],
        "input_specs": None,
        "mode": "infer",
        "precision": "bfloat16",
        "batch_axis": -1,
        "timeout_s": 60.0,
        "use_cache": False,
        "name": "train.py:create_model",
        "layout": "fsdp",
        "mesh": {"data": 4, "model": 2},
        "steps_per_execution": 50,
        "input_examples_per_s": 10_000.0,
        "examples": 6400,
        "epochs": 90,
        "prices": Path("p.csv"),
        "advise": True,
    }
    assert capsys.readouterr().out.splitlines() == [
        "an answer",
        "Wrote a.html",
        "Wrote a.json",
        "Wrote 2 plots into plots",
    ]


@pytest.mark.parametrize("fails", ["to_json", "show"])
def test_files_and_terminal_do_not_wait_for_each_other(folder: Path, fails: str):
    called = []

    class Answer:
        def __getattr__(self, name: str) -> Any:
            def write(*path: Path) -> Path | None:
                called.append(name)
                if name == fails:  # a reader that went away, or a disk that is full
                    raise BrokenPipeError
                return path[0] if path else None

            return write

    typed = build_parser().parse_args(["plan", "net.mlir", "--html", "a.html", "--json", "a.json"])
    with pytest.raises(BrokenPipeError):
        show(Answer(), typed)
    assert called == ["to_html", "to_json", "show"]


def test_the_arguments_of_a_file_that_are_split(folder: Path, calls: list):
    assert main(["plan", "net.mlir", "--split", "0,2"]) == 0
    ((_, (job,), settings),) = calls
    assert (job, settings["input_specs"]) == ("net.mlir", {0: ROWS, 2: ROWS})


STEPS = """\
    import jax


    def step(state, batch):
        return state, {}


    def create_images():
        spec = jax.ShapeDtypeStruct
        return step, ((), {"labels": spec((64,), "int32"), "images": spec((8, 8, 3, 64), "float32")})


    def create_step(devices, rows=8):
        mesh = jax.sharding.AbstractMesh((devices,), ("data",))
        lies = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
        return step, ((), jax.ShapeDtypeStruct((rows * devices,), "float32", sharding=lies))


    def create_number(devices):
        return devices


    def fails(devices):
        return devices.rows
    """


def test_the_axes_of_the_examples(folder: Path, calls: list, capsys: pytest.CaptureFixture[str]):
    (folder / "steps.py").write_text(textwrap.dedent(STEPS))
    assert main(["plan", "steps.py:create_images", "--batch-axis", "3,0"]) == 0
    assert main(["plan", "steps.py:create_step", "--batch-axis=0,none"]) == 0
    assert [settings["batch_axis"] for _, _, settings in calls] == [{"images": 3, "labels": 0}, (0, None)]
    assert main(["plan", "net.mlir", "--split", "0,2", "--batch-axis", "3"]) == 0
    assert main(["plan", "net.mlir", "--split", "0,2", "--batch-axis", "3,0"]) == 0
    assert [(settings["input_specs"], settings["batch_axis"]) for _, _, settings in calls[2:]] == [
        ({0: Layout(3), 2: Layout(3)}, None),
        ({0: Layout(3), 2: Layout(0)}, None),
    ]
    capsys.readouterr()
    assert error_of(capsys, "steps.py:create_images", "--batch-axis", "3,0,1") == (
        "--batch-axis names 3 axes, but the batch has 2 arrays; name one axis, or one per array"
    )
    assert error_of(capsys, "net.mlir", "--split", "0", "--batch-axis", "3,0") == (
        "--batch-axis names 2 axes, but --split names 1 arguments; name one axis, or one per argument"
    )
    assert error_of(capsys, "net.mlir", "--split", "0", "--batch-axis", "-1") == (
        "--batch-axis counts the axes of a file's arguments from 0; write 3, not -1"
    )
    assert error_of(capsys, "net.mlir", "--batch-axis", "3") == (
        "--batch-axis gives the axes of the arguments of net.mlir that --split names; add --split 0"
    )


def test_a_function_of_the_devices(folder: Path, calls: list, capsys: pytest.CaptureFixture[str]):
    (folder / "steps.py").write_text(textwrap.dedent(STEPS))
    assert main(["plan", "scaling", "steps.py:create_step", "--tpu", "v5e", "--cores", "8,16"]) == 0
    ((name, (made,), settings),) = calls
    step, (_, batch) = made(16)
    assert (name, step.__name__, batch.shape, settings["input_specs"]) == ("scaling", "step", (128,), None)
    capsys.readouterr()
    with pytest.raises(SettingError) as raised:
        job_of("steps.py", "create_number", has_values=True)[0](8)
    assert str(raised.value).startswith("create_number() in steps.py returned 8 (int), which cannot be planned")
    with pytest.raises(SettingError) as raised:
        job_of("steps.py", "fails", has_values=True)[0](8)
    assert str(raised.value) == (
        "steps.py, line 24, in fails: AttributeError: 'int' object has no attribute 'rows'; --traceback shows the "
        "whole traceback"
    )


def test_scaling(folder: Path, calls: list):
    assert main(["plan", "scaling", "train.py:create_model", "--tpu", "v3-8", "--batch", "64", "--cores", "8,32"]) == 0
    ((name, _, settings),) = calls
    assert name == "scaling"
    assert settings == {"tpu": "v3", "cores": [8, 32], "batch_size": 64, **RUN_DEFAULTS}


def test_the_largest_batch(folder: Path, calls: list, capsys: pytest.CaptureFixture[str]):
    assert main(["plan", "batch", "train.py:create_model", "--tpu", "v2-8,v3-8"]) == 0
    assert [(name, tpu, settings) for name, (_, tpu), settings in calls] == [
        ("max_batch_size", tpu, DEFAULTS) for tpu in ("v2-8", "v3-8")
    ]
    assert capsys.readouterr().out == "v2-8: 1,024 examples per step\nv3-8: 1,024 examples per step\n"


def test_the_ways_to_fit(folder: Path, calls: list, capsys: pytest.CaptureFixture[str]):
    assert main(["plan", "ways", "train.py:create_model", "--tpu", "v2-8,v3-8", "--batch", "64"]) == 0
    settings = {name: value for name, value in DEFAULTS.items() if name != "mode"} | {"prices": None, "batch_size": 64}
    assert [(name, given) for name, _, given in calls] == [
        ("ways_to_fit", {**settings, "tpu": tpu}) for tpu in ("v2-8", "v3-8")
    ]
    assert capsys.readouterr().out == "an answer\nan answer\n"


def test_the_largest_batch_of_a_layout(folder: Path, calls: list, capsys: pytest.CaptureFixture[str]):
    words = "--tpu v2-8 --layout fsdp --mesh data=-1,model=2"
    assert main(["plan", "batch", "train.py:create_model", *words.split()]) == 0
    ((_, _, settings),) = calls
    assert settings == {**DEFAULTS, "layout": "fsdp", "mesh": {"data": -1, "model": 2}}


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        ("data=4,data=2", "must give each axis one size, and 'data=4,data=2' gives 'data' several"),
        ("data=-2", "must be names with sizes, like data=4,model=2, not 'data=-2'"),
        ("data=", "must be names with sizes, like data=4,model=2, not 'data='"),
    ],
)
def test_a_mesh_that_means_nothing(folder: Path, mesh: str, message: str, capsys: pytest.CaptureFixture[str]):
    words = ["train.py:create_model", "--layout", "fsdp", "--mesh", mesh]
    assert error_of(capsys, *words) == f"argument --mesh: {message}; see `anytpu plan --help`"


def test_the_cores_are_compared(folder: Path, calls: list, capsys: pytest.CaptureFixture[str]):
    words = ["plan", "compare-cores", "train.py:create_model"]
    assert main([*words, "--batch", "48"]) == 1
    ((name, (model,), settings),) = calls
    assert (name, model.name, settings) == ("check", "tiny", {"batch_size": 48})
    assert capsys.readouterr().out == "an answer\n"
    assert main([*words, "--layout", "fsdp", "--mesh", "data=-1,model=2"]) == 1
    assert calls[1][2] == {"layout": "fsdp", "mesh": {"data": -1, "model": 2}}


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("JOB --tpu v2-8 --ways", "ways JOB --tpu v2-8", "ways_to_fit"),
        ("JOB --max-batch --tpu v2-8", "batch JOB --tpu v2-8", "max_batch_size"),
        ("JOB --batch 8 --scaling=8,32", "scaling JOB --batch 8 --cores 8,32", "scaling"),
        ("JOB --batch 8 --tpu v2-8 --answer 9", "answers JOB --batch 8 --tpu v2-8 --new-tokens 9", "plan_serving"),
        ("JOB --check --batch 48", "compare-cores JOB --batch 48", "check"),
        ("--batch 48 --check JOB", "compare-cores --batch 48 JOB", "check"),
        ("--batch 48 --check=JOB", "compare-cores --batch 48 JOB", "check"),
    ],
)
def test_an_older_spelling_says_the_new_one(
    old: str, new: str, name: str, folder: Path, calls: list, capsys: pytest.CaptureFixture[str]
):
    job = "train.py:create_model"
    assert main(["plan", *old.replace("JOB", job).split(), *(["--batch", "8"] if "ways" in name else [])]) in (0, 1)
    option = next(word.partition("=")[0] for word in old.split() if word.partition("=")[0] in OLD)
    said = f"anytpu: {option} is a command now, and goes with the next version; type: anytpu plan {new}"
    assert capsys.readouterr().err.startswith(said.replace("JOB", job))
    assert [called for called, _, _ in calls] == [name]


@pytest.mark.parametrize(
    ("words", "new"),
    [
        ("--check gemma3_1b", ["compare-cores", "gemma3_1b"]),
        ("nofile.py:f --check a:b.lock", ["nofile.py:f", "--check", "a:b.lock"]),
        ("--batch 8 --check a.lock gemma3_1b", ["--batch", "8", "--check", "a.lock", "gemma3_1b"]),
    ],
)
def test_the_word_after_check_is_the_job_if_there_is_no_other(words: str, new: list[str]):
    assert renewed(words.split()) == new


def test_a_lock_and_its_check(folder: Path, capsys: pytest.CaptureFixture[str]):
    words = ["plan", "train.py:create_model", "--tpu", "v2-8", "--batch", "64"]
    assert main([*words, "--lock", "plan.lock"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "Wrote plan.lock"
    assert main([*words, "--check", "plan.lock", "--tolerance", "0,0", "--json", "plan.json"]) == 0
    assert capsys.readouterr().out == "plan.lock holds.\nWrote plan.json\n"
    record = json.loads((folder / "plan.lock").read_text())
    (step,) = record["steps"]
    assert step["collective_calls"] == {"all-reduce": 1} and set(step["layers_ms"]) > {"(host)"}
    step["step_ms"] *= 0.92
    (folder / "plan.lock").write_text(json.dumps(record))
    assert main([*words, "--check", "plan.lock", "--tolerance", "10"]) == 0
    capsys.readouterr()
    assert main([*words, "--check", "plan.lock"]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["plan.lock does not hold: 1 of 1 step got worse.", "", "v2-8, 64 examples a step"]
    assert lines[3].startswith("  worse: a step takes ") and ", 8.7 % more than " in lines[3]
    assert lines[4:] == ["", "If this is intended, write the lock again: anytpu plan ... --lock plan.lock"]
    assert error_of(capsys, *words[1:-2], "--batch", "128", "--check", "plan.lock") == (
        "plan.lock has other steps than this plan: only the lock has v2-8, 64 examples a step, and only the plan has "
        "v2-8, 128 examples a step. Plan the steps of the lock, or write it again: anytpu plan ... --lock plan.lock"
    )


def test_what_is_nothing_to_plan(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert error_of(capsys) == (
        "name the job to plan: a function in a file, like train.py:create_model, a program file, .anytpu or .mlir, or "
        "a language model, like gemma3_1b"
    )
    assert error_of(capsys, "resnet") == (
        "'resnet' cannot be planned; name a function in a file, like train.py:create_model, or a program "
        "file, .anytpu or .mlir"
    )
    assert error_of(capsys, "net.keras") == (
        "'net.keras' is a saved model, and a plan needs a compiled one: write train.py with a function, def "
        "create_model(): return keras.models.load_model('net.keras'), and plan train.py:create_model"
    )
    assert error_of(capsys, "train.py") == (
        "name the function of train.py that returns the model, like train.py:create_model; its functions are "
        "create_model, uncompiled"
    )
    assert error_of(capsys, "none.py") == (
        "there is no file 'none.py'; name a function in a file, like train.py:create_model"
    )
    assert error_of(capsys, "train.py:create_model", "--split", "1") == (
        "--split names arguments of a .mlir file, but 'train.py:create_model' is not one; leave it out"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tpu", ","], "argument --tpu: must be one or more names separated by commas, not ','"),
        (["--batch", "-8"], "argument --batch: must be a positive integer, not '-8'"),
        (["--sweep-batch", "8,x"], "argument --sweep-batch: must be a positive integer, not 'x'"),
        (["--input-rate", "fast"], "argument --input-rate: must be a positive number, not 'fast'"),
        (["--timeout", "0"], "argument --timeout: must be a positive number, not '0'"),
        (
            ["--batch-axis", "a"],
            "argument --batch-axis: must be axes separated by commas, like 3,0,none, not 'a'",
        ),
        (["--tolerance", "5,2,1"], "argument --tolerance: must be one or two percentages, such as 5,2, not '5,2,1'"),
        (["--tolerance", "-1"], "argument --tolerance: must be one or two percentages, such as 5,2, not '-1'"),
        (["--tolerance", "five"], "argument --tolerance: must be one or two percentages, such as 5,2, not 'five'"),
        (["--split", "a"], "argument --split: must be integers from 0 separated by commas, not 'a'"),
    ],
)
def test_words_that_are_wrong(words: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert error_of(capsys, "net.mlir", *words) == f"{message}; see `anytpu plan --help`"


def test_a_model_that_cannot_be_planned(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert error_of(capsys, "train.py:uncompiled", "--batch", "64") == (
        "the model 'plain' is not compiled: call model.compile(optimizer, loss) first, or ask for mode=\"infer\" "
        "(--infer)"
    )
    assert error_of(capsys, "train.py:create_model") == (
        "the model 'tiny' has no fixed batch; give the examples per step over all devices: --batch 1024"
    )


def test_a_sweep_of_what_has_one_batch(folder: Path, capsys: pytest.CaptureFixture[str]):
    program = of(lambda w, x: (w, x @ w), (np.zeros((8, 2), "float32"), np.zeros((16, 8), "float32")))
    write(program, "net.anytpu")
    (folder / "net.mlir").write_text(jax.jit(lambda x: x * 2).lower(np.zeros((64, 128), "float32")).as_text())
    for kind, name, rows in (("program", "net.anytpu", " of 16 rows"), ("StableHLO", "net.mlir", "")):
        assert error_of(capsys, name, "--sweep-batch", "32") == (
            f"The {kind} file {name!r} has one batch{rows} and one precision, and cannot be changed to "
            "batch_size=32. Give the model or the function instead: anytpu.program.of(model, "
            "batch_size=32)."
        )


def test_a_language_model_by_its_name(capsys: pytest.CaptureFixture[str]):
    assert error_of(capsys, "gemma3_27b") == (
        "'gemma3_27b' cannot be planned; name a function in a file, like train.py:create_model, or a program file, "
        ".anytpu or .mlir, or a language model, like gemma3_27b_text"
    )
    assert error_of(capsys, "train.py:create_model", "--lora", "8") == (
        "--lora is for the name of a language model, such as gemma3_1b, and 'train.py:create_model' is none; leave it "
        "out"
    )
