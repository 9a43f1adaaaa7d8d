"""`Model`: a model_fn for one mode, as something that a replica can call."""

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
    """A model_fn and all of its arguments but the batch.

    Attributes:
        model_fn: takes `features`, and `labels`, `mode`, `params` and `config` where it names them.
        mode: one of `ModeKeys`.
        params: the user's, with "batch_size" (of one replica) and "use_tpu".
        config: the `RunConfig`.
    """

    model_fn: Callable
    mode: str
    params: dict[str, Any]
    config: Any

    def spec(self, features: Any, labels: Any) -> TPUEstimatorSpec:
        """Call the model_fn with one replica's batch.

        Raises:
            EstimatorError: it takes no labels, and there are some; or it does not return a `TPUEstimatorSpec`.
        """
        takes = parameters_of(self.model_fn)
        given: dict[str, Any] = {"mode": self.mode, "params": copy.copy(self.params), "config": self.config}
        arguments = {name: value for name, value in given.items() if name in takes}
        if "labels" in takes:
            arguments["labels"] = labels
        elif labels is not None:
            raise EstimatorError(
                "model_fn does not take labels, but input_fn returns labels. Write "
                "def model_fn(features, labels, mode, params)"
            )
        spec = self.model_fn(features, **arguments)
        if not isinstance(spec, TPUEstimatorSpec):
            raise EstimatorError(
                f"estimator_spec used by TPU {_DOING[self.mode]} must have type `TPUEstimatorSpec`. Got "
                f"{type(spec).__name__}: return tpu.TPUEstimatorSpec(mode, ...)"
            )
        return spec


_DOING = {"train": "training", "eval": "evaluation", "infer": "prediction"}


def parameters_of(function: Callable) -> frozenset[str]:
    """Return the names of the parameters of a function, a partial's bound ones left out."""
    return frozenset(inspect.signature(function).parameters)


def check_model_fn(model_fn: Any) -> None:
    """Refuse what cannot be a model_fn.

    Raises:
        EstimatorError: it is not callable, or does not take `features` and `params`.
    """
    if not callable(model_fn):
        raise EstimatorError(f"model_fn must be a function (features, labels, mode, params), not {model_fn!r}")
    takes = parameters_of(model_fn)
    if "features" not in takes:
        raise EstimatorError(f"model_fn ({_name(model_fn)}) must include features argument")
    if "params" not in takes:
        raise EstimatorError(
            f"model_fn ({_name(model_fn)}) does not include params argument, required by TPUEstimator to pass batch "
            'size as params["batch_size"]: write def model_fn(features, labels, mode, params)'
        )


def _name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)
