"""`smoke`: test a training program before a TPU is rented: ten steps of a smaller model, a plan of the real one.

Idea: many faults show in a few steps of a smaller model. The loss is NaN, a weight gets no gradient, or the layout
changes the loss. Whether the real model fits needs no values, so it is made of shapes.

Rule: nothing is made smaller unless the report says so. Depth is reduced by cutting equal blocks. Widths depend on each
other, so they are reduced only on request.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import keras

from anytpu import _keras
from anytpu._calls import explain_arguments
from anytpu.checking.batches import batch_of
from anytpu.checking.shrinking import BLOCKS, shrunk
from anytpu.errors import ProgramError, SettingError, SmokeTestError
from anytpu.planning.plans.planner import plan
from anytpu.planning.records import Plan, Prediction
from anytpu.planning.records.target import target_named
from anytpu.planning.smoke.smoke_steps import check_steps
from anytpu.program.shapes_only import shapes_only
from anytpu.sharding import ModelLayout, resolve, unmatched_patterns
from anytpu.train.model_program import program_of_model
from anytpu.train.repeats import longest
from anytpu.units import format_bytes, format_seconds

MAX_CORES = 8
"""Maximum number of virtual cores."""

ROWS_PER_CORE = 2

MAX_PARAMETERS = 100_000_000
"""Maximum number of parameters of the model that is trained: ten steps of more take minutes on two CPU cores."""


@dataclasses.dataclass(frozen=True)
class SmokeReport:
    """The losses of a smaller model, and the plan of the real one.

    Attributes:
        model: name of the model.
        cores: number of virtual cores that the smaller model was trained on.
        rows: number of rows of the batch that it was trained on.
        layout: name and mesh of its layout over the cores; "" without a layout.
        losses: its loss at each step.
        change: a sentence on the changes of the smaller model.
        plan: the plan of the real model.
    """

    model: str
    cores: int
    rows: int
    layout: str
    losses: tuple[float, ...]
    change: str
    plan: Plan

    def __repr__(self) -> str:
        """Return a line: the losses, the prediction of the real model, and the method that prints the rest."""
        return f"<SmokeReport: {self._headline()} show() prints the plan.>"

    def __str__(self) -> str:
        layout = f", layout {self.layout}" if self.layout else ""
        cores = "1 virtual core" if self.cores == 1 else f"{self.cores} virtual cores"
        return "\n".join(
            [
                self._headline(),
                f"{len(self.losses)} steps on {cores}{layout}, {self.rows} rows generated from a fixed seed.",
                f"note: {self.change}",
            ]
        )

    def show(self) -> None:
        """Print the report, and the plan of the real model."""
        print(self)
        self.plan.show()

    def _headline(self) -> str:
        losses = f"loss {self.losses[0]:.4g} to {self.losses[-1]:.4g} in {len(self.losses)} steps"
        return f"{self.model!r} trains, {losses}; the real one: {self.plan.predictions[0]!r}."


@explain_arguments
def smoke(
    make_model: Callable[..., Any],
    batch_size: int,
    tpu: str,
    *,
    layout: Any = None,
    mesh: Mapping[str, int] | None = None,
    small: Mapping[str, Any] | None = None,
    shrink: int = 1,
    fits: bool = True,
    max_step_s: float | None = None,
    timeout_s: float = 600.0,
) -> SmokeReport:
    """Train ten steps of a smaller model on virtual cores, and plan the real model; raise an error if one is faulty.

    The ten steps have one made batch of two rows a core, on as many virtual cores as the slice has, at most 8. They
    have the layout of the real model. The same steps run on one core. Checked are:

    - each loss is finite, and the loss changes, and is in the end at most ten times the first;
    - each trainable weight changes, and stays finite;
    - the first three losses are those of one core, to the rounding of the layers' precision;
    - the real model fits on the slice, and is fast enough if `max_step_s` is given.

    Args:
        make_model: a function that returns a compiled Keras model, or a pair (model, input_specs) with
            input_specs=(x, y). It is called without arguments for the real model, in `shapes_only`.
        batch_size: examples of one step of the real model over all devices.
        tpu: the slice of the real model, "v5e-8".
        layout: the layout over the cores, as `connect` takes it; None: the batch is split, weights are whole.
        mesh: {name: size} of each mesh axis for the layout, or None.
        small: arguments of `make_model` that make the smaller model: {"hidden": 32, "blocks": 2}. None: two of the
            equal blocks of a Sequential or functional model; a model without such blocks is trained as it is.
        shrink: divisor of the widths of the layers, as in `check`, without `small`; 1 keeps them.
        fits: whether it is an error if the real model does not fit.
        max_step_s: maximum step time of the real model, seconds; None: none.
        timeout_s: time limit of one compilation of the plan, seconds; after it the plan has a floor.

    Returns:
        A report with the losses, the changes of the smaller model and the plan of the real one.

    Raises:
        SmokeTestError: a check failed; the message names the layer or the weight.
        SettingError: an argument is invalid, or the layout does not fit the smaller model.
        ProgramError: `make_model` returns no compiled Keras model, or the model cannot be made smaller or planned.
        UnknownTPUError: there is no TPU of that name.

    Example:
        >>> def create_model():
        ...     model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        ...     model.compile("sgd", "mse")
        ...     return model
        >>> len(smoke(create_model, batch_size=512, tpu="v5e-8").losses)  # doctest: +SKIP
        10
    """
    _check_arguments(make_model, batch_size, tpu, small, shrink, max_step_s)
    # 1. Choose the cores and their layout.
    target = target_named(tpu)
    cores = min(target.devices, MAX_CORES)
    resolved = None if layout is None else _resolved(layout, mesh, cores, tpu)
    if layout is None and mesh is not None:
        raise SettingError(f'mesh={mesh!r} is the mesh of a layout: give one too, such as layout="fsdp"')
    # 2. Make the real model, of shapes alone.
    with shapes_only():
        real, specs = _made(make_model, {})
    # 3. Train the smaller model.
    model, small_specs, change = _smaller(make_model, real, specs, small, shrink)
    batch, _ = batch_of(model, None, None, ROWS_PER_CORE * cores, None if small_specs is None else small_specs[0])
    program = program_of_model(model, batch, "train", tensors=True)
    if resolved is not None:
        resolved = _without_patterns(resolved, program.state_names)
    losses = check_steps(model, program, batch, cores, resolved)
    # 4. Plan the real model.
    planned = plan(
        real, batch_size, target.name, input_specs=specs, layout=layout, mesh=mesh, timeout_s=timeout_s, name=real.name
    )
    _check_plan(real.name, planned.predictions[0], fits, max_step_s)
    return SmokeReport(real.name, cores, ROWS_PER_CORE * cores, str(resolved or ""), losses, change, planned)


def _made(make_model: Callable[..., Any], arguments: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the compiled model that a function makes, and its input specs or None."""
    returned = make_model(**arguments)
    model, specs = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
    if not isinstance(model, keras.Model) or not model.compiled:
        raise ProgramError(
            f"make_model returned {type(model).__name__}{' that is not compiled' * isinstance(model, keras.Model)}; "
            "it must return a compiled Keras model, or a pair (model, input_specs) with input_specs=(x, y)"
        )
    if specs is not None and (not isinstance(specs, tuple) or len(specs) != 2):
        raise ProgramError(f"make_model returned input_specs={specs!r}; they must be a pair (x, y)")
    return model, specs


