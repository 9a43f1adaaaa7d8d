from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from anytpu.errors import SettingError
from anytpu.launch.jobs import ENGINES, Engine, EngineJob, engine_named, job_file
from anytpu.system.topologies import SLICED, slice_sizes, topology_of

WORDS = ["my train.py", "--name", "it's $HOME"]
VALUES: dict[str, dict[str, Any]] = {
    "-n": {"hosts": 4},
    "--tpu": {"topology": topology_of("v5e-16")},
    "--spot": {"spot": True},
    "--checkpoint-dir": {"checkpoint_dir": "gs://b/it's"},
    "--max-preemptions": {"restarts": 5},
    "--image": {"image": "gcr.io/p/train:1"},
    "--on": {"place": "my-place"},
    "--zone": {"zone": "us-west4-a"},
}


def full_job(engine: Engine) -> EngineJob:
    """Return a job with every option that the engine takes."""
    return EngineJob(WORDS, **{name: value for option in engine.options for name, value in VALUES[option].items()})


def small_job(engine: Engine) -> EngineJob:
    """Return a job with the options that the engine needs."""
    needs = engine.needs or [option for option in engine.options if option == "-n"]
    return EngineJob(WORDS, **{name: value for option in needs for name, value in VALUES[option].items()})


@pytest.mark.parametrize("key", ENGINES)
def test_each_line_is_explained_and_filled(key: str):
    """A comment stands above each line of a template, so that --explain has a sentence for it."""
    engine = engine_named(key)
    for job in (small_job(engine), full_job(engine)):
        text, explained = job_file(engine, job), job_file(engine, job, explain=True)
        assert not re.search(r"<[a-z_:]+>", text)
        lines = {line.strip() for line in text.splitlines() if not line.lstrip().startswith("# ") and line.strip()}
        assert lines <= {line.strip() for line in explained.splitlines()}
        paragraphs = [paragraph for paragraph in explained.split("\n\n") if "#!/bin/bash" not in paragraph]
        assert all(re.match(r"\S", paragraph) and "\n    " in paragraph for paragraph in paragraphs)


@pytest.mark.parametrize("key", ENGINES)
def test_a_value_that_a_job_does_not_have_leaves_its_lines_out(key: str):
    engine = engine_named(key)
    small, full = job_file(engine, small_job(engine)), job_file(engine, full_job(engine))
    assert "CHECKPOINT_DIR" not in small and "CHECKPOINT_DIR" in full
    assert len(small) < len(full)


