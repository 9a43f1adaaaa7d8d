"""The work of `anytpu plan` and its commands: load the job, call the public functions, and print their results.

Idea: it uses the public API only (`anytpu.plan`, `scaling`, `max_batch_size`, `check`), as a user's program would.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

import anytpu
from anytpu.cli.script import HOW, check_readable, job_of
from anytpu.errors import SettingError
from anytpu.files.opening import read_file
from anytpu.planning.commands.options import settings_of
from anytpu.planning.serving.language_models import is_language_model, nearest_language_model
from anytpu.report.steps import StepProgress
from anytpu.report.terminal import open_console, say
from anytpu.train.makers import KERAS_MAKER
from anytpu.units import format_count

_FILES = (".anytpu", ".mlir")
DIFFERS_STATUS = 1
LOCK_STATUS = 3
"""Exit status of `--check FILE` if the lock does not hold."""


def plan(arguments: argparse.Namespace) -> int:
    """Print the plan of a job, with the batches of a sweep."""
    return _finish(_answer("plan", arguments), arguments)


def scaling(arguments: argparse.Namespace) -> int:
    """Print the plan of a job on several slices of a chip."""
    return _finish(_answer("scaling", arguments), arguments)


def largest(arguments: argparse.Namespace) -> int:
    """Print the largest batch that fits on each system."""
    console = open_console()
    job, settings = job_and_settings(arguments)
    for name in settings.pop("tpu"):
        with StepProgress() as progress:
            batch = anytpu.max_batch_size(job, name, progress=progress, **settings)
        fits = f"{format_count(batch)} examples per step" if batch else "not even one example per device fits"
        say(console, f"{name}: {fits}")
    return 0


def ways(arguments: argparse.Namespace) -> int:
    """Print, for each system, the training step with each change that makes it smaller."""
    job, settings = job_and_settings(arguments)
    for name in settings.pop("tpu"):
        with StepProgress() as progress:
            changes = anytpu.ways_to_fit(job, tpu=name, progress=progress, **settings)
        changes.show()
    return 0


def answers(arguments: argparse.Namespace) -> int:
    """Print the speed, the memory and the price of the answers of a language model."""
    job, _ = job_named(arguments)
    with StepProgress() as progress:
        plan = anytpu.plan_serving(
            job, prompt_tokens=arguments.sequence or 1024, progress=progress, **settings_of(arguments)
        )
    show(plan, arguments)
    return 0


def check_cores(arguments: argparse.Namespace) -> int:
    """Print a comparison of 1 core with many, and return 1 if their results differ."""
    job, _ = job_named(arguments, has_values=True)
    with StepProgress() as progress:
        progress("one step on 1 core, on virtual cores and on partitioned devices")
        given = {name: value for name, value in settings_of(arguments).items() if value is not None}
        comparison = anytpu.check(job, **given)
    say(open_console(), str(comparison))
    return 0 if comparison.agrees else DIFFERS_STATUS


RUNS: dict[str, Callable[[argparse.Namespace], int]] = {
    "plan": plan,
    "scaling": scaling,
    "batch": largest,
    "ways": ways,
    "answers": answers,
    "compare-cores": check_cores,
}
"""Command -> the function that runs it."""


def _answer(name: str, arguments: argparse.Namespace) -> Any:
    job, settings = job_and_settings(arguments)
    with StepProgress() as progress:
        return getattr(anytpu, name)(job, progress=progress, **settings)


def _finish(plan: Any, arguments: argparse.Namespace) -> int:
    """Print a plan, or its comparison with a lock, and return the exit status."""
    if arguments.check is None:
        show(plan, arguments)
        return 0
    wrote = _write(plan, arguments)
    tolerances = dict(zip(("step_percent", "memory_percent"), arguments.tolerance or (), strict=False))
    comparison = plan.check_lock(arguments.check, **tolerances)
    console = open_console()
    for line in (str(comparison), *wrote):
        say(console, line)
    return 0 if comparison.holds else LOCK_STATUS


def show(plan: Any, arguments: argparse.Namespace) -> None:
    """Write the requested files, then print a plan: printing may end early, as in `| head`."""
    console = open_console()
    try:
        wrote = _write(plan, arguments)
    finally:
        plan.show()  # also if a file could not be written
    for line in wrote:
        say(console, line)


def _write(plan: Any, arguments: argparse.Namespace) -> list[str]:
    """Write the requested files, and return a line on each."""
    files = {"html": "to_html", "json": "to_json", "lock": "lock"}
    typed = vars(arguments)
    wrote = [f"Wrote {getattr(plan, method)(typed[name])}" for name, method in files.items() if typed.get(name)]
    for name in ("svg", "png"):
        if typed.get(name):
            wrote.append(f"Wrote {len(getattr(plan, f'to_{name}')(typed[name]))} plots into {typed[name]}")
    return wrote


def job_and_settings(arguments: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """Load the job that the command line names; return it, and the keyword arguments of the public function.

    Raises:
        SettingError: no job is named, it cannot be loaded, or a Keras model has no batch.
    """
    settings = settings_of(arguments)
    split, axes = getattr(arguments, "split", None), settings.get("batch_axis")
    job, specs = job_named(arguments, split, axes)
    if "batch_size" in settings:
        _check_batch(job, specs, settings["batch_size"])
    # Models of one file may share a name, so plans are titled by that of the job.
    settings |= {"input_specs": specs, "name": arguments.job}
    if "batch_axis" in settings:
        # The specs of a file are layouts, which have the axes already.
        settings["batch_axis"] = None if isinstance(job, str) else _batch_axis(axes, specs)
    if is_language_model(arguments.job):
        settings["precision"] = None  # It was made in the precision.
    return job, settings


def _check_batch(job: Any, specs: Any, batch_size: int | None) -> None:
    """Check that a Keras model comes with a batch.

    Raises:
        SettingError: it has neither input specs nor a number of examples.
    """
    if batch_size is None and specs is None and KERAS_MAKER.claims(job):
        raise SettingError(
            f"the model {job.name!r} has no fixed batch; give the examples per step over all devices: --batch 1024"
        )


def job_named(
    arguments: argparse.Namespace,
    split: list[int] | None = None,
    axes: list[int | None] | None = None,
    has_values: bool = False,
) -> tuple[Any, Any]:
    """Return the job that the command line names, and its input specs.

    Raises:
        SettingError: no job is named, or it cannot be loaded.
    """
    name = arguments.job
    if name is None:
        raise SettingError(
            f"name the job to plan: a function in a file, like {HOW}, a program file, .anytpu or .mlir, or a language "
            "model, like gemma3_1b"
        )
    if is_language_model(name):
        dtype = getattr(arguments, "precision", None) or "bfloat16"
        rank = getattr(arguments, "lora", None)
        return anytpu.language_model(name, arguments.sequence or 1024, lora_rank=rank, dtype=dtype)
    for option in ("sequence", "lora"):
        if getattr(arguments, option, None) is not None and "new_tokens" not in arguments:
            raise SettingError(
                f"--{option} is for the name of a language model, such as gemma3_1b, and {name!r} is none; leave it out"
            )
    if Path(name).suffix in _FILES:
        return name, _layouts(name, split, axes)
    if split is not None:
        raise SettingError(f"--split names arguments of a .mlir file, but {name!r} is not one; leave it out")
    path, colon, function = name.rpartition(":")
    if not colon or not path:
        raise SettingError(_no_function(name))
    return job_of(path, function, has_values=has_values)


def _layouts(name: str, split: list[int] | None, axes: list[int | None] | None) -> Any:
    """Return the layout of each argument of a file named by --split, by its index, or None without --split."""
    if split is None:
        if axes is not None:
            raise SettingError(
                f"--batch-axis gives the axes of the arguments of {name} that --split names; add --split 0"
            )
        return None
    split_axes = axes or [0]
    split_axes = split_axes * len(split) if len(split_axes) == 1 else split_axes
    if len(split_axes) != len(split):
        raise SettingError(_axes_mismatch(len(split_axes), f"--split names {len(split)} arguments", "argument"))
    if any(axis is not None and axis < 0 for axis in split_axes):
        raise SettingError("--batch-axis counts the axes of a file's arguments from 0; write 3, not -1")
    return {index: anytpu.program.Layout(axis) for index, axis in zip(split, split_axes, strict=True)}


def _batch_axis(axes: list[int | None] | None, specs: Any) -> Any:
    """Return the axes of the command line as `anytpu.plan` takes them: one, or a tree like the batch."""
    if axes is None or len(axes) == 1:
        return axes[0] if axes else None
    if not isinstance(specs, tuple | list) or len(specs) != 2:
        # The structure is unknown here: the job is a function of `devices`, or `anytpu.plan` refuses these axes.
        return tuple(axes)
    structure = jax.tree.structure(specs[1])
    if structure.num_leaves != len(axes):
        raise SettingError(_axes_mismatch(len(axes), f"the batch has {structure.num_leaves} arrays", "array"))
    return jax.tree.unflatten(structure, axes)


def _axes_mismatch(axes: int, expected: str, noun: str) -> str:
    return f"--batch-axis names {axes} axes, but {expected}; name one axis, or one per {noun}"


def _no_function(name: str) -> str:
    if Path(name).suffix in (".keras", ".h5"):
        return (
            f"{name!r} is a saved model, and a plan needs a compiled one: write train.py with a function, def "
            f"create_model(): return keras.models.load_model({name!r}), and plan {HOW}"
        )
    if Path(name).suffix != ".py":
        nearest = nearest_language_model(name)
        hint = f", or a language model, like {nearest}" if nearest else ""
        wanted = f"a function in a file, like {HOW}, or a program file, .anytpu or .mlir{hint}"
        return f"{name!r} cannot be planned; name {wanted}"
    check_readable(Path(name))
    names = _functions(Path(name))
    hint = f"; its functions are {', '.join(names)}" if names else ""
    return f"name the function of {name} that returns the model, like {name}:create_model{hint}"


def _functions(path: Path) -> list[str]:
    """Return a file's public top-level functions, without running it."""
    try:
        body = ast.parse(read_file(path)).body
    except (OSError, SyntaxError, ValueError):
        return []
    functions = [statement.name for statement in body if isinstance(statement, ast.FunctionDef)]
    return [name for name in functions if not name.startswith("_")]
