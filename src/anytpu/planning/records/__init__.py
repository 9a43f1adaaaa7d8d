"""The records of a plan: the predictions, their parts and their evidence."""

from anytpu.planning.records.cost import Cost, Holding, Price
from anytpu.planning.records.host import HostLoad
from anytpu.planning.records.lock import LockedStep, PlanLock, read_lock
from anytpu.planning.records.lock_check import LockCheck, StepCheck
from anytpu.planning.records.plan import Plan
from anytpu.planning.records.prediction import Advice, Basis, Prediction
from anytpu.planning.records.step import (
    KINDS,
    NO_LAYER,
    BatchPadding,
    Buffer,
    Kind,
    MemoryPart,
    MemoryUse,
    OpPrice,
    OpTime,
    StepTime,
)

__all__ = [
    "KINDS",
    "NO_LAYER",
    "Advice",
    "Basis",
    "BatchPadding",
    "Buffer",
    "Cost",
    "Holding",
    "HostLoad",
    "Kind",
    "LockCheck",
    "LockedStep",
    "MemoryPart",
    "MemoryUse",
    "OpPrice",
    "OpTime",
    "Plan",
    "PlanLock",
    "Prediction",
    "Price",
    "StepCheck",
    "StepTime",
    "read_lock",
]
