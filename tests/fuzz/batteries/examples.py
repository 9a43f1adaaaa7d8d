"""tf.Example and tf.SequenceExample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anytpu.pipeline import (
    FixedLenFeature,
    VarLenFeature,
    encode_example,
    encode_sequence_example,
    parse_example,
    parse_sequence_example,
)
from anytpu.pipeline.record import Origin, Record
from fuzz.battery import Battery

SPEC = {
    "image": FixedLenFeature((), bytes),
    "label": FixedLenFeature((), "int64"),
    "box": FixedLenFeature((2, 2), "float32"),
    "words": VarLenFeature("int64"),
}
STEPS = {"speed": FixedLenFeature((2,), "float32"), "names": VarLenFeature(bytes)}
ROW = {"image": b"\xff\xd8 not really", "label": 7, "box": [0.0, 0.5, 1.0, 2.0], "words": [1, -2, 2**60]}


def _record(path: Path) -> Record:
    return Record.at(path.read_bytes(), Origin(str(path), 0, 0))


def _example(path: Path) -> Any:
    return parse_example(_record(path), SPEC)


def _sequence(path: Path) -> Any:
    return parse_sequence_example(_record(path), {"label": SPEC["label"]}, STEPS)


BATTERIES = (
    Battery("example", lambda: [encode_example(ROW), encode_example({**ROW, "words": list(range(300))})], _example),
    Battery(
        "sequence_example",
        lambda: [encode_sequence_example({"label": 1}, {"speed": [[1.0, 2.0]] * 5, "names": [[b"a"], [b"b", b"c"]]})],
        _sequence,
    ),
)
