"""Embedding tables larger than a core: split by row, of which a step updates the rows it uses."""

from anytpu.embedding.checked_ids import checked_ids
from anytpu.embedding.configs import FeatureConfig, TableConfig
from anytpu.embedding.layer import ShardedEmbedding
from anytpu.embedding.padded_ids import pad_ids
from anytpu.embedding.table_layer import tables_of
from anytpu.embedding.tpu_embedding import TPUEmbedding

__all__ = ["FeatureConfig", "ShardedEmbedding", "TPUEmbedding", "TableConfig", "checked_ids", "pad_ids", "tables_of"]
