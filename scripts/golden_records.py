"""Make the golden files of tests/pipeline/golden with TensorFlow, and check that TensorFlow reads what anytpu writes.

    python scripts/golden_records.py write           in an environment with tensorflow-cpu==2.15.1
    python scripts/golden_records.py read FOLDER     in the same environment: reads files that anytpu wrote to FOLDER
    python scripts/golden_records.py ours FOLDER     in anytpu's environment: writes these files

`write` also records TensorFlow's parsed values of its own files in golden.json. golden/README.md has the output of the
last `read`. TensorFlow is the oracle, never a dependency.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).resolve().parents[1] / "tests" / "pipeline" / "golden"
FEATURES: dict[str, Any] = {
    "bytes": [b"", b"\x00\xff rose \x00", "Süß".encode()],
    "floats": [0.0, -1.5, 3.4028234663852886e38, 1e-45],
    "integers": [0, -1, 127, 128, -(2**63), 2**63 - 1],
    "one": [42],
}
EMPTY = ("no_bytes", "no_floats", "no_integers")
CONTENTS = [b"", b"a", bytes(range(256)), b"\x00" * 1000]


def write() -> None:
    import tensorflow as tf

    GOLDEN.mkdir(exist_ok=True)
    for name, compression in (("plain.tfrecord", ""), ("gzip.tfrecord", "GZIP"), ("zlib.tfrecord", "ZLIB")):
        with tf.io.TFRecordWriter(str(GOLDEN / name), compression) as writer:
            for content in CONTENTS:
                writer.write(content)
    with tf.io.TFRecordWriter(str(GOLDEN / "examples.tfrecord")) as writer:
        for message in (_example(tf).SerializeToString(deterministic=True), _unpacked(), _sequence(tf)):
            writer.write(message)
    facts = {"tensorflow": tf.__version__, "parsed": _parsed_by_tensorflow(tf), "image": _image(tf)}
    (GOLDEN / "golden.json").write_text(json.dumps(facts, indent=1) + "\n")
    print(f"wrote {sorted(path.name for path in GOLDEN.iterdir())} with TensorFlow {tf.__version__}")


def _example(tf: Any) -> Any:
    train = tf.train
    feature = {
        "bytes": train.Feature(bytes_list=train.BytesList(value=FEATURES["bytes"])),
        "floats": train.Feature(float_list=train.FloatList(value=FEATURES["floats"])),
        "integers": train.Feature(int64_list=train.Int64List(value=FEATURES["integers"])),
        "one": train.Feature(int64_list=train.Int64List(value=FEATURES["one"])),
        "no_bytes": train.Feature(bytes_list=train.BytesList()),
        "no_floats": train.Feature(float_list=train.FloatList()),
        "no_integers": train.Feature(int64_list=train.Int64List()),
        "no_kind": train.Feature(),
    }
    return train.Example(features=train.Features(feature=feature))


def _unpacked() -> bytes:
    """Return an Example whose numbers are not packed, as some writers make them: by hand, as TensorFlow packs."""

    def inside(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2, len(content)]) + content

    integers = b"".join(b"\x08" + value for value in (b"\x07", b"\xac\x02", b"\xff" * 9 + b"\x01"))
    floats = b"".join(b"\x0d" + value for value in (b"\x00\x00\xc0\x3f", b"\x00\x00\x20\xc0"))
    entries = [
        inside(1, inside(1, name) + inside(2, feature))
        for name, feature in ((b"integers", inside(3, integers)), (b"floats", inside(2, floats)))
    ]
    return inside(1, b"".join(entries))


def _sequence(tf: Any) -> bytes:
    train = tf.train

    def step(*values: int) -> Any:
        return train.Feature(int64_list=train.Int64List(value=values))

    context = train.Features(feature={"label": step(3)})
    lists = train.FeatureLists(
        feature_list={
            "even": train.FeatureList(feature=[step(1, 2), step(3, 4)]),
            "uneven": train.FeatureList(feature=[step(1), step(), step(5, 6)]),
        }
    )
    return train.SequenceExample(context=context, feature_lists=lists).SerializeToString(deterministic=True)


def _parsed_by_tensorflow(tf: Any) -> list[dict[str, Any]]:
    messages = [message.numpy() for message in tf.data.TFRecordDataset(str(GOLDEN / "examples.tfrecord"))][:2]
    spec = {
        "bytes": tf.io.VarLenFeature(tf.string),
        **{name: tf.io.VarLenFeature(tf.float32) for name in ("floats", "no_floats")},
        **{name: tf.io.VarLenFeature(tf.int64) for name in ("integers", "one", "no_integers", "no_kind", "absent")},
    }
    return [_listed(tf, tf.io.parse_single_example(message, spec)) for message in messages]


def _listed(tf: Any, features: dict[str, Any]) -> dict[str, Any]:
    return {
        name: [value.hex() if isinstance(value, bytes) else value for value in sparse.values.numpy().tolist()]
        for name, sparse in sorted(features.items())
    }


def _image(tf: Any) -> dict[str, Any]:
    """Write a small JPEG and PNG and record the pixels that TensorFlow decodes, with libjpeg's accurate transform."""
    y, x = tf.meshgrid(tf.range(24), tf.range(16), indexing="ij")
    pixels = tf.cast(tf.stack([x * 16, y * 10, (x * y) % 256], -1), tf.uint8)
    jpeg, png = tf.io.encode_jpeg(pixels, quality=90), tf.io.encode_png(pixels)
    (GOLDEN / "image.jpg").write_bytes(jpeg.numpy())
    (GOLDEN / "image.png").write_bytes(png.numpy())
    accurate = tf.io.decode_jpeg(jpeg, channels=3, dct_method="INTEGER_ACCURATE").numpy()
    grey = tf.io.decode_jpeg(jpeg, channels=1, dct_method="INTEGER_ACCURATE").numpy()
    return {"shape": list(accurate.shape), "rgb": accurate.tobytes().hex(), "grey": grey.tobytes().hex()}


