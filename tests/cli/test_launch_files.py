"""`anytpu launch`: bad input, and the files of engines."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from cli.commands import anytpu

SEE = "see `anytpu launch --help`"
LIKE = "as in `anytpu launch -n 4 train.py`"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], f"the script is missing, {LIKE}"),
        (["-n", "4"], f"the script is missing, {LIKE}"),
        (["-n", "4", "--"], f"the script is missing, {LIKE}"),
        (["train.py"], f"-n is missing, the number of processes, {LIKE}"),
        (["--to", "slurm", "train.py"], "--to slurm needs -n, the number of hosts"),
        (["--to", "ray", "trian.py"], f"there is no file 'trian.py'; name a Python script, {LIKE}"),
        (
            ["--to", "slrum", "train.py"],
            "argument --to: invalid choice: 'slrum' (choose from 'local', 'jobset', 'xpk', 'skypilot', 'ray', 'slurm', "
            f"'tpu-vm'); {SEE}",
        ),
        (
            ["--to", "jobset", "--image", "x", "--tpu", "v5e-12", "train.py"],
            '\'v5e-12\' is not a TPU that exists: the number counts chips, and the nearest are "v5e-8" and "v5e-16". '
            'For any number of virtual cores write "virtual" and give cores.',
        ),
        (
            ["--to", "skypilot", "--tpu", "v5e-16", "--checkpoint-dir", "runs/7", "train.py"],
            "the hosts of SkyPilot share no disk, so the checkpoints cannot be in 'runs/7'. Name a bucket, like "
            "--checkpoint-dir gs://BUCKET/FOLDER",
        ),
        (
            ["--to", "slurm", "-n", "2", "--checkpoint-dir", "train.py/run", "train.py"],
            "--checkpoint-dir 'train.py/run' cannot be written: '{folder}/train.py' is no folder of yours",
        ),
        (
            ["--to", "slurm", "--check", "no.file"],
            "there is no file 'no.file' to check; write one with --output no.file",
        ),
        (
            ["-n", "2", "--spot", "train.py"],
            "--spot is for an engine of other machines: name that with --to, or leave it out",
        ),
        (
            ["-n", "1", "--max-preemptions", "0", "train.py"],
            "--max-preemptions is for an engine of other machines: name that with --to, or leave it out",
        ),
        (
            ["-n", "1", "--zone", "", "train.py"],
            "--zone is for an engine of other machines: name that with --to, or leave it out",
        ),
        (
            ["--tpu-vm", "a", "--on", "b", "train.py"],
            "--tpu-vm and --on both name the TPU VM; type: --to tpu-vm --on b",
        ),
        (["--to", "jobset", "."], f"'.' is a folder; name a Python script, {LIKE}"),
        (["--to", "tpu-vm", "--on", "t", ""], f"'.' is a folder; name a Python script, {LIKE}"),
        (["-n", "1", "-m", ""], "-m needs the name of a module, as in `anytpu launch -n 4 -m package.train`"),
        (
            ["--to", "tpu-vm", "--on", "t", "../w/train.py"],
            "'../w/train.py' is outside this folder, which the hosts get. Change to the folder of the script, and name "
            "it train.py",
        ),
        (
            ["--to", "ray", "-n", "1", "--explain", "--output", "job", "train.py"],
            f"argument --output: not allowed with argument --explain; {SEE}",
        ),
        (
            ["--to", "ray", "-n", "1", "--output", "./train.py", "train.py"],
            "--output './train.py' is the program itself: give the job file another name",
        ),
        (
            ["--to", "ray", "-n", "1", "--output", "train.py", "-m", "train"],
            "--output 'train.py' is the program itself: give the job file another name",
        ),
        (["-n", "0", "train.py"], f"argument -n/--processes: must be a positive integer, not '0'; {SEE}"),
        (["-n", "two", "train.py"], f"argument -n/--processes: must be a positive integer, not 'two'; {SEE}"),
        (["-n", "2", "--cores", "0", "train.py"], f"argument --cores: must be a positive integer, not '0'; {SEE}"),
        (["-n", "2", "trian.py"], f"there is no file 'trian.py'; name a Python script, {LIKE}"),
        (["-n", "2", "."], f"'.' is a folder; name a Python script, {LIKE}"),
        (["-n", "2", "-m"], "-m needs the name of a module, as in `anytpu launch -n 4 -m package.train`"),
        (["-n", "2", "-m", "--x"], "-m needs the name of a module, as in `anytpu launch -n 4 -m package.train`"),
        (
            ["-n", "2", "--slurm", "--tpu-vm", "my-tpu", "train.py"],
            f"argument --tpu-vm: not allowed with argument --slurm; {SEE}",
        ),
        (
            ["-n", "2", "--cores", "2", "--slurm", "train.py"],
            "--cores is for processes of this machine, not for --to slurm: leave it out",
        ),
        (
            ["-n", "2", "--to", "tpu-vm", "--on", "my-tpu", "train.py"],
            "-n does not go with --to tpu-vm: leave it out. Cloud TPU takes --tpu, --spot, --checkpoint-dir, "
            "--max-preemptions, --on, --zone",
        ),
        (
            ["--to", "tpu-vm", "--on", "my-tpu", "/srv/train.py"],
            "'/srv/train.py' is a path of this machine. Name the script relative to the folder that the hosts get, "
            "like train.py",
        ),
        (
            ["-n", "2", "--to", "slurm", "--output", "missing/job", "train.py"],
            "the job file 'missing/job' cannot be written: No such file or directory",
        ),
    ],
)
def test_bad_input(tmp_path: Path, words: list[str], message: str):
    (tmp_path / "train.py").touch()
    done = anytpu("launch", *words, folder=tmp_path)
    message = message.replace("{folder}", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == f"anytpu: {message}"


def test_a_job_file(tmp_path: Path):
    (tmp_path / "train.py").touch()
    words = ("launch", "--to", "slurm", "-n", "4")
    done = anytpu(*words, "--output", "my job.sh", "train.py", folder=tmp_path)
    assert done.stdout == "wrote my job.sh. Submit it: sbatch 'my job.sh'\n"
    done = anytpu(*words, "--output", "train.sbatch", "train.py", "--epochs", "3", folder=tmp_path, PATH="/nowhere")
    assert done.stdout == "wrote train.sbatch. Submit it: sbatch train.sbatch\n"
    assert done.stderr == (
        "anytpu launch: sbatch is not on this machine: apt-get install slurm-client, on a machine of the cluster\n"
    )
    text = (tmp_path / "train.sbatch").read_text()
    assert "#SBATCH --nodes=4\n" in text and f"host {sys.executable} train.py --epochs 3 &\n" in text
    assert anytpu(*words, "train.py", "--epochs", "3", folder=tmp_path).stdout == text
    module = anytpu(*words, "-m", "package.train", folder=tmp_path).stdout
    assert "#SBATCH --job-name=package-train\n" in module
    assert f"host {sys.executable} -m package.train &\n" in module
    explained = anytpu(*words, "--explain", "train.py", folder=tmp_path).stdout
    assert "One process on each node.\n    #SBATCH --nodes=4\n" in explained


@pytest.mark.parametrize(
    ("old", "new"),
    [(["--slurm"], ["--to", "slurm"]), (["--tpu-vm", "my-tpu"], ["--to", "tpu-vm", "--on", "my-tpu"])],
)
def test_old_spellings_say_the_new_ones(tmp_path: Path, old: list[str], new: list[str]):
    (tmp_path / "train.py").touch()
    words = ["-n", "4", "train.py"] if "slurm" in new else ["train.py"]
    done = anytpu("launch", *old, *words, folder=tmp_path)
    assert done.stderr == f"anytpu: {old[0]} goes with the next version; type: {' '.join(new)}\n"
    assert anytpu("launch", *new, *words, folder=tmp_path).stdout == done.stdout


def test_an_edited_file_is_checked_by_the_engine(tmp_path: Path):
    """A program named sbatch stands for Slurm's."""
    for name, text in (("sbatch", "echo sbatch: error: invalid partition >&2; exit 1"), ("job", "exit")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = anytpu("launch", "--to", "slurm", "--check", "job", folder=tmp_path, PATH=path)
    assert (done.returncode, done.stderr) == (
        2,
        "anytpu: 'job' is no file that Slurm takes. `sbatch --test-only job` says:\nsbatch: error: invalid partition\n",
    )
    refused = "sbatch: error: Unable to contact slurm controller (connect failure)"
    (tmp_path / "sbatch").write_text(f"#!/bin/sh\necho '{refused}'; exit 1\n")
    done = anytpu("launch", "--to", "slurm", "--check", "job", folder=tmp_path, PATH=path)
    assert (done.returncode, done.stderr) == (
        2,
        f"anytpu: Slurm cannot be reached, so 'job' was not checked. `sbatch --test-only job` says:\n{refused}\n",
    )
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho fine\n")
    done = anytpu("launch", "--to", "slurm", "--check", "job", folder=tmp_path, PATH=path)
    assert (done.returncode, done.stdout) == (0, "fine\njob is a file that Slurm takes\n")
    done = anytpu("launch", "--to", "slurm", "--check", "job", folder=tmp_path, PATH="/nowhere")
    assert done.stderr == (
        "anytpu: sbatch checks a file for Slurm, and is not installed: apt-get install slurm-client, on a machine of "
        "the cluster\n"
    )
