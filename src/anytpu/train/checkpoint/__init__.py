"""Checkpoints: named arrays in a folder, each with a digest, for all code that saves."""

from anytpu.train.checkpoint.folder import Checkpoint, Checkpoints, checkpoint_at
from anytpu.train.checkpoint.manifest import ArrayForm, Purpose, difference

__all__ = ["ArrayForm", "Checkpoint", "Checkpoints", "Purpose", "checkpoint_at", "difference"]
