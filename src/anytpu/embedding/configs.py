"""`TableConfig`, `FeatureConfig` and `EmbeddingConfigSpec`, with the arguments of TensorFlow's classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import keras

from anytpu._calls import explain_methods
from anytpu.embedding.bags import COMBINERS
from anytpu.errors import SettingError


@dataclasses.dataclass(eq=False)
class TableConfig:
    """An embedding table; features that share one share this object.

    Attributes:
        vocabulary_size: number of ids.
        dim: width of an embedding.
        initializer: a Keras initializer or its name; None draws from a normal distribution that is cut at two standard
            deviations, each 1 / sqrt(dim).
        optimizer: the table's own optimizer, a Keras optimizer or its name; None takes that of the `TPUEmbedding`.
        combiner: "mean", "sum" or "sqrtn".
        name: name of the table; None numbers it.
    """

    vocabulary_size: int
    dim: int
    initializer: Any = None
    optimizer: Any = None
    combiner: str = "mean"
    name: str | None = None

    def __post_init__(self) -> None:
        for name in ("vocabulary_size", "dim"):
            size = getattr(self, name)
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise SettingError(f"{name} of a table must be a positive integer, not {size!r}")
        if self.combiner not in COMBINERS:
            raise SettingError(f'combiner of a table must be "mean", "sum" or "sqrtn", not {self.combiner!r}')

    def first_rows(self, dtype: Any) -> Any:
        """Return the initial embeddings, `(vocabulary_size, dim)`."""
        normal = keras.initializers.TruncatedNormal(stddev=self.dim**-0.5)
        initializer: Any = normal if self.initializer is None else keras.initializers.get(self.initializer)
        return initializer((self.vocabulary_size, self.dim), dtype)


@dataclasses.dataclass(eq=False)
class FeatureConfig:
    """A feature that is looked up in a table.

    Attributes:
        table: the table.
        max_sequence_length: 0 to combine the ids of a row; otherwise the number of embeddings of a row, which are not
            combined. Rows with fewer ids get zeros. Longer rows are cut to their first ids, as in TensorFlow; a log
            line says so once.
        validate_weights_and_indices: whether ids and weights are checked on the host. False drops bad ids.
        output_shape: must be None: the shape follows from the ids.
        name: name of the feature, for errors; None takes its place in the configuration.
    """

    table: TableConfig
    max_sequence_length: int = 0
    validate_weights_and_indices: bool = True
    output_shape: Any = None
    name: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.table, TableConfig):
            raise SettingError(f"table of a FeatureConfig must be a TableConfig, not {self.table!r}")
        length: Any = self.max_sequence_length
        if not isinstance(length, int) or isinstance(length, bool) or length < 0:
            raise SettingError(
                "max_sequence_length of a feature must be a positive integer, or 0 to combine the ids of a row, not "
                f"{length!r}"
            )
        if self.output_shape is not None:
            raise SettingError(
                f"output_shape={self.output_shape!r} is not supported: the result has one row for each row of ids. "
                "Leave it out, and reshape the result"
            )


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
        if (
            not isinstance(features, Mapping)
            or not features
            or not all(
                isinstance(name, str) and isinstance(feature, FeatureConfig) for name, feature in features.items()
            )
        ):
            raise SettingError(
                "feature_to_config_dict must be a dictionary with a FeatureConfig for each feature of ids, by its "
                f'name, such as {{"seen": FeatureConfig(table)}}, not {features!r}'
            )
        refuse_pipelining(self.pipeline_execution_with_tensor_core)


def refuse_pipelining(pipeline_execution_with_tensor_core: bool) -> None:
    """Refuse TensorFlow's lookup beside the last step."""
    if pipeline_execution_with_tensor_core:
        raise SettingError(
            "pipeline_execution_with_tensor_core=True would look rows up before the update of the last step: leave it "
            "out"
        )