@pytest.mark.parametrize("key", ["xpk", "slurm", "tpu-vm"])
def test_bash_gives_the_engine_the_words_of_the_program(tmp_path: Path, key: str):
    """A program with the engine's name prints how bash calls it; each shell on the way splits the words again."""
    engine = engine_named(key)
    name = {"slurm": "srun"}.get(key, engine.tool)
    (tmp_path / name).write_text('#!/bin/sh\nprintf "%s\\n" "$@" ACTIVE --\n')
    (tmp_path / name).chmod(stat.S_IRWXU)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "17"}
    command = ["bash", "-c", job_file(engine, full_job(engine))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    calls = [call.splitlines() for call in done.stdout.split("ACTIVE\n--\n")]
    if key == "slurm":
        assert calls[0][-3:] == WORDS and calls[0][:3] == ["--kill-on-bad-exit=0", "--wait=300", "--label"]
        return
    texts = [word.partition("=")[2] for call in calls for word in call if word.startswith("--command=")]
    if key == "xpk":
        texts = [text.replace("$$", "$") for text in texts]  # As Kubernetes does.
    assert shlex.split(texts[-1])[-3:] == WORDS
    assert key == "xpk" or shlex.split(texts[-1])[0] == "CHECKPOINT_DIR=gs://b/it's"


@pytest.mark.parametrize(
    ("state", "fails", "status"), [("ACTIVE", 0, 0), ("ACTIVE", 3, 3), ("FAILED", 0, 1), ("SUSPENDED", 0, 1)]
)
def test_a_slice_is_given_back_and_the_status_is_that_of_the_program(
    tmp_path: Path, state: str, fails: int, status: int
):
    text = f'echo "$4 $*" >> calls\ncase "$*" in *describe*) echo {state};; *tpu/bin/python*) exit {fails};; esac\n'
    (tmp_path / "gcloud").write_text(f"#!/bin/sh\n{text}")
    (tmp_path / "gcloud").chmod(stat.S_IRWXU)
    command = ["bash", "-c", job_file(engine_named("tpu-vm"), full_job(engine_named("tpu-vm")))]
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert subprocess.run(command, env=environment, cwd=tmp_path, check=False).returncode == status
    calls = [line.split()[0] for line in (tmp_path / "calls").read_text().splitlines() if "compute tpus" in line]
    program = ["ssh", "scp", "ssh"] if state == "ACTIVE" else []
    assert calls == ["create", "describe", *program, "delete"]


def test_words_that_are_not_ascii_arrive_as_they_are():
    yaml = pytest.importorskip("yaml")
    for key in ("jobset", "ray"):
        options = {name: value for option in engine_named(key).needs for name, value in VALUES[option].items()}
        text = job_file(
            engine_named(key), EngineJob(["train.py", "\U0001f600 é"], **{"hosts": None if options else 1, **options})
        )
        if key == "ray":
            compile(text, "job", "exec")
            assert "*['train.py', '\U0001f600 é']" in text
        else:
            job = yaml.safe_load(text)["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
            assert job["containers"][0]["args"] == ["train.py", "\U0001f600 é"]


def test_the_folder_of_checkpoints_passes_kubernetes():
    jobset, xpk = (job_file(engine_named(key), EngineJob(["a.py"], **ON_GKE, **place)) for key, place in GKE.items())
    assert 'value: "gs://b/$$(A)$$$$"}' in jobset and "--env=CHECKPOINT_DIR='gs://b/$$(A)$$$$'" in xpk


ON_GKE: dict[str, Any] = {"topology": topology_of("v5e-16"), "image": "x", "checkpoint_dir": "gs://b/$(A)$$"}
GKE: dict[str, Any] = {"jobset": {}, "xpk": {"place": "my-cluster"}}


@pytest.mark.parametrize(
    ("words", "source"),
    [
        (["w/train.py"], "w"),
        (["-m", "train"], "train.py"),
        (["-m", "package.train"], "package"),
        (["-m", "program"], "program"),
    ],
)
def test_what_a_tpu_vm_gets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], source: str):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program").mkdir()
    (tmp_path / "program/__main__.py").touch()
    assert EngineJob(words).source == source


@pytest.mark.parametrize(("key", "place"), [("slurm", "GPU_a100"), ("slurm", "a,b"), ("jobset", "1.team-a")])
def test_names_of_partitions_and_queues(key: str, place: str):
    assert place in job_file(engine_named(key), dataclasses.replace(small_job(engine_named(key)), place=place))


@pytest.mark.parametrize("key", ENGINES)
@pytest.mark.parametrize("end", ["\n", "\x00", "\x7f", "\x85", "\u2028", "\u2029", "\udcff"])
def test_control_characters_are_refused(key: str, end: str):
    engine = engine_named(key)
    job = small_job(engine)
    values: dict[str, dict[str, Any]] = {
        "the program": {"words": ["train.py", f"a{end}b: c"]},
        "--checkpoint-dir": {"checkpoint_dir": f"a{end}b: c"},
        "--image": {"image": f"a{end}b: c"},
    }
    for what, value in values.items():
        with pytest.raises(SettingError) as caught:
            job_file(engine, dataclasses.replace(job, **value))
        assert str(caught.value) == (
            f"{f'a{end}b: c'!a} of {what} has a control character, such as the end of a line, which the file of "
            f"{engine.name} cannot hold: leave it out, or let the program read it from a file"
        )


