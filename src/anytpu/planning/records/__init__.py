"""The records of a plan: the predictions, their parts and their evidence."""

from anytpu.planning.records.cost import Cost, Holding, Price
from anytpu.planning.records.host import HostLoad
from anytpu.planning.records.lock import read_lock
from anytpu.planning.records.plan import Plan
from anytpu.planning.records.prediction import Advice, Prediction
from anytpu.planning.records.serving import Serving, ServingPlan
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
    "BatchPadding",
    "Buffer",
    "Cost",
    "Holding",
    "HostLoad",
    "Kind",
    "MemoryPart",
    "MemoryUse",
    "OpPrice",
    "OpTime",
    "Plan",
    "Prediction",
    "Price",
    "Serving",
    "ServingPlan",
    "StepTime",
    "read_lock",
]
