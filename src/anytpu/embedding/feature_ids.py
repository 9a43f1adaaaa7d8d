"""The ids of the features of a batch on the host, checked: the input of `TPUEmbedding.enqueue`."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from anytpu.embedding.configs import FeatureConfig
from anytpu.embedding.id_forms import without_bad_ids
from anytpu.embedding.padded_ids import padded_ids
from anytpu.errors import DataError
from anytpu.strategy import PerReplica

LOG = logging.getLogger("anytpu")

_TOLD_OF_CUTS: weakref.WeakSet[FeatureConfig] = weakref.WeakSet()
"""The features of which a log line has said that rows are cut."""

FeatureIds = tuple[np.ndarray, np.ndarray | None]
"""Ids of a feature, int32 `(rows, length)`, -1 for no id, and the weight of each, or None."""


def ids_of_feature(feature: FeatureConfig, name: str, ids: Any, weights: Any) -> FeatureIds:
    """Return the ids of a feature as rectangular arrays. A log line says once that rows are cut.

    Args:
        feature: the feature.
        name: its name, for errors.
        ids: the ids of the global batch, in a form of `pad_ids`, or a `PerReplica` of them.
        weights: the weights, in the same form, or None.

    Raises:
        DataError: an id is outside of the table, or a weight is not finite.
    """
    table = feature.table
    weights = None if weights is None else _joined(weights)
    padded = padded_ids(_joined(ids), weights, feature.max_sequence_length or None, True, name)
    if padded.cut is not None and feature not in _TOLD_OF_CUTS:
        _TOLD_OF_CUTS.add(feature)
        LOG.warning(
            "%r, row %s, has %s ids, and its max_sequence_length is %s: only the first ids of such rows are used. "
            "Later rows are cut without a line.",
            name,
            f"{padded.cut[0]:,}",
            f"{padded.cut[1]:,}",
            feature.max_sequence_length,
        )
    size, drops = table.vocabulary_size, not feature.validate_weights_and_indices
    good = without_bad_ids(repr(name), padded.ids, size, str(table.name), drops, "vocabulary_size")
    return good.astype("int32"), padded.weights


def check_rows(features: Sequence[FeatureIds], replicas: int) -> None:
    """Check that all features have the same number of rows, which the replicas divide.

    Raises:
        DataError: they do not.
    """
    rows = {len(ids) for ids, _ in features}
    if len(rows) > 1 or next(iter(rows)) % replicas:
        raise DataError(
            f"the features have {' and '.join(map(str, sorted(rows)))} rows, and {replicas} replicas need the same "
            "number in each, which they divide: pass full batches, batch(rows, drop_remainder=True)"
        )


def _joined(value: Any) -> Any:
    """Return the ids of the global batch, given those of each replica or all."""
    if not isinstance(value, PerReplica):
        return value
    return np.concatenate([np.asarray(part) for part in value.values])
