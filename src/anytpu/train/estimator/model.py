"""`Model`: a model_fn bound to one mode, as a replica calls it."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

from anytpu.errors import EstimatorError
from anytpu.train.estimator.spec import TPUEstimatorSpec


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """A model_fn and all of its arguments except the batch.

    Attributes:
        model_fn: takes `features`, and those of `labels`, `mode`, `params` and `config` that its signature names.
        mode: one of `ModeKeys`.
        params: the user's params, with "batch_size" (of one replica) and "use_tpu".
        config: the `RunConfig`.
    """

    model_fn: Callable
    mode: str
    params: dict[str, Any]
    config: Any

    def spec(self, features: Any, labels: Any) -> TPUEstimatorSpec:
        """Call the model_fn with one replica's batch.

        Raises:
            EstimatorError: there are labels and model_fn takes none; or it does not return a `TPUEstimatorSpec`.
        """
        parameters = parameters_of(self.model_fn)
        available: dict[str, Any] = {"mode": self.mode, "params": copy.copy(self.params), "config": self.config}
        arguments = {name: value for name, value in available.items() if name in parameters}
        if "labels" in parameters:
            arguments["labels"] = labels
        elif labels is not None:
            raise EstimatorError(
                "model_fn does not take labels, but input_fn returns labels. Write "
                "def model_fn(features, labels, mode, params)"
            )
        spec = self.model_fn(features, **arguments)
        if not isinstance(spec, TPUEstimatorSpec):
            raise EstimatorError(
                f"estimator_spec used by TPU {_ACTIVITIES[self.mode]} must have type `TPUEstimatorSpec`. Got "
                f"{type(spec).__name__}: return tpu.TPUEstimatorSpec(mode, ...)"
            )
        return spec


_ACTIVITIES = {"train": "training", "eval": "evaluation", "infer": "prediction"}


def parameters_of(function: Callable) -> frozenset[str]:
    """Return the names of a function's parameters, without those bound by `functools.partial`."""
    return frozenset(inspect.signature(function).parameters)


def check_model_fn(model_fn: Any) -> None:
    """Reject an invalid model_fn.

    Raises:
        EstimatorError: `model_fn` is not callable, or does not take `features` and `params`.
    """
    if not callable(model_fn):
        raise EstimatorError(f"model_fn must be a function (features, labels, mode, params), not {model_fn!r}")
    parameters = parameters_of(model_fn)
    if "features" not in parameters:
        raise EstimatorError(f"model_fn ({_name(model_fn)}) must include features argument")
    if "params" not in parameters:
        raise EstimatorError(
            f"model_fn ({_name(model_fn)}) does not include params argument, required by TPUEstimator to pass batch "
            'size as params["batch_size"]: write def model_fn(features, labels, mode, params)'
        )


def _name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)