def ours(folder: Path) -> None:
    from anytpu import pipeline

    folder.mkdir(parents=True, exist_ok=True)
    for name, compression in (("plain.tfrecord", None), ("gzip.tfrecord", "gzip"), ("zlib.tfrecord", "zlib")):
        pipeline.write_records(folder / name, CONTENTS, compression=compression)
    pipeline.write_records(folder / "sharded.tfrecord", CONTENTS, shards=3)
    example = pipeline.encode_example({**FEATURES, "none": None})
    sequence = pipeline.encode_sequence_example({"label": 3}, {"steps": [[1, 2], [3, 4]]})
    pipeline.write_records(folder / "examples.tfrecord", [example, sequence])


def read(folder: Path) -> None:
    import tensorflow as tf

    for name, compression in (("plain.tfrecord", ""), ("gzip.tfrecord", "GZIP"), ("zlib.tfrecord", "ZLIB")):
        assert [m.numpy() for m in tf.data.TFRecordDataset(str(folder / name), compression)] == CONTENTS, name
    shards = sorted(folder.glob("sharded-*-of-00003.tfrecord"))
    assert sorted(m.numpy() for m in tf.data.TFRecordDataset([str(s) for s in shards])) == sorted(CONTENTS)
    example, sequence = [m.numpy() for m in tf.data.TFRecordDataset(str(folder / "examples.tfrecord"))]
    spec = {
        "bytes": tf.io.FixedLenFeature([3], tf.string),
        "floats": tf.io.FixedLenFeature([4], tf.float32),
        "integers": tf.io.FixedLenFeature([6], tf.int64),
        "one": tf.io.FixedLenFeature([], tf.int64),
        "none": tf.io.FixedLenFeature([], tf.int64, default_value=-5),
    }
    parsed = {name: value.numpy() for name, value in tf.io.parse_single_example(example, spec).items()}
    assert parsed["bytes"].tolist() == FEATURES["bytes"]
    assert parsed["floats"].tolist() == tf.constant(FEATURES["floats"]).numpy().tolist()
    assert parsed["integers"].tolist() == FEATURES["integers"]
    assert (parsed["one"], parsed["none"]) == (42, -5)
    context, steps = tf.io.parse_single_sequence_example(
        sequence,
        {"label": tf.io.FixedLenFeature([], tf.int64)},
        {"steps": tf.io.FixedLenSequenceFeature([2], tf.int64)},
    )
    assert (context["label"].numpy(), steps["steps"].numpy().tolist()) == (3, [[1, 2], [3, 4]])
    print(f"TensorFlow {tf.__version__} reads every file: plain, gzip, zlib, 3 shards, Example, SequenceExample")


if __name__ == "__main__":
    {"write": lambda: write(), "ours": lambda: ours(Path(sys.argv[2])), "read": lambda: read(Path(sys.argv[2]))}[
        sys.argv[1]
    ]()