def _smaller(
    make_model: Callable[..., Any], real: Any, specs: Any, small: Mapping[str, Any] | None, shrink: int
) -> tuple[Any, Any, str]:
    """Return a smaller model with values, its input specs, and a sentence on the changes."""
    if small is not None:
        model, specs = _made(make_model, small)
        changes = ", ".join(f"{name}={value!r}" for name, value in small.items())
        change = f"the trained model is make_model({changes})."
    elif shrink > 1 or _has_blocks(real):
        smaller = shrunk(real, shrink)
        model, change = smaller.model, smaller.change.replace("compared", "trained")
    else:
        _check_size(real)
        model, specs = _made(make_model, {})
        change = f"nothing of {real.name!r} was made smaller, except for its batch."
    _check_size(model)
    return model, specs, change


def _has_blocks(model: Any) -> bool:
    try:
        graph_and_blocks = longest(model.get_config()) if _keras.is_graph(model) else None
    except Exception:  # A layer of the user's own without a configuration.
        return False
    return graph_and_blocks is not None and graph_and_blocks[1].count > BLOCKS


def _check_size(model: Any) -> None:
    count = model.count_params() if model.built else 0
    if count > MAX_PARAMETERS:
        raise ProgramError(
            f"the model {model.name!r} to train has {count:,} parameters, and a smoke test trains {MAX_PARAMETERS:,} "
            "at most. Give make_model arguments for its sizes, and their small values: "
            'tpu.smoke(make_model, ..., small={"hidden": 32}); or divide the widths of a functional model: shrink=8'
        )


