"""Checkpoints: named arrays in a folder, each with a digest, for all code that saves."""

from anytpu.train.checkpoint.folder import Checkpoint, Checkpoints, checkpoint_at
from anytpu.train.checkpoint.manifest import ArrayForm, Purpose, difference
from anytpu.train.checkpoint.policy import SavePolicy
from anytpu.train.checkpoint.saver import Saver
from anytpu.train.checkpoint.snapshot import Restored, Snapshot, is_finite, maker_of

__all__ = [
    "ArrayForm",
    "Checkpoint",
    "Checkpoints",
    "Purpose",
    "Restored",
    "SavePolicy",
    "Saver",
    "Snapshot",
    "checkpoint_at",
    "difference",
    "is_finite",
    "maker_of",
]
