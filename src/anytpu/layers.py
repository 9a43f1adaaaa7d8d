"""The Keras layers of anytpu."""

from anytpu.embedding import ShardedEmbedding

__all__ = ["ShardedEmbedding"]
