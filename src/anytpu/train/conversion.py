"""`keras_to_tpu_model`: a Keras model that is there already, on the cores of a TPU.

Idea: what the notebooks of 2018 called. The model is copied with everything that it knows (weights, optimizer, random
numbers) into the scope of a strategy; the copy is a Keras model that trains there, and the original waits.

Rule: the original is not written before `sync_to_cpu()`. A model that is made and compiled in `strategy.scope()` needs
none of this.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, final

import keras

from anytpu import _keras
from anytpu.errors import SettingError, SettingTypeError
from anytpu.strategy import TPUStrategy
from anytpu.strategy.current import CURRENT
from anytpu.system import TPUClusterResolver
from anytpu.train import clones
from anytpu.train.padding import LENGTHS
from anytpu.train.tpu_model import Conversion, conversion_of, converted, plain_class


@final
class TPUDistributionStrategy:
    """Where `keras_to_tpu_model` brings a model.

    Args:
        tpu_cluster_resolver: the system; None finds one as `TPUClusterResolver("")` does.
        using_single_core: use its first core only.
        strict: refuse batches that the cores do not divide, with an AssertionError, as the first TPU systems did.

    Attributes:
        strategy: the `TPUStrategy` of these cores.

    Raises:
        SettingError: what was passed is not a resolver.

    Example:
        >>> TPUDistributionStrategy(TPUClusterResolver("v2-8"), using_single_core=True).strategy.num_replicas_in_sync
        1
    """

    def __init__(
        self,
        tpu_cluster_resolver: TPUClusterResolver | None = None,
        using_single_core: bool = False,
        strict: bool = False,
    ) -> None:
        strategy = TPUStrategy(tpu_cluster_resolver, strict=strict)
        self.strategy = strategy.part(1) if using_single_core else strategy

    def __repr__(self) -> str:
        return f"TPUDistributionStrategy({self.strategy!r})"


def keras_to_tpu_model(model: Any, strategy: Any = None, *, lengths: Sequence[int] = ()) -> Any:
    """Copy a Keras model to the cores of a TPU.

    The copy has the model's layers, weights, optimizer (with its slots, step and learning rate) and states of random
    generators, and is compiled if the model is. The model itself stays as it is until `sync_to_cpu()`.

    Args:
        model: a Sequential or functional Keras model, or one whose class has `get_config()`; built or not, compiled or
            not, converted already or not.
        strategy: a `TPUDistributionStrategy` or a `TPUStrategy`; None is the one in whose scope this is called, else
            the system that `TPUClusterResolver("")` finds.
        lengths: for a model with `Input((None, ...))` the numbers of steps that sequences are padded to; longer ones,
            and all when there are none, are padded to powers of two. Padding changes no number (docs/decisions/0010).

    Returns:
        A Keras model of the same class. Its fit, evaluate and predict run on the cores; `sync_to_cpu()` returns the
        model that was given, brought up to date.

    Raises:
        SettingTypeError: `strategy` is something else. A `TypeError`.
        SettingError: `model` is not a Keras model, or cannot be copied, or `lengths` are not positive integers.

    Example:
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)], name="small")
        >>> keras_to_tpu_model(model, TPUDistributionStrategy(TPUClusterResolver("v2-8")))
        <TPU model of Sequential name=small, built=True, on <TPUStrategy: v2-8, 8 virtual cores>>
    """
    if not isinstance(model, keras.Model):
        raise SettingError(
            f"model must be a Keras model, not {model!r}: pass what keras.Sequential or keras.Model made"
        )
    if not all(isinstance(length, int) and length > 0 for length in lengths):
        raise SettingError(f"lengths must be positive integers, such as (50, 100, 200), not {lengths!r}")
    chosen = _cores_for(model, _chosen(strategy))
    before = conversion_of(model)
    with chosen.scope():
        copy = clones.clone(model, plain_class(model))
        vars(copy)[LENGTHS] = tuple(lengths) or vars(model).get(LENGTHS, ())
        if model.compiled:
            copy.compile(**clones.settings_of(model))
            clones.copy_optimizer(model, copy)
    original, is_recompiled = (before.original, before.is_recompiled) if before else (model, False)
    return converted(copy, Conversion(original, chosen, is_recompiled))


def _chosen(strategy: Any) -> TPUStrategy:
    if strategy is None:
        return CURRENT.get() or TPUDistributionStrategy().strategy
    if isinstance(strategy, TPUDistributionStrategy):
        return strategy.strategy
    if isinstance(strategy, TPUStrategy):
        return strategy
    raise SettingTypeError(
        f"`strategy` must have type `tpu.TPUDistributionStrategy` or `tpu.TPUStrategy`, or be None. Got: {strategy!r}. "
        "Type tpu.keras_to_tpu_model(model, strategy=tpu.TPUDistributionStrategy(tpu.TPUClusterResolver(tpu='')))"
    )


def _cores_for(model: Any, strategy: TPUStrategy) -> TPUStrategy:
    stateful = [layer.name for layer in _keras.layers_of(model) if getattr(layer, "stateful", False)]
    if not stateful or strategy.num_replicas_in_sync == 1:
        return strategy
    warnings.warn(
        f"the layer {stateful[0]!r} is stateful: its row n goes on where row n of the batch before ended, and rows of "
        "different cores would not meet. The model runs on a single core",
        stacklevel=3,
    )
    return strategy.part(1)
