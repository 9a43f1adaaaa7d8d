"""Where records and batches come from: the named data sets."""

from anytpu.pipeline.named import digits, iris

__all__ = ["digits", "iris"]
