"""`check`: compare one training step of a model on one core and on many cores.

Idea: one training step with the same rows and weights runs on one core, on one core again, on virtual cores and on
really partitioned devices. A difference is a bug of a layer, of the program, or of anytpu. Such a layer depends
on the number of cores, or draws numbers without a seed. The first value that differs, in the order of computation,
locates the bug.

Rule: the model's weights do not change. Random layers draw the same numbers in every run, from the model's seeds. Each
run traces the step again, so that decisions at trace time are compared too. A model that is not built is built as its
`fit` would build it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import keras
import numpy as np

from anytpu import _keras
from anytpu._calls import explain_arguments
from anytpu.checking.batches import SEED, batch_of
from anytpu.checking.comparing import FLOAT32, HALF, TRIALS, Precision, compared, largest, moved, values_of
from anytpu.checking.marking import marking, tapped
from anytpu.checking.record import CheckedValue, CheckReport
from anytpu.checking.runs import cores_in_scope, on_devices, on_virtual_cores
from anytpu.checking.shrinking import shrunk
from anytpu.errors import AnyTPUError, ProgramError, SettingError
from anytpu.program.program import REPLICA_AXIS, Program, Tree
from anytpu.sharding import ModelLayout, layout_faults, place, resolve, unmatched_patterns
from anytpu.strategy.current import CURRENT
from anytpu.train.clones import reason
from anytpu.train.compiled_models import trainer_of
from anytpu.train.model_program import program_of_model

AGAIN = "on 1 core again"
_HALF_DTYPES = ("bfloat16", "float16")


@explain_arguments
def check(
    model: Any,
    x: Any = None,
    y: Any = None,
    *,
    batch_size: int = 32,
    cores: int = 8,
    layout: Any = None,
    mesh: Mapping[str, int] | None = None,
    shrink: int | None = None,
    timeout_s: float = 600,
) -> CheckReport:
    """Compare one training step of a Keras model on one core, on virtual cores and on partitioned devices.

    The devices are forced CPU devices of this machine, in a process of their own; no accelerator is needed. Every
    layer's output is compared, then the losses, the gradients and the variables after the step.

    With a layout, both kinds of cores have it, and it is checked first. Faults are rules that match no weight, rules
    that clash, and axes that the mesh does not divide. Remarks are on large weights that it leaves whole. They are also
    on data that the compiled step moves between devices, beside gathers of stored weights and sums. The compiler is
    that of the CPU; `anytpu.plan` asks the TPU's.

    Args:
        model: a compiled Keras model of any kind, also with its own `train_step`.
        x: rows, of which the first `batch_size` are used; None generates rows from a fixed seed.
        y: labels of the rows; None generates them.
        batch_size: maximum number of rows. It need not be divisible by the number of cores.
        cores: number of virtual cores, and number of devices.
        layout: the layout over the cores, as `anytpu.connect` takes it. None: that of the strategy in whose scope the
            model was compiled, if it is for so many cores. Without one the batch is split, and weights are whole.
        mesh: {name: size} of each mesh axis for the layout, or None.
        shrink: compare a smaller model, for one too large for this machine. It has two of the equal blocks, and the
            widths of its layers are divided by this number. 1 keeps the widths. The rules of the layout are checked on
            the whole model. None: the model itself.
        timeout_s: maximum time of the process that has the devices, in seconds.

    Returns:
        A report to print.

    Raises:
        ProgramError: `model` is not a compiled Keras model, or its input shapes are unknown while x is None. Or a layer
            cannot be traced; the message names it. Or it cannot be made smaller.
        SettingError: `layout` is none, `mesh` does not fit, or the layout does not fit the smaller model.
        DataError: x or y are arrays that no TPU computes with.
        BackendError: the process of the devices failed; the message has the end of its log.

    Example:
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        >>> model.compile("sgd", "mse")
        >>> check(model, cores=2).agrees
        True
    """
    _check_arguments(model, batch_size, cores, shrink, timeout_s)
    if layout is None and mesh is not None:
        raise SettingError(f'mesh={mesh!r} is the mesh of a layout: give one too, such as layout="fsdp"')
    trainer = trainer_of(model)
    own = None if trainer is None else trainer.strategy.layout
    resolved = None if layout is None else resolve(layout, mesh, cores)
    if layout is None and own is not None and not own.is_open and own.devices == cores:
        resolved = own
    # 1. Trace the step of the whole model.
    with _home(model), _naming_layers(f"{model.name}/train", cores=1):
        batch, data = batch_of(model, x, y, batch_size)
        program = program_of_model(model, batch, "train", tensors=shrink is None)
    report = CheckReport(model.name, cores, len(jax.tree.leaves(batch)[0]), data, (), str(resolved or ""))
    # 2. Check the rules of the layout on the whole model, before anything runs.
    if resolved is not None:
        if faults := layout_faults(program, resolved):
            return dataclasses.replace(report, faults=tuple(faults))
        # The notes that the placement adds are on large weights that are whole.
        whole = place(program, resolved).notes[len(program.notes) :]
        report = dataclasses.replace(report, remarks=whole)
    # 3. Make the model smaller if that was asked for.
    if shrink is not None:
        with _home(model), _naming_layers(f"{model.name}/train", cores=1):
            smaller = shrunk(model, shrink)
            program = program_of_model(smaller.model, batch, "train", tensors=True)
        resolved = None if resolved is None else _for_smaller(program, resolved, shrink)
        report = dataclasses.replace(report, remarks=(*report.remarks, smaller.change))
    # 4. Run the step in all ways, and compare.
    is_half = any(layer.compute_dtype in _HALF_DTYPES for layer in _keras.layers_of(model))
    values, exchanged = _compared(program, batch, cores, timeout_s, HALF if is_half else FLOAT32, resolved)
    return dataclasses.replace(report, values=values, remarks=(*report.remarks, *exchanged))


def _for_smaller(program: Program, layout: ModelLayout, shrink: int) -> ModelLayout:
    """Return the layout of a smaller model: without the rules for blocks that it lacks.

    Raises:
        SettingError: the mesh does not divide the smaller widths.
    """
    lacking = unmatched_patterns(layout, program.state_names)
    layout = dataclasses.replace(layout, patterns=tuple(set(layout.patterns) - set(lacking)))
    for fault in layout_faults(program, layout):
        raise SettingError(
            f"in the model made smaller by shrink={shrink}, {fault}. Give a smaller shrink; 1 keeps widths"
        )
    return layout


def _compared(
    program: Program, batch: Tree, cores: int, timeout_s: float, precision: Precision, layout: ModelLayout | None
) -> tuple[tuple[CheckedValue, ...], tuple[str, ...]]:
    """Run a step, which has its weights, in all four ways, and compare the values.

    Returns:
        The values, and a sentence on each exchange of data that the layout did not ask for.
    """
    state = jax.tree.map(np.asarray, program.tensors)
    names, before, unit = program.state_names, jax.tree.leaves(state), precision.unit
    program = dataclasses.replace(program, tensors=None)
    # 1. On one core: the reference, the same run again, and runs with moved values, which show how much rounding
    # changes.
    with cores_in_scope(1) as strategy:
        run = on_virtual_cores(_marked(program, 1), strategy)
        reference = values_of(run(state, batch), before, names)
        # Traced again, because a layer that draws numbers without a seed at trace time draws others then.
        again = on_virtual_cores(_marked(program, 1), strategy)(state, batch)
        trials = [
            values_of(run(weights, rows), jax.tree.leaves(weights), names)
            for weights, rows in _trials(state, batch, unit)
        ]
    # 2. On virtual cores, and on devices in another process.
    with cores_in_scope(cores) as strategy:
        virtual = on_virtual_cores(_placed(_marked(program, cores), layout), strategy)(state, batch)
        plain = None if layout is None else place(program, layout)
        devices = on_devices(_placed(_marked(program, cores), layout), state, batch, cores, timeout_s, plain)
    # 3. Compare all runs with the reference.
    runs = {
        AGAIN: again,
        f"on {_number(cores, 'virtual core')}": virtual,
        f"on {_number(cores, 'device')}": devices,
    }
    values = {run: values_of(outcome, before, names) for run, outcome in runs.items()}
    weights = {name: largest(value) for name, value in zip(names, before, strict=True)}
    return compared(reference, trials, values, weights, precision), devices.exchanged


def _placed(program: Program, layout: ModelLayout | None) -> Program:
    return program if layout is None else place(program, layout)


def _trials(state: Tree, batch: Tree, unit: float) -> Iterator[tuple[Tree, Tree]]:
    """Yield states with moved weights, each with moved inputs."""
    generator = np.random.default_rng(SEED)
    for _ in range(TRIALS):
        yield (
            (*moved(state[:2], unit, generator), *state[2:]),
            moved(batch, unit, generator, moves_whole=False),
        )


def _marked(program: Program, cores: int) -> Program:
    """Return a Program with taps for a number of cores, whose errors name the layer."""

    def step(state: Tree, batch: Tree) -> Any:
        with _naming_layers(program.name, cores):
            return program.step(state, batch)

    return dataclasses.replace(program, step=tapped(step))


@contextlib.contextmanager
def _naming_layers(name: str, cores: int) -> Iterator[None]:
    """Return a context in which values are marked, and an error names the layer that raised it.

    Args:
        name: name of the Program, such as "sequential/train".
        cores: number of cores that the code is traced for.

    Raises:
        ProgramError: the code raised an error that is not one of anytpu's.
    """
    model = name.rpartition("/")[0]
    with marking(model) as marks:
        try:
            yield
        except AnyTPUError:
            raise
        except Exception as error:
            step = f"the layer {marks.failed!r}" if marks.failed else "a training step"
            step = f"{step} of the model {model!r}"
            if isinstance(error, NameError) and f"axis name: {REPLICA_AXIS}" in str(error):
                raise ProgramError(
                    f"{step} asks for the axis {REPLICA_AXIS!r}, which the code of one core's rows has, in "
                    "strategy.run. tpu.check compares the step of fit, the code of all rows: leave the layer out"
                ) from error
            target = "1 core" if cores == 1 else f"{cores} cores"
            raise ProgramError(
                f"{step} cannot be traced for {target}: {type(error).__name__}: {reason(error)}"
            ) from error


def _home(model: Any) -> contextlib.AbstractContextManager[Any]:
    """Return the scope that the model was compiled in, for variables made when it is built."""
    trainer = trainer_of(model)
    return contextlib.nullcontext() if trainer is None or CURRENT.get() is not None else trainer.strategy.scope()


def _check_arguments(model: Any, batch_size: Any, cores: Any, shrink: Any, timeout_s: Any) -> None:
    for name, value in (("batch_size", batch_size), ("cores", cores), ("shrink", 1 if shrink is None else shrink)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise SettingError(f"{name} must be a positive integer, not {value!r}")
    if not isinstance(timeout_s, int | float) or not timeout_s > 0:
        raise SettingError(f"timeout_s must be a positive number of seconds, not {timeout_s!r}")
    if not isinstance(model, keras.Model):
        raise ProgramError(f"tpu.check checks a compiled Keras model, not {model!r}")
    if not model.compiled:
        raise ProgramError(f"the model {model.name!r} is not compiled: call model.compile(optimizer, loss) first")


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
