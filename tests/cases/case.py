"""What every case imports: `check` compares an expected value with the one found, `finish` ends the program.

A case is a program of its own. Its docstring says the kind of fault, the right value and how it is known. It prints
expected and found, and exits with 1 if they differ. `scripts/cases` runs all of them.
"""

import os
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")
import numpy as np

_failed: list[str] = []


def check(name: str, expected: object, found: object, tolerance: float = 1e-5) -> None:
    """Print one comparison of numbers: shapes are equal, and values to a relative and absolute tolerance."""
    right, got = np.asarray(expected, "float64"), np.asarray(found, "float64")
    is_right = right.shape == got.shape and np.allclose(got, right, rtol=tolerance, atol=tolerance, equal_nan=True)
    report(name, bool(is_right), f"{right.shape} {right.ravel()[:6]}", f"{got.shape} {got.ravel()[:6]}")


def check_equal(name: str, expected: object, found: object) -> None:
    """Print one comparison of values of any kind: texts, lists, types."""
    report(name, expected == found, repr(expected), repr(found))


def report(name: str, is_right: bool, expected: str, found: str) -> None:
    """Print one comparison, and keep it if it is wrong."""
    print("ok   " if is_right else "WRONG", name, "| expected", expected, "| found", found, flush=True)
    if not is_right:
        _failed.append(name)


def finish() -> None:
    """End the program at once: status 0 if all comparisons were right, else 1."""
    print("FAILED: " + "; ".join(_failed) if _failed else "all right", flush=True)
    sys.stderr.flush()
    os._exit(1 if _failed else 0)
