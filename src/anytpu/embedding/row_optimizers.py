"""`RowOptimizer`: the update of the rows of a table that a batch uses, and of their slots.

Idea: an optimizer of Keras updates a whole array. On a table of ten million rows that costs as much as the table is
large, though a batch uses a few thousand rows. Here the same formulas are applied to these rows alone.

Rule: SGD without momentum and Adagrad give a row without a gradient no change, so they are equal to Keras's. Momentum,
Adam and Ftrl are lazy: the slots of a row that the batch does not use stay as they are, where Keras's decay.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
from jax import Array

from anytpu import _keras
from anytpu.errors import SettingError

Settings = Mapping[str, Any]
Slots = tuple[Array, ...]
Rows = tuple[Array, Slots]
"""Rows of a table, and the same rows of each slot."""


@dataclasses.dataclass(frozen=True)
class RowOptimizer:
    """The formulas of one optimizer.

    Attributes:
        name: name of the optimizer's class in Keras, such as "Adam".
        settings: its numbers by name, sorted.
        slots: name of each slot and its initial value.
    """

    name: str
    settings: tuple[tuple[str, Any], ...]
    slots: tuple[tuple[str, float], ...]

    def update(self, rows: Array, slots: Slots, gradient: Array, learning_rate: Array, step: Array) -> Rows:
        """Return new rows and slots.

        Args:
            rows: rows of the table, `(rows, width)`.
            slots: the same rows of each slot.
            gradient: the sum of the gradients of each row, `(rows, width)`.
            learning_rate: the learning rate, a scalar.
            step: number of the step, from 1, a scalar.
        """
        settings = dict(self.settings)
        gradient = _clipped(gradient, settings)
        return _UPDATES[self.name](settings, rows, slots, gradient, corrected_rate(self, learning_rate, step))


def kernel_rule(optimizer: RowOptimizer) -> tuple[str, tuple[float, ...]] | None:
    """Return the rule of `anytpu_kernels.row_update` and its numbers, or None if it has none.

    Clipping by the norm needs the gradients of all rows at once.
    """
    settings = dict(optimizer.settings)
    if settings.get("clipnorm"):
        return None
    if optimizer.name == "SGD":
        numbers = settings.get("momentum", 0.0), float(bool(settings.get("nesterov")))
        return ("momentum", numbers) if optimizer.slots else ("sgd", ())
    if optimizer.name == "Adagrad":
        return "adagrad", (settings["epsilon"],)
    if optimizer.name == "Adam":
        return "adam", (1 - settings["beta_1"], 1 - settings["beta_2"], settings["epsilon"])
    l1, l2 = settings["l1_regularization_strength"], settings["l2_regularization_strength"]
    shrinkage = settings["l2_shrinkage_regularization_strength"]
    return "ftrl", (-settings["learning_rate_power"], l1, l2, shrinkage, settings["beta"])


def corrected_rate(optimizer: RowOptimizer, rate: Array, step: Array) -> Array:
    """Return the learning rate of a step: Adam's is corrected for the bias of its means, which begin at 0."""
    if optimizer.name != "Adam":
        return rate
    settings, count = dict(optimizer.settings), step.astype(rate.dtype)
    return rate * jnp.sqrt(1 - settings["beta_2"] ** count) / (1 - settings["beta_1"] ** count)


def row_optimizer(optimizer: Any) -> RowOptimizer:
    """Return the formulas of a Keras optimizer.

    Args:
        optimizer: a Keras optimizer, or its name: SGD, Adagrad, Adam or Ftrl.

    Raises:
        SettingError: the optimizer is another one, or has a setting that applies to all rows of a table.

    Example:
        >>> row_optimizer("adagrad").slots
        (('accumulator', 0.1),)
    """
    optimizer = as_optimizer(optimizer)
    # Not `get_config`: it reads the learning rate by a way of which NumPy warns.
    config, name = vars(optimizer), type(optimizer).__name__
    for setting, why in _REFUSED.items():
        if config.get(setting):
            raise SettingError(
                f"{name}({setting}={config[setting]!r}) does not fit a table: {why}. Leave it out of the table's "
                "optimizer"
            )
    names = (*_SETTINGS[name], "clipnorm", "clipvalue")
    settings = {setting: config[setting] for setting in names if config.get(setting) is not None}
    return RowOptimizer(name, tuple(sorted(settings.items())), tuple(_SLOTS[name](config)))


