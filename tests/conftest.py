"""The tests' surroundings: the CPU, anytpu before Keras, and property tests that find the same cases each time."""

import os

# Before anything imports JAX. Tests of real accelerators run in a process of their own.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from hypothesis import settings

# Before any test module imports keras: it chooses the backend.
import anytpu  # noqa: F401

# No deadline: a first call compiles. Derandomized: CI fails on a fault, not on luck.
settings.register_profile("anytpu", deadline=None, derandomize=True)
settings.load_profile("anytpu")
