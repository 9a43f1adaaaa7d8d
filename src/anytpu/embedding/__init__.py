"""Embedding tables larger than a core: split by row, of which a step updates the rows it uses."""

from anytpu.embedding.checked_ids import check_forms, checked_ids
from anytpu.embedding.configs import FeatureConfig, TableConfig
from anytpu.embedding.estimator_tables import EmbeddingConfigSpec, EstimatorTables
from anytpu.embedding.layer import ShardedEmbedding
from anytpu.embedding.padded_ids import pad_ids
from anytpu.embedding.table_layer import nan_hint, slots_of_tables, tables_of, warn_of_rate_callbacks
from anytpu.embedding.tpu_embedding import TPUEmbedding

__all__ = [
    "EmbeddingConfigSpec",
    "EstimatorTables",
    "FeatureConfig",
    "ShardedEmbedding",
    "TPUEmbedding",
    "TableConfig",
    "check_forms",
    "checked_ids",
    "nan_hint",
    "pad_ids",
    "slots_of_tables",
    "tables_of",
    "warn_of_rate_callbacks",
]
