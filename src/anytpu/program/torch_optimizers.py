"""`transform_of`: the optax optimizer that makes the update of a PyTorch optimizer.

Rule: an optimizer or a setting without an equal in optax is refused by name. The user can give an optax optimizer.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import optax
import torch  # pyright: ignore[reportMissingImports]

from anytpu.errors import ProgramError

_IMPLEMENTATIONS = {"foreach", "fused", "capturable", "differentiable", "decoupled_weight_decay"}
"""Settings that choose an implementation of the same update, or follow from the class."""


def transform_of(name: str, optimizer: Any, parameters: Mapping[str, Any]) -> optax.GradientTransformation:
    """Return an optax optimizer of a dictionary of parameters.

    Args:
        name: name of the job, for errors.
        optimizer: a `torch.optim` optimizer, or an optax one, which is returned.
        parameters: the PyTorch parameters that are trained, by name.

    Raises:
        ProgramError: the optimizer or one of its settings has no equal, or a parameter is in none of its groups.
    """
    if isinstance(optimizer, optax.GradientTransformation):
        return optimizer
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ProgramError(
            f"the optimizer of {name!r} must be one of torch.optim or of optax, not {type(optimizer).__name__}"
        )
    groups = optimizer.param_groups
    group_of = {id(value): index for index, group in enumerate(groups) for value in group["params"]}
    if missing := [key for key, value in parameters.items() if id(value) not in group_of]:
        raise ProgramError(
            f"the optimizer of {name!r} does not train {missing[0]!r}: make it of model.parameters(), or set "
            "requires_grad=False for that parameter"
        )
    transforms: dict[Hashable, optax.GradientTransformation] = {
        index: _group_transform(name, optimizer, group) for index, group in enumerate(groups)
    }
    if len(transforms) == 1:
        return transforms[0]
    return optax.partition(transforms, {key: group_of[id(value)] for key, value in parameters.items()})


def _group_transform(name: str, optimizer: Any, group: Mapping[str, Any]) -> optax.GradientTransformation:
    settings = {key: value for key, value in group.items() if key not in {"params", *_IMPLEMENTATIONS}}
    # Schedulers keep the first learning rate in the group.
    settings.pop("initial_lr", None)
    rate, decay = float(settings.pop("lr")), float(settings.pop("weight_decay"))
    kind = type(optimizer)
    steps: Sequence[Any]
    if kind is torch.optim.SGD and not settings["dampening"]:
        momentum, nesterov = settings.pop("momentum"), settings.pop("nesterov")
        settings.pop("dampening")
        steps = [optax.trace(momentum, nesterov)] if momentum else []
        steps = [*([optax.add_decayed_weights(decay)] if decay else []), *steps]
    elif kind in (torch.optim.Adam, torch.optim.AdamW):
        (first, second), epsilon = settings.pop("betas"), settings.pop("eps")
        adam, decayed = optax.scale_by_adam(first, second, epsilon), optax.add_decayed_weights(decay)
        is_decoupled = kind is torch.optim.AdamW or group.get("decoupled_weight_decay", False)
        steps = [adam] if not decay else [adam, decayed] if is_decoupled else [decayed, adam]
    else:
        settings.setdefault("lr", rate)
        raise ProgramError(
            f"the optimizer {kind.__name__} of {name!r} has no equal here: give SGD without dampening, Adam, AdamW, "
            f"or an optax optimizer, such as (model, optax.adagrad({rate:g}), loss)"
        )
    if changed := [key for key, value in settings.items() if value]:
        raise ProgramError(
            f"the optimizer {kind.__name__} of {name!r} has {changed[0]}={settings[changed[0]]!r}, which has no equal "
            f"here: leave it out, or give an optax optimizer, such as (model, optax.adam({rate:g}), loss)"
        )
    return optax.chain(*steps, optax.scale(-rate))