@pytest.mark.parametrize(("gpus", "expected"), [(None, ""), ("1", "0"), ("8", "0,1,2,3,4,5,6,7")])
def test_one_process_of_slurm_uses_all_gpus_of_its_node(tmp_path: Path, gpus: str | None, expected: str):
    (tmp_path / "srun").write_text('#!/bin/sh\necho "$JAX_LOCAL_DEVICE_IDS"\n')
    (tmp_path / "srun").chmod(stat.S_IRWXU)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "17"}
    environment |= {} if gpus is None else {"SLURM_GPUS_ON_NODE": gpus}
    text = job_file(engine_named("slurm"), EngineJob(WORDS, hosts=2))
    assert (
        subprocess.run(["bash", "-c", text], env=environment, capture_output=True, text=True).stdout.strip() == expected
    )


@pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed: cloud.google.com/sdk/docs/install")
def test_gcloud_reads_each_command_for_a_tpu_vm():
    """Without a project and an account each command fails, but only after gcloud has read its options."""
    text = job_file(engine_named("tpu-vm"), full_job(engine_named("tpu-vm")))
    loop = r" \|\| exit$|^until state=\$\(| \|$|^    grep .*|^    sleep 30$|^done$|^\[ .*"
    text = re.sub(loop, "", text, flags=re.MULTILINE)
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=False)
    errors = re.findall(r"^ERROR: \(gcloud[\w.-]*\) (.*)", done.stderr, re.MULTILINE)
    assert len(errors) == text.count("\ngcloud ") == 6
    assert all(re.match(r"Error parsing \[queued_resource\]|You do not currently have", error) for error in errors), (
        errors
    )


def test_names_of_chips_are_those_of_the_table():
    """Each chip with slices has its names, in two or three dimensions as its engines write them."""
    chips = tomllib.loads(Path(engine_named.__code__.co_filename).with_name("engines.toml").read_text())["chips"]
    assert set(chips) == set(SLICED)
    jobset = engine_named("jobset")
    for chip in set(SLICED) - {"v2"}:
        for number, bounds in slice_sizes(chip).items():
            topology = topology_of(f"{chip}-{number}")
            text = job_file(jobset, EngineJob(["train.py"], topology, image="image"))
            sides = re.search(r"gke-tpu-topology: ([\dx]+)\n", text)
            assert sides and [*map(int, sides[1].split("x")), 1][:3] == [*bounds]
            found = re.search(r"completions: (\d+)[\s\S]*google.com/tpu: (\d+)", text)
            assert found and int(found[1]) * int(found[2]) == len(topology.cores) // topology.cores_per_chip


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["src/My_Train.py"], "my-train"),
        (["-m", "package.train"], "package-train"),
        (["01.py"], "run-01"),
        (["é.py"], "run"),
        ([f"{'x' * 50}.py"], "x" * 39),
    ],
)
def test_a_name_that_all_engines_take(words: list[str], name: str):
    assert EngineJob(words).name == name


NO_IMAGE = (
    "--image does not go with --to slurm: leave it out. Slurm takes -n, --checkpoint-dir, --max-preemptions, --on"
)


