"""`load`: loads an object of a higher floor by its name.

Idea: imports only go down the floors. A lower floor may need an object of a higher one, such as the report of a plan.
It loads that object from this table on use. So does the core with each object of the four rooms above it: `planning`,
`chip`, `migrate` and `worker`. A room knows the core, and nobody else knows the room.

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
    "exchanges": "anytpu.planning.advice.exchanges:exchanges",
    "layout search": "anytpu.planning.shardings:find_layouts",
    "replaced names": "anytpu.migrate.replaced.table:advice_for",
    "plan command": "anytpu.planning.commands.plan:COMMAND",
    "shard command": "anytpu.planning.commands.shard:COMMAND",
    "kernel command": "anytpu.planning.commands.kernel:COMMAND",
    "chip command": "anytpu.chip.command:COMMAND",
    "port command": "anytpu.migrate.commands.port:COMMAND",
    "worker command": "anytpu.worker.command:COMMAND",
}
"""Module and attribute of each object: the changes of a scope to Keras and to keras-rs, what the core takes of the
four rooms above it, their reports and their commands."""


def load(name: str) -> Any:
    """Import the module of an object, and return the object.

    Args:
        name: a key of `OBJECTS`.
    """
    module, _, attribute = OBJECTS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
