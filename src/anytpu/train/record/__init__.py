"""The record of a training run: written while it trains, read by the report and the live page."""

from anytpu.train.record.reading import RunReader
from anytpu.train.record.writing import RunRecord

__all__ = ["RunReader", "RunRecord"]
