"""Check the files of `anytpu launch --to` with the tools of SkyPilot, xpk and Ray, each in an environment of its own.

    python scripts/check_engines.py --skypilot VENV --xpk VENV --ray VENV

Make each first: `pip install skypilot`, `pip install xpk`, `pip install "ray[default,train]"`. SkyPilot reads
its file, xpk makes a dry run, and Ray runs a program that ends once with status 75 on two workers of a local cluster.
The tests check the other engines.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

LAUNCH = [sys.executable, "-m", "anytpu", "launch"]
SLICE = ["--tpu", "v5e-16"]
ON_XPK = ["--on", "my-cluster", "--zone", "us-west4-a", "--image", "gcr.io/p/train:1"]
PROGRAM = """
import os, sys
note = f"{os.environ['CHECKPOINT_DIR']}/{os.environ['ANYTPU_PROCESS']}"
sys.exit(0 if os.path.exists(note) else open(note, "w").close() or 75)
"""


def run(*words: str, venv: str = "", folder: Path) -> None:
    """Print a command, and run it with the tools of an environment."""
    environment = {**os.environ, "PATH": f"{venv}/bin:{os.environ['PATH']}", "HOME": str(folder)}
    print("$", " ".join(words), flush=True)
    subprocess.run(words, cwd=folder, env=environment, check=True)


def main() -> None:
    """Check the engines whose environments are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("skypilot", "xpk", "ray"):
        parser.add_argument(f"--{name}", metavar="VENV")
    venvs = parser.parse_args()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        (folder / "train.py").write_text(PROGRAM)
        if venvs.skypilot:
            run(*LAUNCH, "--to", "skypilot", *SLICE, "--output", "sky.yaml", "train.py", folder=folder)
            read = "import sky; task = sky.Task.from_yaml('sky.yaml'); print(task, *task.resources)"
            run(f"{venvs.skypilot}/bin/python", "-c", read, venv=venvs.skypilot, folder=folder)
        if venvs.xpk:
            run(*LAUNCH, "--to", "xpk", *SLICE, *ON_XPK, "--output", "xpk.sh", "train.py", folder=folder)
            dry = ("--dry-run", "--skip-validation", "--project=p", "--output-manifest-file=xpk.yaml")
            run("bash", "xpk.sh", *dry, venv=venvs.xpk, folder=folder)
        if venvs.ray:
            options = ("-n", "2", "--checkpoint-dir", text, "--output", "train_ray.py", "train.py")
            run(*LAUNCH, "--to", "ray", *options, folder=folder)
            run("ray", "start", "--head", "--num-cpus=4", "--disable-usage-stats", venv=venvs.ray, folder=folder)
            try:
                job = ("ray", "job", "submit", "--working-dir", ".", "--", "python", "train_ray.py")
                run(*job, venv=venvs.ray, folder=folder)
            finally:
                run("ray", "stop", venv=venvs.ray, folder=folder)


if __name__ == "__main__":
    main()
