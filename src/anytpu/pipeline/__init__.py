"""Where records and batches come from: files of records, examples and images in them, the named data sets."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anytpu.pipeline.array_record import array_records, to_array_records
    from anytpu.pipeline.dataset import Dataset
    from anytpu.pipeline.example import (
        encode_example,
        encode_sequence_example,
        parse_example,
        parse_examples,
        parse_sequence_example,
    )
    from anytpu.pipeline.features import FixedLenFeature, VarLenFeature
    from anytpu.pipeline.fixed import fixed_records
    from anytpu.pipeline.images import decode_image, decode_images, encode_jpeg, encode_png
    from anytpu.pipeline.named import digits, iris
    from anytpu.pipeline.sources import RecordSource, RecordStream
    from anytpu.pipeline.text import lines
    from anytpu.pipeline.tfrecord import records, write_records

# What a name needs is imported when it is first used: protobuf, grain and Pillow are not for everyone. A module here
# must not have the name of a function here: importing it would put it in the function's place.
_HOMES = {
    "Dataset": "dataset",
    "FixedLenFeature": "features",
    "RecordSource": "sources",
    "RecordStream": "sources",
    "VarLenFeature": "features",
    "array_records": "array_record",
    "decode_image": "images",
    "decode_images": "images",
    "digits": "named",
    "encode_example": "example",
    "encode_jpeg": "images",
    "encode_png": "images",
    "encode_sequence_example": "example",
    "fixed_records": "fixed",
    "iris": "named",
    "lines": "text",
    "parse_example": "example",
    "parse_examples": "example",
    "parse_sequence_example": "example",
    "records": "tfrecord",
    "to_array_records": "array_record",
    "write_records": "tfrecord",
}

__all__ = [
    "Dataset",
    "FixedLenFeature",
    "RecordSource",
    "RecordStream",
    "VarLenFeature",
    "array_records",
    "decode_image",
    "decode_images",
    "digits",
    "encode_example",
    "encode_jpeg",
    "encode_png",
    "encode_sequence_example",
    "fixed_records",
    "iris",
    "lines",
    "parse_example",
    "parse_examples",
    "parse_sequence_example",
    "records",
    "to_array_records",
    "write_records",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"anytpu.pipeline has no name {name!r}; dir(anytpu.pipeline) lists its names.")
    globals()[name] = value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return list(__all__)
