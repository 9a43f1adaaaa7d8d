from __future__ import annotations

import json

from anytpu.system.comparison import Comparison, Measurement
from anytpu.system.probes import Reason

SLOW = Measurement("1 virtual core", 1, True, 3.0, (0.5, 0.4, 0.6), 100, {"loss": 0.25, "accuracy": 0.9})
FAST = Measurement("1 GPU", 1, False, 4.0, (0.1, 0.1, 0.3), 100, {"loss": 0.25, "accuracy": 0.91})
COMPARISON = Comparison("Read digits", 64, (SLOW, FAST), (Reason("TPU", "this machine has no TPU chip"),))


def test_the_median_counts():
    assert (SLOW.median_s, SLOW.example_s, SLOW.examples_per_s) == (0.5, 0.005, 200.0)
    assert COMPARISON.speed_up(SLOW) == 1.0
    assert COMPARISON.speed_up(FAST) == 5.0


def test_as_text():
    assert (
        repr(COMPARISON)
        == str(COMPARISON)
        == (
            "Read digits, 64 examples a step\n"
            "  1 virtual core: 500 ms an epoch, 5 ms an example, 1.00 x as fast; loss 0.2500, accuracy 0.9000\n"
            "  1 GPU: 100 ms an epoch, 1 ms an example, 5.00 x as fast; loss 0.2500, accuracy 0.9100"
        )
    )


def test_as_json():
    record = json.loads(json.dumps(COMPARISON.to_record()))
    assert record["absent"] == [{"source": "TPU", "why": "this machine has no TPU chip"}]
    assert (record["job"], record["batch_size"]) == ("Read digits", 64)
    assert record["measurements"][1] == {
        "name": "1 GPU",
        "cores": 1,
        "is_virtual": False,
        "first_epoch_s": 4.0,
        "epoch_s": [0.1, 0.1, 0.3],
        "median_epoch_s": 0.1,
        "example_s": 0.001,
        "examples": 100,
        "speed_up": 5.0,
        "metrics": {"loss": 0.25, "accuracy": 0.91},
    }