def _resolved(layout: Any, mesh: Mapping[str, int] | None, cores: int, tpu: str) -> ModelLayout:
    try:
        return resolve(layout, mesh, cores)
    except SettingError as error:
        raise SettingError(f"on the {cores} virtual cores of a smoke test for {tpu}: {error}") from error


def _without_patterns(layout: ModelLayout, names: tuple[str, ...]) -> ModelLayout:
    """Return a layout without the rules for blocks that a smaller model lacks; the plan checks all rules."""
    lacking = set(unmatched_patterns(layout, names))
    return dataclasses.replace(layout, patterns=tuple(name for name in layout.patterns if name not in lacking))


def _check_plan(name: str, prediction: Prediction, fits: bool, max_step_s: float | None) -> None:
    tpu, memory = prediction.target.name, prediction.memory
    if fits and not prediction.fits and memory is not None:
        holds = f", or plan {prediction.holding[0].target.name!r}, which holds it" if prediction.holding else ""
        raise SmokeTestError(
            f"the real model {name!r} does not fit on {tpu} with batch {prediction.batch_size:,}: a device needs "
            f"{format_bytes(memory.peak_bytes)} of {format_bytes(memory.limit_bytes)}. Give a smaller batch_size or "
            f'layout="fsdp"{holds}; anytpu.max_batch_size(model, {tpu!r}) finds the largest batch'
        )
    if max_step_s is not None and prediction.step_s is not None and prediction.step_s > max_step_s:
        least = "at least " if prediction.is_floor else ""
        raise SmokeTestError(
            f"a step of the real model {name!r} takes {least}{format_seconds(prediction.step_s)} on {tpu}, more than "
            f"max_step_s={max_step_s!r}. Print anytpu.plan(...).show() for the slowest layers, or raise max_step_s"
        )


def _check_arguments(
    make_model: Any, batch_size: Any, tpu: Any, small: Mapping[str, Any] | None, shrink: Any, max_step_s: Any
) -> None:
    if not callable(make_model) or isinstance(make_model, keras.Model):
        raise SettingError(f"make_model must be a function that returns a compiled Keras model, not {make_model!r}")
    if not isinstance(tpu, str):
        raise SettingError(f'tpu must be the name of one slice, such as "v5e-8", not {tpu!r}')
    for name, value in (("batch_size", batch_size), ("shrink", shrink)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise SettingError(f"{name} must be a positive integer, not {value!r}")
    if max_step_s is not None and not max_step_s > 0:
        raise SettingError(f"max_step_s must be a positive number of seconds, or None, not {max_step_s!r}")
    if small is not None and shrink != 1:
        raise SettingError(f"small={small!r} and shrink={shrink!r} both make the model smaller: leave one of them out")
    try:
        inspect.signature(make_model).bind(**(small or {}))
    except TypeError as error:
        raise SettingError(
            f"small={small!r} does not fit make_model{inspect.signature(make_model)}: {error}. Give make_model such "
            "arguments, each with the value of the real model as its default"
        ) from error
