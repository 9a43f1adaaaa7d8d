"""anytpu: the TPU programming system for any machine.

Idea: `import anytpu as tpu`, before keras, provides the names of the TPU systems. `tpu.connect()` finds a TPU or a GPU,
or makes a virtual TPU from the CPU. A model trained under its strategy runs on all cores.

Rule: a name is loaded on first use, so importing anytpu loads neither JAX nor Keras. The import makes the two choices
that must precede theirs: Keras's backend is JAX, and JAX probes for no accelerator on a machine without one. Settings
that the user made are kept.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from anytpu import _by_name, _env

if TYPE_CHECKING:
    from anytpu import chip, embedding, errors, layers, pipeline, program, summary, system
    from anytpu.bench import compare
    from anytpu.checking.check import check
    from anytpu.engine import device
    from anytpu.migrate.estimator import (
        InputPipelineConfig,
        ModeKeys,
        RunConfig,
        SessionRunHook,
        TPUConfig,
        TPUEstimator,
        TPUEstimatorSpec,
        get_global_step,
    )
    from anytpu.migrate.keras_to_tpu.conversion import TPUDistributionStrategy, keras_to_tpu_model
    from anytpu.migrate.low_level import (
        CrossShardOptimizer,
        DeviceAttributes,
        TPUContext,
        batch_parallel,
        bfloat16_scope,
        core,
        cross_replica_sum,
        get_tpu_context,
        initialize_system,
        list_devices,
        outside_compilation,
        repeat,
        replicate,
        rewrite,
        shard,
        shutdown_system,
        while_loop,
    )
    from anytpu.planning.kernels.kernel_check import check_kernel
    from anytpu.planning.plans.planner import max_batch_size, plan, scaling
    from anytpu.planning.serving.language_models import language_model
    from anytpu.planning.serving.serving import plan_serving
    from anytpu.planning.shardings import find_layouts
    from anytpu.planning.smoke.smoke import smoke
    from anytpu.planning.ways.ways import ways_to_fit
    from anytpu.program.shapes_only import shapes_only
    from anytpu.strategy import (
        InputContext,
        PerReplica,
        ReduceOp,
        ReplicaContext,
        TPUStrategy,
        compute_average_loss,
        connect,
        get_replica_context,
        get_strategy,
        has_strategy,
        in_cross_replica_context,
        row_mask,
        scale_regularization_loss,
        value_and_grad,
    )
    from anytpu.system import (
        TPUClusterResolver,
        experimental_connect_to_cluster,
        initialize_tpu_system,
        join_hosts,
        list_logical_devices,
        shutdown_tpu_system,
    )
    from anytpu.train import Checkpointer, RunRecord, input_shares, model_step, step_logs

__all__ = [
    "Checkpointer",
    "CrossShardOptimizer",
    "DeviceAttributes",
    "InputContext",
    "InputPipelineConfig",
    "ModeKeys",
    "PerReplica",
    "ReduceOp",
    "ReplicaContext",
    "RunConfig",
    "RunRecord",
    "SessionRunHook",
    "TPUClusterResolver",
    "TPUConfig",
    "TPUContext",
    "TPUDistributionStrategy",
    "TPUEstimator",
    "TPUEstimatorSpec",
    "TPUStrategy",
    "batch_parallel",
    "bfloat16_scope",
    "check",
    "check_kernel",
    "chip",
    "compare",
    "compute_average_loss",
    "connect",
    "core",
    "cross_replica_sum",
    "device",
    "embedding",
    "errors",
    "experimental_connect_to_cluster",
    "find_layouts",
    "get_global_step",
    "get_replica_context",
    "get_strategy",
    "get_tpu_context",
    "has_strategy",
    "in_cross_replica_context",
    "initialize_system",
    "initialize_tpu_system",
    "input_shares",
    "join_hosts",
    "keras_to_tpu_model",
    "language_model",
    "layers",
    "list_devices",
    "list_logical_devices",
    "max_batch_size",
    "model_step",
    "outside_compilation",
    "pipeline",
    "plan",
    "plan_serving",
    "program",
    "repeat",
    "replicate",
    "rewrite",
    "row_mask",
    "scale_regularization_loss",
    "scaling",
    "shapes_only",
    "shard",
    "shutdown_system",
    "shutdown_tpu_system",
    "smoke",
    "step_logs",
    "summary",
    "system",
    "value_and_grad",
    "ways_to_fit",
    "while_loop",
]

_NAMES = {
    "bench": """
        compare
    """,
    "engine": """
        device
    """,
    "planning.plans.planner": """
        max_batch_size plan scaling
    """,
    "planning.kernels.kernel_check": """
        check_kernel
    """,
    "planning.serving.language_models": """
        language_model
    """,
    "planning.serving.serving": """
        plan_serving
    """,
    "planning.shardings": """
        find_layouts
    """,
    "planning.ways.ways": """
        ways_to_fit
    """,
    "program.shapes_only": """
        shapes_only
    """,
    "strategy": """
        InputContext PerReplica ReduceOp ReplicaContext TPUStrategy compute_average_loss connect get_replica_context
        get_strategy has_strategy in_cross_replica_context row_mask scale_regularization_loss value_and_grad
    """,
    "system": """
        TPUClusterResolver experimental_connect_to_cluster initialize_tpu_system join_hosts list_logical_devices
        shutdown_tpu_system
    """,
    "train": """
        Checkpointer RunRecord input_shares model_step step_logs
    """,
    "checking.check": """
        check
    """,
    "planning.smoke.smoke": """
        smoke
    """,
    "migrate.keras_to_tpu.conversion": """
        TPUDistributionStrategy keras_to_tpu_model
    """,
    "migrate.estimator": """
        InputPipelineConfig ModeKeys RunConfig SessionRunHook TPUConfig TPUEstimator TPUEstimatorSpec
        get_global_step
    """,
    "migrate.low_level": """
        CrossShardOptimizer DeviceAttributes TPUContext batch_parallel bfloat16_scope core
        cross_replica_sum get_tpu_context initialize_system list_devices outside_compilation repeat
        replicate rewrite shard shutdown_system while_loop
    """,
}
"""The public names of each module."""

_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
_SUBMODULES = frozenset(__all__) - _MODULES.keys()

_env.set_keras_backend()
_env.prepare_jax()


def __getattr__(name: str) -> object:
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name == "__version__":
        value = importlib.import_module("importlib.metadata").version(__name__)
    elif name in _MODULES:
        value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    else:
        # Python asks for a submodule as an attribute first, so the import of a private file gets no search for advice.
        private = f"anytpu has no name {name!r}"
        raise AttributeError(private if name.startswith("_") else _unknown_name_message(name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def _unknown_name_message(name: str) -> str:
    replaced = _by_name.load("replaced names")(name)
    if replaced:
        return replaced
    matches = importlib.import_module("difflib").get_close_matches(name, __all__, n=1, cutoff=0.5)
    hint = f"did you mean anytpu.{matches[0]}?" if matches else "dir(anytpu) lists its names."
    return f"anytpu has no name {name!r}; {hint}"
