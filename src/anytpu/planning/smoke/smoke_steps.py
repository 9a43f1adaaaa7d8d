"""`check_steps`: train a model for some steps on virtual cores and on one core, and check each step.

Rule: every step has the same batch, so a loss that changes comes from the weights. The first fault is raised as an
error.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from anytpu import _keras
from anytpu.checking.comparing import values_of
from anytpu.checking.marking import marking, tapped
from anytpu.checking.runs import cores_in_scope, on_virtual_cores
from anytpu.errors import ProgramError, SmokeTestError
from anytpu.program.program import REPLICATED, Program, Tree, leaf_names
from anytpu.sharding import ModelLayout, place
from anytpu.strategy.strategy import TPUStrategy

STEPS = 10
COMPARED_STEPS = 3
"""Number of steps whose losses are compared: later ones amplify the rounding of the earlier."""

MAX_GROWTH = 10.0
"""Maximum ratio of the last loss to the first, of 1 at least: all steps have one batch, so a larger one diverges."""

_TOLERANCE = 1e-4
_HALF_TOLERANCE = 5e-2
_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class _TrainedSteps:
    """The results of some steps.

    Attributes:
        losses: loss of each step.
        state: state after the last step.
        before: state before the last step.
    """

    losses: tuple[float, ...]
    state: Tree
    before: Tree


def check_steps(
    model: object, program: Program, batch: Tree, cores: int, layout: ModelLayout | None
) -> tuple[float, ...]:
    """Return the losses of the steps on virtual cores.

    Args:
        model: the compiled Keras model of the program.
        program: its training step, with the values of its state.
        batch: arrays of a batch.
        cores: number of virtual cores.
        layout: layout over the cores; None: the batch is split, weights are whole.

    Raises:
        SmokeTestError: a step is faulty.
        ProgramError: the step returns no loss.
    """
    state = jax.tree.map(np.asarray, program.tensors)
    program = dataclasses.replace(program, tensors=None)
    with cores_in_scope(cores) as strategy:
        trained = _train(program if layout is None else place(program, layout), strategy, state, batch, STEPS)
    _check_finite(program, trained, batch)
    names = program.state_names[: len(state[0])]
    _check_weights(program, names, state[0], trained)
    with cores_in_scope(1) as strategy:
        alone = _train(program, strategy, state, batch, COMPARED_STEPS)
    is_half = any(layer.compute_dtype in ("bfloat16", "float16") for layer in _keras.layers_of(model))
    _check_same(program, trained.losses, alone.losses, cores, _HALF_TOLERANCE if is_half else _TOLERANCE, layout)
    return trained.losses


def _train(program: Program, strategy: TPUStrategy, state: Tree, batch: Tree, steps: int) -> _TrainedSteps:
    """Train until a loss is not finite, or for some steps."""
    executable, backend = strategy.compile(program), strategy.backend
    pairs = zip(jax.tree.leaves(batch), program.leaves(), strict=True)
    leaves = [backend.put(leaf, layout) for leaf, (_, layout) in pairs]
    rows = jax.tree.unflatten(jax.tree.structure(program.batch), leaves)
    losses: list[float] = []
    # The state of Keras's training step: trainable, non_trainable, optimizer, metrics.
    before, metrics = state, state[3:]
    while len(losses) < steps and (not losses or np.isfinite(losses[-1])):
        # The loss of Keras's logs is a mean since the metrics were reset.
        before = (*state[:3], *metrics)
        new_state, outputs = executable.step(backend.put(before, REPLICATED), rows)
        state = jax.tree.map(np.array, backend.get(new_state))
        losses.append(_loss(program, backend.get(outputs)))
    return _TrainedSteps(tuple(losses), state, before)


def _loss(program: Program, logs: Tree) -> float:
    named = dict(zip(leaf_names(logs, "output"), jax.tree.leaves(logs), strict=True))
    losses = [value for name, value in named.items() if name.rpartition("/")[2].rpartition(".")[2] == "loss"]
    if not losses:
        raise ProgramError(
            f'a step of {program.name!r} returns {", ".join(named) or "nothing"}, and no "loss": add it to the '
            "logs that train_step returns"
        )
    return float(np.asarray(losses[0]))


def _check_finite(program: Program, trained: _TrainedSteps, batch: Tree) -> None:
    last = trained.losses[-1]
    if np.isfinite(last):
        return
    names, weights = program.state_names, jax.tree.leaves(trained.before)
    broken = next((name for name, value in zip(names, weights, strict=True) if not _is_finite(value)), None)
    source = f"the weight {broken!r}, after the step before" if broken else _first_layer(program, trained.before, batch)
    raise SmokeTestError(
        f"the loss of {program.name!r} is {last} at step {len(trained.losses)}: the first value that is not finite is "
        f"that of {source}. Look for a logarithm, a division or a square root of 0 there, or lower the learning rate"
    )


def _first_layer(program: Program, state: Tree, batch: Tree) -> str:
    with marking(program.name.rpartition("/")[0]), cores_in_scope(1) as strategy:
        tapped_program = dataclasses.replace(program, step=tapped(program.step))
        outcome = on_virtual_cores(tapped_program, strategy)(state, batch)
    values = values_of(outcome, jax.tree.leaves(state), program.state_names)
    broken = (name for (kind, name), value in values.items() if kind == "output" and not _is_finite(value))
    name = next(broken, None)
    return "the loss" if name is None else f"the layer {name!r}"


def _is_finite(value: np.ndarray) -> bool:
    return not jnp.issubdtype(value.dtype, jnp.inexact) or bool(np.all(np.isfinite(value)))


def _check_weights(program: Program, names: tuple[str, ...], before: Tree, trained: _TrainedSteps) -> None:
    after = trained.state[0]
    if broken := [name for name, value in zip(names, after, strict=True) if not _is_finite(value)]:
        raise SmokeTestError(
            f"after {STEPS} steps of {program.name!r} {_listed(broken)} NaN or infinite. Lower the learning rate, or "
            "clip gradients: keras.optimizers.Adam(clipnorm=1.0)"
        )
    pairs = zip(names, before, after, strict=True)
    same = [name for name, old, new in pairs if np.array_equal(old, new)]
    if names and len(same) == len(names):
        raise SmokeTestError(
            f"{STEPS} steps of {program.name!r} changed no weight: check that the learning rate is not 0, and that the "
            "loss depends on the outputs"
        )
    if same:
        raise SmokeTestError(
            f"{STEPS} steps of {program.name!r} did not change {_listed(same, '')}: no gradient arrives there. Use the "
            "output of the layer in the loss, or set its trainable=False"
        )
    first, last = trained.losses[0], trained.losses[-1]
    if last > MAX_GROWTH * max(1.0, abs(first)):
        raise SmokeTestError(
            f"the loss of {program.name!r} grows from {first:.4g} to {last:.4g} in {STEPS} steps on one batch: the "
            "training diverges. Lower the learning rate, or clip gradients: keras.optimizers.Adam(clipnorm=1.0)"
        )
    if len(set(trained.losses)) == 1:
        raise SmokeTestError(
            f"the loss of {program.name!r} is {trained.losses[0]:g} at each of {STEPS} steps, although weights change: "
            "check that the loss depends on the outputs, and raise the learning rate"
        )


def _listed(names: list[str], verb: str = "is") -> str:
    text = ", ".join(map(repr, names[:_SHOWN]))
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    kind, verb = ("the weight", verb) if len(names) == 1 else ("the weights", verb.replace("is", "are"))
    return f"{kind} {text}{more} {verb}".rstrip()


def _check_same(
    program: Program,
    losses: tuple[float, ...],
    alone: tuple[float, ...],
    cores: int,
    tolerance: float,
    layout: ModelLayout | None,
) -> None:
    for step, (loss, expected) in enumerate(zip(losses, alone, strict=False), 1):
        if not np.isfinite(expected) or abs(loss - expected) > tolerance * max(1.0, abs(expected)):
            where = f"cores={cores}" + ("" if layout is None else f", layout={layout.name!r}")
            raise SmokeTestError(
                f"the loss of {program.name!r} at step {step} is {loss:.6g} on {cores} virtual cores and "
                f"{expected:.6g} on 1 core. anytpu.check(model, {where}) names the first layer that differs"
            )
