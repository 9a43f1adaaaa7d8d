"""The work of `anytpu plan`: load the job, call the public functions, and print their results.

Idea: it uses the public API only (`anytpu.plan`, `scaling`, `max_batch_size`, `check`), as a user's program would.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
from pathlib import Path
from typing import Any

import jax

import anytpu
from anytpu.cli.script import HOW, check_readable, job_of
from anytpu.errors import SettingError
from anytpu.files.opening import read_file
from anytpu.planning.serving.language_models import is_language_model, nearest_language_model
from anytpu.report.steps import StepProgress
from anytpu.report.terminal import open_console, say
from anytpu.train.makers import KERAS_MAKER
from anytpu.units import format_count

_FILES = (".anytpu", ".mlir")


@dataclasses.dataclass(frozen=True)
class PlanRequest:
    """The command's arguments in the form that the public functions take.

    Attributes:
        job: the job to plan.
        arguments: the parsed command line.
        specs: the input specs of the job, or None.
        batch_axis: the example axis of the batch, or a tree of axes; None for the job's default.
    """

    job: Any
    arguments: argparse.Namespace
    specs: Any = None
    batch_axis: Any = None

    @property
    def settings(self) -> dict[str, Any]:
        """Keyword arguments that all questions share."""
        typed = self.arguments
        return {
            "input_specs": self.specs,
            "mode": "infer" if typed.infer else None,
            "precision": precision_of(typed),
            "batch_axis": self.batch_axis,
            "layout": typed.layout,
            "mesh": typed.mesh,
            "timeout_s": typed.timeout,
            "use_cache": not typed.no_cache,
            "name": typed.job,  # models of one file may share a name, so plans are titled by this
        }

    @property
    def run_settings(self) -> dict[str, Any]:
        """Keyword arguments of `anytpu.plan` and `anytpu.scaling`: `settings` and those of the run."""
        typed = self.arguments
        return {
            **self.settings,
            "batch_size": typed.batch,
            "steps_per_execution": typed.steps_per_execution,
            "input_examples_per_s": typed.input_rate,
            "examples": typed.examples,
            "epochs": typed.epochs,
            "prices": typed.prices,
            "advise": typed.advise,
        }


def load_request(arguments: argparse.Namespace) -> PlanRequest:
    """Load the job and return the request.

    Raises:
        SettingError: no job is named, or the job cannot be loaded.
    """
    job, specs = job_named(arguments, arguments.split, arguments.batch_axis)
    is_file = isinstance(job, str)  # a file's specs are layouts, which have the axes already
    axis = None if is_file else _batch_axis(arguments.batch_axis, specs)
    return PlanRequest(job, arguments, specs, axis)


def plan(request: PlanRequest) -> Any:
    """Return the plan of a job, with the batches of a sweep."""
    check_batch(request.job, request.specs, request.arguments.batch)
    with StepProgress() as progress:
        return anytpu.plan(
            request.job,
            tpu=request.arguments.tpu,
            sweep_batches=request.arguments.sweep_batch,
            progress=progress,
            **request.run_settings,
        )


def scaling(request: PlanRequest) -> Any:
    """Return the plan of a job on several slices of the first system's chip."""
    check_batch(request.job, request.specs, request.arguments.batch)
    with StepProgress() as progress:
        return anytpu.scaling(
            request.job,
            request.arguments.tpu[0].partition("-")[0],
            request.arguments.scaling,
            progress=progress,
            **request.run_settings,
        )


def check_lock(plan: Any, arguments: argparse.Namespace) -> bool:
    """Write the requested files, print a comparison of a plan with a lock, and return whether the lock holds."""
    console = open_console()
    tolerances = dict(zip(("step_percent", "memory_percent"), arguments.tolerance or (), strict=False))
    wrote = _write(plan, arguments)
    comparison = plan.check_lock(arguments.check, **tolerances)
    say(console, str(comparison))
    for line in wrote:
        say(console, line)
    return comparison.holds


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
    wrote = []
    if arguments.html:
        wrote.append(f"Wrote {plan.to_html(arguments.html)}")
    if arguments.json:
        wrote.append(f"Wrote {plan.to_json(arguments.json)}")
    if arguments.lock:
        wrote.append(f"Wrote {plan.lock(arguments.lock)}")
    if arguments.svg:
        wrote.append(f"Wrote {len(plan.to_svg(arguments.svg))} plots into {arguments.svg}")
    if arguments.png:
        wrote.append(f"Wrote {len(plan.to_png(arguments.png))} plots into {arguments.png}")
    return wrote


def show_largest(request: PlanRequest) -> None:
    """Print the largest batch that fits on each system."""
    console = open_console()
    for name in request.arguments.tpu:
        with StepProgress() as progress:
            batch = anytpu.max_batch_size(request.job, name, progress=progress, **request.settings)
        fits = f"{format_count(batch)} examples per step" if batch else "not even one example per device fits"
        say(console, f"{name}: {fits}")


def show_ways(request: PlanRequest) -> None:
    """Print, for each system, the training step with each change that makes it smaller."""
    check_batch(request.job, request.specs, request.arguments.batch)
    settings = {name: value for name, value in request.settings.items() if name != "mode"}
    for name in request.arguments.tpu:
        with StepProgress() as progress:
            changes = anytpu.ways_to_fit(
                request.job,
                request.arguments.batch,
                name,
                prices=request.arguments.prices,
                progress=progress,
                **settings,
            )
        changes.show()


def show_answers(request: PlanRequest) -> None:
    """Print the speed, the memory and the price of the answers of a language model."""
    typed = request.arguments
    if typed.batch is None:
        raise SettingError("--answer needs --batch, the number of sequences that are answered at once")
    with StepProgress() as progress:
        plan = anytpu.plan_serving(
            request.job,
            typed.batch,
            typed.tpu,
            prompt_tokens=typed.sequence or 1024,
            new_tokens=typed.answer,
            progress=progress,
            prices=typed.prices,
            **{name: request.settings[name] for name in ("layout", "mesh", "timeout_s", "use_cache")},
        )
    plan.show()


def check(request: PlanRequest) -> bool:
    """Print a comparison of 1 core with many, and return whether their results differ."""
    with StepProgress() as progress:
        progress("one step on 1 core, on virtual cores and on partitioned devices")
        typed = request.arguments
        settings = {"batch_size": typed.batch, "layout": typed.layout, "mesh": typed.mesh}
        comparison = anytpu.check(request.job, **{name: value for name, value in settings.items() if value is not None})
    say(open_console(), str(comparison))
    return not comparison.agrees


def check_batch(job: Any, specs: Any, batch_size: int | None) -> None:
    """Check that a Keras model comes with a batch.

    Raises:
        SettingError: it has neither input specs nor a number of examples.
    """
    if batch_size is None and specs is None and KERAS_MAKER.claims(job):
        raise SettingError(
            f"the model {job.name!r} has no fixed batch; give the examples per step over all devices: --batch 1024"
        )


def precision_of(arguments: argparse.Namespace) -> str | None:
    """Return the precision to make the job again in; a named language model is made in it at once."""
    return None if is_language_model(arguments.job) else arguments.precision


def job_named(
    arguments: argparse.Namespace, split: list[int] | None = None, axes: list[int | None] | None = None
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
        dtype = arguments.precision or "bfloat16"
        return anytpu.language_model(name, arguments.sequence or 1024, lora_rank=arguments.lora, dtype=dtype)
    for option in ("sequence", "lora"):
        if getattr(arguments, option) is not None:
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
    return job_of(path, function, has_values=getattr(arguments, "check", False) is True)


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
