"""`EmbeddingConfigSpec`: the embedding tables of a `TPUEstimator`. `EstimatorTables`: these tables on its cores.

Idea: the features of an input_fn hold ids, and those of a model_fn their embeddings. The tables are outside of the
model_fn: rows are looked up before a step of the replicas, and updated after it.

Rule: a step sees all updates before it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from anytpu._calls import explain_methods
from anytpu.embedding.configs import FeatureConfig
from anytpu.embedding.feature_ids import FeatureIds, ids_of_feature
from anytpu.embedding.feature_tables import FeatureTables, named_tables
from anytpu.embedding.stacked_tables import groups_of
from anytpu.errors import DataError, SettingError


@explain_methods
@dataclasses.dataclass(frozen=True, eq=False)
class EmbeddingConfigSpec:
    """The embedding tables of a `TPUEstimator`, its `embedding_config_spec`.

    Attributes:
        feature_to_config_dict: a `FeatureConfig` for each feature that holds ids, by its name in the features.
        optimization_parameters: optimizer of the tables without one of their own: SGD, Adagrad, Adam or Ftrl of Keras,
            or its name.
        pipeline_execution_with_tensor_core: must be False: a lookup sees all updates before it.

    Raises:
        SettingError: a value is invalid.

    Example:
        >>> words = FeatureConfig(TableConfig(vocabulary_size=100, dim=4, name="words"))
        >>> spec = EmbeddingConfigSpec({"text": words}, "adagrad")
        >>> sorted(spec.feature_to_config_dict)
        ['text']
    """

    feature_to_config_dict: Mapping[str, FeatureConfig]
    optimization_parameters: Any
    pipeline_execution_with_tensor_core: bool = False

    def __post_init__(self) -> None:
        features = self.feature_to_config_dict
        if not isinstance(features, Mapping) or not features or not all(_is_named(pair) for pair in features.items()):
            raise SettingError(
                "feature_to_config_dict must be a dictionary with a FeatureConfig for each feature of ids, by its "
                f'name, such as {{"seen": FeatureConfig(table)}}, not {features!r}'
            )
        if self.pipeline_execution_with_tensor_core:
            raise SettingError(
                "pipeline_execution_with_tensor_core=True would look rows up before the update of the last step: leave "
                "it out"
            )

    def padded(self, features: Any) -> Any:
        """Return the features of a batch with rectangular ids, int32, -1 for no id.

        Args:
            features: the features, a dictionary.

        Raises:
            DataError: a feature of ids is missing, or an id is outside of its table.
        """
        names = ", ".join(map(repr, self.feature_to_config_dict))
        if not isinstance(features, Mapping):
            raise DataError(
                f"the features of input_fn must be a dictionary with the ids {names}, which embedding_config_spec "
                f"names, not {type(features).__name__}"
            )
        for name in self.feature_to_config_dict:
            if name not in features:
                raise DataError(
                    f"the features of input_fn are {sorted(features)}, and embedding_config_spec names {name!r}: "
                    "return its ids, or leave it out of feature_to_config_dict"
                )
        pairs = self.feature_to_config_dict.items()
        ids = {name: ids_of_feature(config, name, features[name], None)[0] for name, config in pairs}
        return {**features, **ids}

    def concatenated(self, parts: Sequence[Any]) -> list[Any]:
        """Return padded features of several replicas with ids of one length, to be concatenated.

        Args:
            parts: the features of each replica.
        """
        parts = [dict(part) for part in parts]
        for name in self.feature_to_config_dict:
            length = max(part[name].shape[1] for part in parts)
            for part in parts:
                rest = length - part[name].shape[1]
                part[name] = np.pad(part[name], ((0, 0), (0, rest)), constant_values=-1)
        return parts

    def values_by_table(self, values: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
        """Return the variables of a checkpoint by name, those of tables that are stored as one by the name of each.

        Args:
            values: the variables by name.
            prefix: first part of the names of variables of tables.
        """
        # In the order of `FeatureTables`.
        configs = self.feature_to_config_dict
        tables = named_tables(configs[feature].table for feature in sorted(configs))
        places: dict[str, list[tuple[str, slice]]] = {}
        for group in groups_of(tables, self.optimization_parameters):
            ends = np.cumsum([table.vocabulary_size for table in group.tables])
            places[group.name] = [
                (str(table.name), slice(int(end) - table.vocabulary_size, int(end)))
                for table, end in zip(group.tables, ends, strict=True)
            ]
        unstacked: dict[str, np.ndarray] = {}
        for name, value in values.items():
            first, _, rest = name.partition("/")
            stack, _, variable = rest.rpartition("/")
            if first != prefix or stack not in places:
                unstacked[name] = value
                continue
            # The learning rate and the step count belong to all tables of a stack.
            for table, rows in places[stack]:
                unstacked[f"{prefix}/{table}/{variable}"] = value[rows] if np.ndim(value) else value
        return unstacked

    def without_ids(self, features: Any) -> Any:
        """Return the features whose shape must not change from batch to batch."""
        return {name: value for name, value in features.items() if name not in self.feature_to_config_dict}


def _is_named(pair: tuple[Any, Any]) -> bool:
    return isinstance(pair[0], str) and isinstance(pair[1], FeatureConfig)


class EstimatorTables:
    """The tables of an estimator.

    Args:
        spec: their features.

    Attributes:
        spec: their features.
    """

    def __init__(self, spec: EmbeddingConfigSpec) -> None:
        self.spec = spec
        self._strategy: Any = None
        self._tables: FeatureTables | None = None

    def make(self, strategy: Any) -> FeatureTables:
        """Return the tables, made in the scope of a strategy when they are first used.

        Args:
            strategy: the strategy on whose cores they are.
        """
        self._strategy = strategy
        if self._tables is None:
            with strategy.scope():
                self._tables = FeatureTables(dict(self.spec.feature_to_config_dict), self.spec.optimization_parameters)
        return self._tables

    def embedded(self, features: Any) -> tuple[Any, tuple[FeatureIds, ...]]:
        """Return the features with embeddings in place of ids, and the ids.

        Args:
            features: padded features of a global batch.
        """
        tables = self.make(self._strategy)
        id_features = {name: features[name] for name in self.spec.feature_to_config_dict}
        ids = tables.ids(id_features, None, self._strategy.num_replicas_in_sync)
        return {**features, **tables.packed(tables.look_up(self._strategy, ids))}, ids

    def embedded_in_trace(self, features: Any) -> Any:
        """Return the features with embeddings in place of arrays of ids, by a lookup that is traced."""
        tables = self.make(self._strategy)
        id_features = {name: features[name] for name in self.spec.feature_to_config_dict}
        return {**features, **tables.embeddings_of(id_features)}

    def update(self, ids: tuple[FeatureIds, ...], gradients: Mapping[str, np.ndarray]) -> None:
        """Update the rows of a batch.

        Args:
            ids: the ids of the batch.
            gradients: gradients of the embeddings of all rows, by feature.
        """
        tables = self.make(self._strategy)
        tables.update(self._strategy, ids, tuple(tables.flat("gradients", dict(gradients))))
