"""Files with right checksums that no program of ours wrote: refused by one sentence, in little memory.

Right: a `ChipFileError` for each, and less than 256 MiB more memory. Known from the rule of the reader: a file is used
or refused in words of ours.
"""

import json
import resource
import tempfile
import zipfile
import zlib
from pathlib import Path

import anytpu as tpu  # isort: skip
import keras
import numpy as np
from case import check_equal, finish

from anytpu.chip.file import PARTS
from anytpu.program.archive import write_parts

model = keras.Sequential(
    [keras.Input((8, 8, 2)), keras.layers.Conv2D(4, 3), keras.layers.Flatten(), keras.layers.Dense(3)]
)
x = np.random.default_rng(0).normal(size=(16, 8, 8, 2)).astype("float32")
path = Path(tempfile.mkdtemp()) / "model.tpu"
tpu.chip.compile(model, x).save(path)
with zipfile.ZipFile(path) as archive:
    parts = {name: archive.read(name) for name in PARTS}


def found(**changed: bytes) -> str:
    """Read and run a file with other parts; return the class of its error."""
    write_parts(path, {**parts, **{name.replace("_json", ".json"): part for name, part in changed.items()}})
    try:
        tpu.chip.load(path).run(x[:1])
    except Exception as error:
        return type(error).__name__
    return "runs"


def network(node: int, field: str, value: object) -> bytes:
    described = json.loads(parts["network.json"])
    described["nodes"][node][field] = value
    return json.dumps(described).encode()


check_equal("as it was", "runs", found())
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
many = b"[" + b"[]," * 5_000_000 + b"[]]"
check_equal(f"a header of {len(zlib.compress(many)):,} bytes", "ChipFileError", found(header_json=many))
check_equal("a deep network", "ChipFileError", found(network_json=b"[" * 10**6))
grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
check_equal("less than 256 MiB", True, grown_mib < 256)
for field, value in {"strides": [0, 1], "groups": 3, "padding": [[0, 2**40], [0, 0]], "low": 1e9, "name": 1}.items():
    check_equal(f"{field} {value}", "ChipFileError", found(network_json=network(0, field, value)))
own = json.loads(parts["network.json"])["nodes"][1]["output"]
check_equal("a node of its own output", "ChipFileError", found(network_json=network(1, "inputs", [own])))
finish()
