"""Embedding tables larger than a core: split by row, of which a step updates the rows it uses."""

from anytpu.embedding.layer import ShardedEmbedding

__all__ = ["ShardedEmbedding"]