@pytest.mark.parametrize(
    ("key", "options", "message"),
    [
        ("slurm", {"hosts": 2, "image": "x"}, NO_IMAGE),
        ("slurm", {}, "--to slurm needs -n, the number of hosts"),
        ("ray", {}, "--to ray needs -n, the number of hosts, or --tpu, a slice"),
        ("tpu-vm", {}, "--to tpu-vm needs --on: see `anytpu launch --help`"),
        ("jobset", {"image": "x"}, "--to jobset needs --tpu: see `anytpu launch --help`"),
        (
            "jobset",
            {"topology": topology_of("v5e-16"), "image": "x", "hosts": 6},
            "v5e-16 has 4 hosts, each with one process, not 6: leave -n out, or choose another slice with --tpu",
        ),
        (
            "jobset",
            {"topology": topology_of("v2-8"), "image": "x"},
            "JobSet on GKE has no v2-8: it has slices of v3, v4, v5e, v5p, v6e, v7x",
        ),
        (
            "xpk",
            {"topology": topology_of("v2-8"), "image": "x", "place": "a"},
            "xpk has no v2-8: it has slices of v3, v4, v5e, v5p, v6e, v7x",
        ),
        (
            "tpu-vm",
            {"place": "t", "spot": True},
            "--spot is for a slice that the file asks for: name it with --tpu, or leave --spot out",
        ),
        (
            "jobset",
            {"topology": topology_of("v5e-16"), "image": ""},
            "--image is empty: give it a value, or leave it out",
        ),
        (
            "slurm",
            {"hosts": 2, "place": "a b"},
            "the name after --on has letters, digits, _, - and . (several with commas), not 'a b'",
        ),
        (
            "skypilot",
            {"topology": topology_of("v7x-8")},
            "SkyPilot has no v7x-8: it has slices of v2, v3, v4, v5e, v5p, v6e",
        ),
        (
            "skypilot",
            {"topology": topology_of("v5e-16"), "spot": True},
            "--spot needs --checkpoint-dir: a spot machine is taken back at any time, with its disk, and the run would "
            "start from its first step. Add --checkpoint-dir gs://BUCKET/FOLDER, and in the script "
            'fit(checkpoint_dir=os.environ["CHECKPOINT_DIR"])',
        ),
        *(
            (
                "tpu-vm",
                {"place": name},
                "the name after --on has lower-case letters, digits and dashes, and starts with a letter, not "
                f"{name!r}",
            )
            for name in ("", "My-tpu", "9tpu", "tpu-", "a b", "a;b", "x" * 64, "tpu\n")
        ),
        *(
            (
                "tpu-vm",
                {"place": "my-tpu", "zone": zone},
                f"a zone looks like us-west4-a, not {zone!r}. Type: gcloud compute zones list",
            )
            for zone in ("", "us-west4", "us west4-a", "US-WEST4-A", "us-west4-a;ls", "-")
        ),
    ],
)
def test_what_an_engine_cannot_do(key: str, options: dict[str, Any], message: str):
    with pytest.raises(SettingError) as caught:
        job_file(engine_named(key), EngineJob(WORDS, **options))
    assert str(caught.value) == message


def violations(value: Any, schema: dict[str, Any], path: str = "") -> list[str]:
    """Return what a value has that a schema of Kubernetes does not allow; fields that it does not know are refused."""
    types = schema.get("type", "object")
    known = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
    if not isinstance(value, tuple(known[name] for name in ([types] if isinstance(types, str) else types))):
        return [f"{path} is no {types}"]
    found = [f"{path} is {value}" for allowed in [schema.get("enum")] if allowed and value not in allowed]
    if isinstance(value, dict):
        fields, other = schema.get("properties", {}), schema.get("additionalProperties")
        found += [f"{path} lacks {name}" for name in schema.get("required", []) if name not in value]
        for name, child in value.items():
            rule = fields.get(name, other)
            found += violations(child, rule, f"{path}.{name}") if rule else [f"{path} has {name}"]
    if isinstance(value, list):
        found += [text for child in value for text in violations(child, schema["items"], f"{path}[]")]
    return found


@pytest.mark.parametrize("is_full", [False, True])
def test_a_jobset_fits_the_schema_of_its_controller(is_full: bool):
    yaml = pytest.importorskip("yaml")
    engine = engine_named("jobset")
    schema = json.loads(Path(__file__).with_name("jobset_schema.json").read_text())
    document = yaml.safe_load(job_file(engine, full_job(engine) if is_full else small_job(engine)))
    assert document["apiVersion"] == f"jobset.x-k8s.io/{schema['version']}"
    assert violations(document["spec"], schema["spec"]) == []
    assert (
        document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]["args"]
        == [word.replace("$", "$$") for word in WORDS]  # Kubernetes makes one of two.
    )
    document["spec"]["failurePolicy"]["maxRestart"] = 1
    assert violations(document["spec"], schema["spec"]) == [".failurePolicy has maxRestart"]
