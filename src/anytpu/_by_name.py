"""`load`: loads an object of a higher floor by its name.

Idea: imports only go down the floors. A lower floor may need an object of a higher one, such as the report of a plan.
It loads that object from this table on use.

Rule: the structure test checks that each object exists. Backends and makers of Programs are not here. Other packages
may add some, so they are entry points in pyproject.toml.
"""

from __future__ import annotations

import importlib
from typing import Any

OBJECTS = {
    "keras scope": "anytpu.train.adopt:install",
    "keras-rs scope": "anytpu.embedding.keras_rs_tables:install",
    "layout chooser": "anytpu.planning.shardings.automatic:choose_layout",
    "worker topology": "anytpu.worker.remote:topology_at",
    "plan report": "anytpu.planning.page.report:PLAN_REPORT",
    "chip report": "anytpu.chip.page.report:CHIP_REPORT",
    "kernel report": "anytpu.planning.page.kernel:KERNEL_REPORT",
    "serving report": "anytpu.planning.page.serving:SERVING_REPORT",
    "shardings report": "anytpu.planning.page.shardings:SHARDINGS_REPORT",
    "changes report": "anytpu.planning.page.changes:CHANGES_REPORT",
}
"""Module and attribute of each object: the changes of a scope to Keras and to keras-rs, the chooser of layouts, the
system of a worker, and the reports."""


def load(name: str) -> Any:
    """Import the module of an object, and return the object.

    Args:
        name: a key of `OBJECTS`.
    """
    module, _, attribute = OBJECTS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
