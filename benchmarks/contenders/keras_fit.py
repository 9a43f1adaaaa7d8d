"""Keras 3 with its own `fit`, on the backend that KERAS_BACKEND names."""

from __future__ import annotations

import functools

from inputs import BATCH
from models import fit
from worker import serve

if __name__ == "__main__":
    serve({job: functools.partial(fit, job) for job in BATCH})
