"""Input pipelines: files of records, the examples and images in them, named data sets, and `Dataset`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anytpu.pipeline.augment import (
        normalize,
        random_brightness,
        random_contrast,
        random_crop,
        random_flip,
        random_hue,
        random_saturation,
        resize,
        standardize,
    )
    from anytpu.pipeline.dataset import Dataset
    from anytpu.pipeline.example import (
        encode_example,
        encode_sequence_example,
        parse_example,
        parse_examples,
        parse_sequence_example,
    )
    from anytpu.pipeline.features import FixedLenFeature, VarLenFeature
    from anytpu.pipeline.flower_records import flowers
    from anytpu.pipeline.images import decode_image, decode_images, encode_jpeg, encode_png
    from anytpu.pipeline.named import digits, iris
    from anytpu.pipeline.shards import RecordSource, RecordStream
    from anytpu.pipeline.tfrecord import RecordWriter, records, write_records
    from anytpu.pipeline.time_windows import timeseries_dataset_from_array, windows
    from anytpu.pipeline.unframed import fixed_records, lines
    from anytpu.pipeline.vocabulary import Vocabulary, hash_ids

# A name's module is imported on first use, since protobuf, grain and Pillow are slow to import and not always needed.
# No module here may share its name with a function here: importing the module would overwrite the function.
_NAMES = {
    "augment": (
        "normalize",
        "random_brightness",
        "random_contrast",
        "random_crop",
        "random_flip",
        "random_hue",
        "random_saturation",
        "resize",
        "standardize",
    ),
    "dataset": ("Dataset",),
    "example": (
        "encode_example",
        "encode_sequence_example",
        "parse_example",
        "parse_examples",
        "parse_sequence_example",
    ),
    "features": ("FixedLenFeature", "VarLenFeature"),
    "flower_records": ("flowers",),
    "images": ("decode_image", "decode_images", "encode_jpeg", "encode_png"),
    "named": ("digits", "iris"),
    "shards": ("RecordSource", "RecordStream"),
    "tfrecord": ("RecordWriter", "records", "write_records"),
    "unframed": ("fixed_records", "lines"),
    "time_windows": ("timeseries_dataset_from_array", "windows"),
    "vocabulary": ("Vocabulary", "hash_ids"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "Dataset",
    "FixedLenFeature",
    "RecordSource",
    "RecordStream",
    "RecordWriter",
    "VarLenFeature",
    "Vocabulary",
    "decode_image",
    "decode_images",
    "digits",
    "encode_example",
    "encode_jpeg",
    "encode_png",
    "encode_sequence_example",
    "fixed_records",
    "flowers",
    "hash_ids",
    "iris",
    "lines",
    "normalize",
    "parse_example",
    "parse_examples",
    "parse_sequence_example",
    "random_brightness",
    "random_contrast",
    "random_crop",
    "random_flip",
    "random_hue",
    "random_saturation",
    "records",
    "resize",
    "standardize",
    "timeseries_dataset_from_array",
    "windows",
    "write_records",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"anytpu.pipeline has no name {name!r}; dir(anytpu.pipeline) lists its names.")
    globals()[name] = value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return list(__all__)
