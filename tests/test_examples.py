"""Each example runs, in a process of its own, and prints what the text that it follows prints."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from forked import python
from source_tree import ROOT

POOLED = {"06_chip", "07_everywhere"}
"""Models with maxima of computed values, which are rounded twice without LLVM's optimizations."""

PRINTS = {
    "01_cifar10": [r"_DeviceAttributes\(/job:worker/replica:0/task:0/device:TPU:7, TPU", r"epoch 2 took \d"],
    "01_cifar10_estimator": [r"'accuracy': ", r"predicted: \["],
    "02_imdb_lstm": [r"Found TPU at: ", r"Total params", r"in each epoch.*: \d+ us", r"On the CPU: "],
    "03_iris": [r"Epoch = 100, train accuracy = \d+\.\d\d%, test accuracy = \d+\.\d\d%"],
    "03_iris_plain": [r"Epoch = 100, train accuracy = \d+\.\d\d%, test accuracy = \d+\.\d\d%"],
    "04_mnist": [
        r"All devices: \[LogicalDevice\(name='/job:worker/replica:0/task:0/device:TPU:0'",
        r"PerReplica:\{\n  0: \[\[22\. 28\.\]\n \[49\. 64\.\]\],\n",
        r"Epoch 2/2",
        r"Epoch: 1/2",
        r"Current step: \d+, training loss: \d\.\d+, accuracy: \d+\.\d\d%",
    ],
    "05_flowers": [r"Replicas: 8", r"Epoch 3/3", r"id,label\n\w+,\d"],
    "06_chip": [
        r"accuracy: \d+\.\d\d% in float32, \d+\.\d\d% in int8",
        r"what leaves the chip: int8 \(359, ",
        r"predicted: [\d,]+ cycles for 128 digits",
        r"wrote chip.html: \d",
        r"read again, it gives the same integers: True",
    ],
    "07_everywhere": [
        r"on v2-8, after 2 epochs: \d+\.\d\d% right",
        r"Epoch 3/4",
        r"on grpc://127\.0\.0\.1:\d+, after 4 epochs: \d+\.\d\d% right",
        r"<Plan of sequential_1/train: v5e-8 ",
        r"<Shardings of sequential_1/train: ",
        r"on the first TPU, in 8-bit integers: \d+\.\d\d% right",
    ],
    "08_recommender": [r"Epoch 3/3", r"recall at 10: 0\.\d+; the most popular items: 0\.\d+"],
}
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))


def test_each_example_is_known():
    assert sorted(PRINTS) == EXAMPLES


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", EXAMPLES)
def test_it_runs(name: str, tmp_path: Path):
    # A home of its own: data sets of the user's would make it another run.
    environment = {**os.environ, "HOME": str(tmp_path), "JAX_PLATFORMS": "cpu", "KERAS_HOME": str(tmp_path / "keras")}
    if name in POOLED:
        environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "0"
    smoke = [] if name.startswith("03") else ["--smoke"]
    ran = subprocess.run(
        [*python(), str(ROOT / "examples" / f"{name}.py"), *smoke],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=380,
    )
    assert ran.returncode == 0, ran.stderr
    for pattern in PRINTS[name]:
        assert re.search(pattern, ran.stdout), f"no {pattern!r} in:\n{ran.stdout}"
