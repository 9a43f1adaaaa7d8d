"""`EstimatorTables`: the embedding tables of a `TPUEstimator`.

Idea: the features of an input_fn hold ids, and those of a model_fn their embeddings. The tables are outside of the
model_fn: rows are looked up before a step of the replicas, and updated after it.

Rule: a step sees all updates before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from anytpu.embedding import EmbeddingConfigSpec
from anytpu.embedding.feature_ids import ids_of_feature
from anytpu.embedding.feature_tables import FeatureTables, named_tables
from anytpu.embedding.stacked_tables import stacks_of
from anytpu.errors import DataError, SettingError


class EstimatorTables:
    """The tables of an estimator.

    Args:
        spec: the features that hold ids, and their tables.

    Attributes:
        names: the names of these features.
    """

    def __init__(self, spec: EmbeddingConfigSpec) -> None:
        self._configs, self._optimizer = dict(spec.feature_to_config_dict), spec.optimization_parameters
        self.names = tuple(self._configs)
        self._tables: FeatureTables | None = None

    @classmethod
    def of(cls, spec: Any, batch_axis: Any) -> EstimatorTables | None:
        """Return the tables of an estimator's arguments, or None without an `embedding_config_spec`.

        Raises:
            SettingError: the spec is none, or rows are in another axis than 0.
        """
        if spec is None:
            return None
        if not isinstance(spec, EmbeddingConfigSpec):
            raise SettingError(
                f"embedding_config_spec must be a tpu.embedding.EmbeddingConfigSpec, not {spec!r}: type "
                'tpu.embedding.EmbeddingConfigSpec({"seen": tpu.embedding.FeatureConfig(table)}, "adagrad")'
            )
        if batch_axis is not None:
            raise SettingError(
                f"batch_axis is {batch_axis!r}, and embedding_config_spec needs the rows of all features in axis 0: "
                "leave batch_axis out, and transpose in model_fn"
            )
        return cls(spec)

    def padded(self, features: Any) -> Any:
        """Return the features of a batch with rectangular ids, int32, -1 for no id.

        Args:
            features: the features, a dictionary.

        Raises:
            DataError: a feature of ids is missing, or an id is outside of its table.
        """
        if not isinstance(features, Mapping):
            raise DataError(
                f"the features of input_fn must be a dictionary with the ids {', '.join(map(repr, self.names))}, which "
                f"embedding_config_spec names, not {type(features).__name__}"
            )
        for name in self.names:
            if name not in features:
                raise DataError(
                    f"the features of input_fn are {sorted(features)}, and embedding_config_spec names {name!r}: "
                    "return its ids, or leave it out of feature_to_config_dict"
                )
        ids = {name: ids_of_feature(config, name, features[name], None)[0] for name, config in self._configs.items()}
        return {**features, **ids}

    def concatenated(self, parts: Sequence[Any]) -> list[Any]:
        """Return padded features of several replicas with ids of one length, to be concatenated.

        Args:
            parts: the features of each replica.
        """
        lengths = {name: max(part[name].shape[1] for part in parts) for name in self.names}
        return [{**part, **{name: _filled(part[name], length) for name, length in lengths.items()}} for part in parts]

    def without_ids(self, features: Any) -> Any:
        """Return the features whose shape must not change from batch to batch."""
        return {name: value for name, value in features.items() if name not in self.names}

    def make(self, strategy: Any) -> FeatureTables:
        """Return the tables, made in the scope of a strategy when they are first used.

        Args:
            strategy: the strategy on whose cores they are.
        """
        if self._tables is None:
            with strategy.scope():
                self._tables = FeatureTables(self._configs, self._optimizer)
        self._tables.strategy = strategy
        return self._tables

    def embedded(self, features: Any) -> tuple[Any, Any]:
        """Return the features with embeddings in place of ids, and the ids.

        Args:
            features: padded features of a global batch.
        """
        assert self._tables is not None
        ids = self._tables.ids(self._ids(features))
        return {**features, **self._tables.packed(self._tables.look_up(ids))}, ids

    def embedded_in_trace(self, features: Any) -> Any:
        """Return the features with embeddings in place of arrays of ids, by a lookup that is traced."""
        assert self._tables is not None
        return {**features, **self._tables.embeddings_of(self._ids(features))}

    def update(self, ids: Any, gradients: Mapping[str, np.ndarray]) -> None:
        """Update the rows of a batch.

        Args:
            ids: the ids of the batch.
            gradients: gradients of the embeddings of all rows, by feature.
        """
        assert self._tables is not None
        self._tables.update(ids, tuple(self._tables.flat("gradients", dict(gradients))))

    def values_by_table(self, values: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
        """Return the variables of a checkpoint by name, those of tables that are stored as one by the name of each.

        Args:
            values: the variables by name.
            prefix: first part of the names of variables of tables.
        """
        # In the order of `FeatureTables`.
        tables = named_tables(self._configs[name].table for name in sorted(self.names))
        places = {stack.name: stack.rows_by_name for stack in stacks_of(tables, self._optimizer)}
        unstacked: dict[str, np.ndarray] = {}
        for name, value in values.items():
            first, _, rest = name.partition("/")
            stack, _, variable = rest.rpartition("/")
            if first != prefix or stack not in places:
                unstacked[name] = value
                continue
            # The learning rate and the step count belong to all tables of a stack.
            for table, rows in places[stack].items():
                unstacked[f"{prefix}/{table}/{variable}"] = value[rows] if np.ndim(value) else value
        return unstacked

    def _ids(self, features: Any) -> dict[str, Any]:
        return {name: features[name] for name in self.names}


def _filled(ids: np.ndarray, length: int) -> np.ndarray:
    return np.pad(ids, ((0, 0), (0, length - ids.shape[1])), constant_values=-1)
