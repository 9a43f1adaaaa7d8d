"""Embedding tables larger than a core: split by row, of which a step updates the rows it uses."""

from anytpu.embedding.checked_ids import checked_ids
from anytpu.embedding.layer import ShardedEmbedding
from anytpu.embedding.table_layer import tables_of

__all__ = ["ShardedEmbedding", "checked_ids", "tables_of"]