def as_optimizer(optimizer: Any) -> Any:
    """Return a Keras optimizer for a table, given one or its name.

    Raises:
        SettingError: there are no formulas for it.
    """
    try:
        known = keras.optimizers.get(optimizer)
    except (TypeError, ValueError) as error:
        raise SettingError(
            f"the optimizer of a table must be {_KNOWN}, one of Keras's or its name, not {optimizer!r}"
        ) from error
    if type(known).__name__ not in _UPDATES or not isinstance(known, keras.optimizers.Optimizer):
        raise SettingError(
            f"{type(known).__name__} has no update of single rows here: the optimizer of a table must be {_KNOWN}. The "
            "other weights of the model may have any optimizer, in model.compile"
        )
    return known


def learning_rate_of(optimizer: Any) -> Any:
    """Return the learning rate of a Keras optimizer: a number, or its schedule."""
    rate = _keras.rate_setting(optimizer)
    return float(np.asarray(rate.value)) if isinstance(rate, keras.Variable) else rate


def _clipped(gradient: Array, settings: Settings) -> Array:
    """Return the gradient clipped as Keras clips that of one variable."""
    if norm := settings.get("clipnorm"):
        length = jnp.sqrt(jnp.sum(gradient * gradient))
        gradient = jnp.where(length > norm, gradient * (norm / length), gradient)
    if limit := settings.get("clipvalue"):
        gradient = jnp.clip(gradient, -limit, limit)
    return gradient


def _sgd(settings: Settings, rows: Array, slots: Slots, gradient: Array, rate: Array) -> Rows:
    if not slots:
        return rows - gradient * rate, ()
    momentum = settings["momentum"]
    velocity = slots[0] * momentum - gradient * rate
    change = velocity * momentum - gradient * rate if settings.get("nesterov") else velocity
    return rows + change, (velocity,)


def _adagrad(settings: Settings, rows: Array, slots: Slots, gradient: Array, rate: Array) -> Rows:
    total = slots[0] + gradient * gradient
    return rows - rate * gradient / jnp.sqrt(total + settings["epsilon"]), (total,)


def _adam(settings: Settings, rows: Array, slots: Slots, gradient: Array, rate: Array) -> Rows:
    beta_1, beta_2 = settings["beta_1"], settings["beta_2"]
    mean = slots[0] + (gradient - slots[0]) * (1 - beta_1)
    square = slots[1] + (gradient * gradient - slots[1]) * (1 - beta_2)
    return rows - mean * rate / (jnp.sqrt(square) + settings["epsilon"]), (mean, square)


def _ftrl(settings: Settings, rows: Array, slots: Slots, gradient: Array, rate: Array) -> Rows:
    total, linear = slots
    power, l1 = -settings["learning_rate_power"], settings["l1_regularization_strength"]
    shrunk = gradient + 2 * settings["l2_shrinkage_regularization_strength"] * rows
    new_total = total + gradient * gradient
    linear = linear + shrunk - (new_total**power - total**power) / rate * rows
    l2 = settings["l2_regularization_strength"] + settings["beta"] / (2 * rate)
    quadratic = new_total**power / rate + 2 * l2
    return (jnp.clip(linear, -l1, l1) - linear) / quadratic, (new_total, linear)


_UPDATES: dict[str, Callable[..., Rows]] = {"SGD": _sgd, "Adagrad": _adagrad, "Adam": _adam, "Ftrl": _ftrl}
_KNOWN = "SGD, Adagrad, Adam or Ftrl"
_SETTINGS = {
    "SGD": ("momentum", "nesterov"),
    "Adagrad": ("epsilon",),
    "Adam": ("beta_1", "beta_2", "epsilon"),
    "Ftrl": (
        "beta",
        "l1_regularization_strength",
        "l2_regularization_strength",
        "l2_shrinkage_regularization_strength",
        "learning_rate_power",
    ),
}
_SLOTS: dict[str, Callable[[Settings], Sequence[tuple[str, float]]]] = {
    "SGD": lambda config: [("momentum", 0.0)] if config["momentum"] else [],
    "Adagrad": lambda config: [("accumulator", config["initial_accumulator_value"])],
    "Adam": lambda config: [("mean", 0.0), ("square", 0.0)],
    "Ftrl": lambda config: [("accumulator", config["initial_accumulator_value"]), ("linear", 0.0)],
}
_REFUSED = {
    "weight_decay": "it changes all rows at each step",
    "use_ema": "it averages all rows at each step",
    "global_clipnorm": "it needs the gradients of all weights at once; clipnorm clips those of the table",
    "gradient_accumulation_steps": "rows are updated at each step",
    "loss_scale_factor": "the loss of the model is scaled, not that of one table",
    "amsgrad": "its third slot has no update of single rows here",
}
