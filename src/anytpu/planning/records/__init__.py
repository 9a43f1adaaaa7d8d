"""The records of a plan: the predictions, their parts and their evidence."""

from anytpu.planning.records.advice import Advice
from anytpu.planning.records.cost import Cost, Price
from anytpu.planning.records.holding import Holding
from anytpu.planning.records.memory import BatchPadding, Buffer, Memory
from anytpu.planning.records.plan import Plan
from anytpu.planning.records.prediction import Basis, Prediction
from anytpu.planning.records.time import KINDS, Kind, OpTime, StepTime

__all__ = [
    "KINDS",
    "Advice",
    "Basis",
    "BatchPadding",
    "Buffer",
    "Cost",
    "Holding",
    "Kind",
    "Memory",
    "OpTime",
    "Plan",
    "Prediction",
    "Price",
    "StepTime",
]
