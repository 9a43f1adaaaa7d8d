"""Embedding tables larger than a core: split by row, of which a step updates the rows it uses."""

from anytpu.embedding.configs import EmbeddingConfigSpec, FeatureConfig, TableConfig
from anytpu.embedding.layer import ShardedEmbedding
from anytpu.embedding.model_tables import ModelTables
from anytpu.embedding.padded_ids import pad_ids
from anytpu.embedding.tpu_embedding import TPUEmbedding

__all__ = [
    "EmbeddingConfigSpec",
    "FeatureConfig",
    "ModelTables",
    "ShardedEmbedding",
    "TPUEmbedding",
    "TableConfig",
    "pad_ids",
]
