"""The records of a plan: the predictions, their parts and their evidence."""

from anytpu.planning.records.cost import Cost, Holding, Price
from anytpu.planning.records.plan import Plan
from anytpu.planning.records.prediction import Advice, Basis, Prediction
from anytpu.planning.records.step import KINDS, BatchPadding, Buffer, Kind, MemoryUse, OpPrice, OpTime, StepTime

__all__ = [
    "KINDS",
    "Advice",
    "Basis",
    "BatchPadding",
    "Buffer",
    "Cost",
    "Holding",
    "Kind",
    "MemoryUse",
    "OpPrice",
    "OpTime",
    "Plan",
    "Prediction",
    "Price",
    "StepTime",
]
