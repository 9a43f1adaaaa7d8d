"""`keras_to_tpu_model`: copy an existing Keras model to the cores of a TPU.

Idea: this is the entry point of the TPU notebooks of 2018. The model is copied with its weights, optimizer and random
states into the scope of a strategy. The copy is a Keras model that trains there; the original stays unchanged.

Rule: the original is not written before `sync_to_cpu()`. A model made and compiled in `strategy.scope()` needs no
conversion.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, final

import keras

from anytpu import _keras
from anytpu._calls import explain_arguments, explain_methods, users_stacklevel
from anytpu.errors import SettingError, SettingTypeError
from anytpu.migrate.keras_to_tpu.tpu_model import Conversion, conversion_of, converted, plain_class
from anytpu.strategy import TPUStrategy
from anytpu.strategy.current import CURRENT
from anytpu.system import TPUClusterResolver
from anytpu.train import clones
from anytpu.train.padding import LENGTHS


@explain_methods
@final
class TPUDistributionStrategy:
    """The cores to which `keras_to_tpu_model` copies a model.

    Args:
        tpu_cluster_resolver: resolver of the system; None finds one as `TPUClusterResolver("")` does.
        using_single_core: whether to use the system's first core only.
        strict: whether to reject batches not divisible by the number of cores, with an AssertionError, as the first TPU
            systems did.

    Attributes:
        strategy: the `TPUStrategy` of these cores.

    Raises:
        SettingError: `tpu_cluster_resolver` is not a resolver.

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


@explain_arguments
def keras_to_tpu_model(model: Any, strategy: Any = None, *, lengths: Sequence[int] = ()) -> Any:
    """Copy a Keras model to the cores of a TPU.

    The copy has the model's layers, weights, optimizer (with its slots, step and learning rate) and states of random
    generators. It is compiled if the model is. The model itself does not change until `sync_to_cpu()`.

    Args:
        model: a Sequential or functional Keras model, or one whose class has `get_config()`; built or not, compiled or
            not, already converted or not.
        strategy: a `TPUDistributionStrategy` or a `TPUStrategy`. None uses the strategy in whose scope this is called,
            or else the system that `TPUClusterResolver("")` finds.
        lengths: for a model with `Input((None, ...))`, the numbers of steps that sequences are padded to, each
            positive. The model must mask steps, by `Embedding(mask_zero=True)` or `Masking`. Longer sequences are
            padded to powers of two, as are all sequences if `lengths` is empty.
            Padding changes no result (docs/decisions/0010).

    Returns:
        A Keras model of the same class. Its fit, evaluate and predict run on the cores; `sync_to_cpu()` returns the
        updated original.

    Raises:
        SettingTypeError: `strategy` has another type. A `TypeError`.
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
    previous = conversion_of(model)
    with chosen.scope():
        copy = clones.clone(model, plain_class(model))
        vars(copy)[LENGTHS] = tuple(lengths) or vars(model).get(LENGTHS, ())
        if model.compiled:
            copy.compile(**clones.settings_of(model))
            clones.copy_optimizer(model, copy)
    original, is_recompiled = (previous.original, previous.is_recompiled) if previous else (model, False)
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
        f"the layer {stateful[0]!r} is stateful: row n continues from the state of row n in the previous batch, which "
        "another core may hold. The model runs on a single core",
        stacklevel=users_stacklevel(),
    )
    return strategy.part(1)
