"""anytpu: the TPU programming system for any machine.

Idea: `import anytpu as tpu`, before keras, and the names of the TPU systems are there: `tpu.connect()` finds a TPU or a
GPU, or makes a virtual TPU of the CPU; what is trained under its strategy runs on all of its cores.

Rule: a name is loaded when it is first used, so that importing anytpu loads neither JAX nor Keras. The import settles
what must be settled before theirs: Keras's backend is JAX, and JAX looks for no accelerator on a machine that has none.
What the user has set himself stays.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from anytpu import _env

if TYPE_CHECKING:
    from anytpu import errors, pipeline, program, system
    from anytpu.engine import device
    from anytpu.strategy import (
        PerReplica,
        ReduceOp,
        TPUStrategy,
        compute_average_loss,
        connect,
        get_strategy,
        value_and_grad,
    )
    from anytpu.system import (
        TPUClusterResolver,
        experimental_connect_to_cluster,
        initialize_tpu_system,
        list_logical_devices,
        shutdown_tpu_system,
    )
    from anytpu.train import step_logs

__all__ = [
    "PerReplica",
    "ReduceOp",
    "TPUClusterResolver",
    "TPUStrategy",
    "compute_average_loss",
    "connect",
    "device",
    "errors",
    "experimental_connect_to_cluster",
    "get_strategy",
    "initialize_tpu_system",
    "list_logical_devices",
    "pipeline",
    "program",
    "shutdown_tpu_system",
    "step_logs",
    "system",
    "value_and_grad",
]

_HOMES = {
    "PerReplica": "strategy",
    "ReduceOp": "strategy",
    "TPUClusterResolver": "system",
    "TPUStrategy": "strategy",
    "compute_average_loss": "strategy",
    "connect": "strategy",
    "device": "engine",
    "experimental_connect_to_cluster": "system",
    "get_strategy": "strategy",
    "initialize_tpu_system": "system",
    "list_logical_devices": "system",
    "shutdown_tpu_system": "system",
    "step_logs": "train",
    "value_and_grad": "strategy",
}
_PARTS = frozenset(__all__) - _HOMES.keys()

_env.set_keras_backend()
_env.prepare_jax()


def __getattr__(name: str) -> object:
    if name in _PARTS:
        return importlib.import_module(f"{__name__}.{name}")
    if name == "__version__":
        value = importlib.import_module("importlib.metadata").version(__name__)
    elif name in _HOMES:
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    else:
        raise AttributeError(_unknown(name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def _unknown(name: str) -> str:
    near = importlib.import_module("difflib").get_close_matches(name, __all__, n=1, cutoff=0.5)
    hint = f"did you mean anytpu.{near[0]}?" if near else "dir(anytpu) lists its names."
    return f"anytpu has no name {name!r}; {hint}"
