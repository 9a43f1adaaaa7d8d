"""Kind: a feature or a sequence without values loses the dtype and the shape of its specification.

The right dtypes and shapes are those of the specification, as `tf.io.parse_single_sequence_example` gives them.
"""

import anytpu as tpu  # noqa: I001
import numpy as np
from case import check_equal, finish

p = tpu.pipeline
steps = {
    "words": p.FixedLenFeature((), "int64"),
    "boxes": p.FixedLenFeature((4,), "float32"),
    "chars": p.VarLenFeature("int64", length=3),
    "names": p.VarLenFeature(bytes, length=2),
}
shapes = {"words": (0,), "boxes": (0, 4), "chars": (0, 3), "names": (0, 2)}
full = {"words": [5], "boxes": [[1.0, 2.0, 3.0, 4.0]], "chars": [[1, 2]], "names": [["a"]]}
for name, sequences in {"missing": {}, "empty": {name: [] for name in steps}}.items():
    _, found = p.parse_sequence_example(p.encode_sequence_example({}, sequences), {}, steps)
    check_equal(f"{name}: shapes", shapes, {key: np.shape(value) for key, value in found.items()})
    _, right = p.parse_sequence_example(p.encode_sequence_example({}, full), {}, steps)
    types = {key: value.dtype for key, value in right.items()}
    check_equal(f"{name}: dtypes", types, {key: value.dtype for key, value in found.items()})
    for order in ([full, sequences], [sequences, full]):
        records = [p.encode_sequence_example({}, one) for one in order]
        parsed = p.Dataset.from_source(records).map(lambda record: p.parse_sequence_example(record, {}, steps)[1])
        batch = next(iter(parsed.padded_batch(2)))
        check_equal(f"{name}: dtypes of a batch", types, {key: value.dtype for key, value in batch.items()})
        check_equal(f"{name}: words of a batch", sorted([[5], [0]]), sorted(batch["words"].tolist()))
for value in ([], [[], []]):
    found = p.parse_example(p.encode_example({"x": value}), {"x": p.VarLenFeature("int64")})["x"]
    check_equal(f"an example of {value}", ("int64", []), (found.dtype.name, found.tolist()))
finish()
