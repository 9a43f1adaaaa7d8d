"""What `anytpu plan` does: loads the job, asks the public functions, and shows what they found.

Idea: it is a plain client of `anytpu.plan` and its siblings, as a program of yours would be.
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
from anytpu.report.steps import Steps
from anytpu.report.terminal import open_console, say
from anytpu.train.makers import KERAS_MAKER
from anytpu.units import format_count

_FILES = (".anytpu", ".mlir")


@dataclasses.dataclass(frozen=True)
class Asked:
    """What was typed, as the public functions take it.

    Attributes:
        job: what is planned.
        tpu: the systems.
        batch_size: examples of a step, or None.
        arguments: everything as it was typed.
        specs: the input specs of the job, or None.
        batch_axis: the axis of the batch along which examples lie, or a tree of axes; None for the job's own.
    """

    job: Any
    tpu: list[str]
    batch_size: int | None
    arguments: argparse.Namespace
    specs: Any = None
    batch_axis: Any = None

    @property
    def settings(self) -> dict[str, Any]:
        """What every question takes."""
        typed = self.arguments
        return {
            "input_specs": self.specs,
            "mode": "infer" if typed.infer else None,
            "precision": typed.precision,
            "batch_axis": self.batch_axis,
            "timeout_s": typed.timeout,
            "use_cache": not typed.no_cache,
            "name": typed.job,  # As it was typed: a file may have several models of one name.
        }

    @property
    def run_settings(self) -> dict[str, Any]:
        """What a plan takes beyond them."""
        typed = self.arguments
        return {
            **self.settings,
            "steps_per_execution": typed.steps_per_execution,
            "input_examples_per_s": typed.input_rate,
            "examples": typed.examples,
            "epochs": typed.epochs,
            "prices": typed.prices,
            "advise": typed.advise,
        }


def asked(arguments: argparse.Namespace) -> Asked:
    """Load the job that was named.

    Raises:
        SettingError: none was named, or it cannot be loaded.
    """
    job, specs = _job(arguments.job, arguments.split, arguments.batch_axis)
    is_file = isinstance(job, str)  # whose layouts are its specs
    axis = None if is_file else _batch_axis(arguments.batch_axis, specs)
    return Asked(job, arguments.tpu, arguments.batch, arguments, specs, axis)


def plan(asked: Asked) -> Any:
    """Return the plan of a job, with the batches of a sweep."""
    _need_batch(asked)
    with Steps() as progress:
        return anytpu.plan(
            asked.job,
            batch_size=asked.batch_size,
            tpu=asked.tpu,
            sweep_batches=asked.arguments.sweep_batch,
            progress=progress,
            **asked.run_settings,
        )


def scaling(asked: Asked) -> Any:
    """Return the plan of a job on ever larger slices of the first system."""
    _need_batch(asked)
    with Steps() as progress:
        return anytpu.scaling(
            asked.job,
            asked.tpu[0].partition("-")[0],
            asked.arguments.scaling,
            batch_size=asked.batch_size,
            progress=progress,
            **asked.run_settings,
        )


def show(plan: Any, arguments: argparse.Namespace) -> None:
    """Write the files that were asked for, and print a plan: in this order, for `| head` ends what prints."""
    console = open_console()
    try:
        wrote = _write(plan, arguments)
    finally:
        plan.show()  # also where a file could not be written
    for line in wrote:
        say(console, line)


def _write(plan: Any, arguments: argparse.Namespace) -> list[str]:
    """Write the files that were asked for, and return a line on each."""
    wrote = []
    if arguments.html:
        wrote.append(f"Wrote {plan.to_html(arguments.html)}")
    if arguments.json:
        wrote.append(f"Wrote {plan.to_json(arguments.json)}")
    if arguments.svg:
        wrote.append(f"Wrote {len(plan.to_svg(arguments.svg))} plots into {arguments.svg}")
    if arguments.png:
        wrote.append(f"Wrote {len(plan.to_png(arguments.png))} plots into {arguments.png}")
    return wrote


def show_largest(asked: Asked) -> None:
    """Print the largest batch that fits on each system."""
    console = open_console()
    for name in asked.tpu:
        with Steps() as progress:
            batch = anytpu.max_batch_size(asked.job, name, progress=progress, **asked.settings)
        fits = f"{format_count(batch)} examples a step" if batch else "not even one example a device fits"
        say(console, f"{name}: {fits}")


def check(asked: Asked) -> bool:
    """Print whether 1 core and many compute the same, and return whether they differ."""
    with Steps() as progress:
        progress("one step on 1 core, on virtual cores and on partitioned devices")
        found = anytpu.check(asked.job, **{} if asked.batch_size is None else {"batch_size": asked.batch_size})
    say(open_console(), str(found))
    return not found.agrees


def calibrate() -> int:
    """Print predictions beside this user's own runs, and keep the corrections."""
    from anytpu.planning import calibration
    from anytpu.report.calibration import print_calibration

    found = calibration.calibrate()
    print_calibration(open_console(), found)
    if found.factors:
        calibration.save(found)
    return 0


def _need_batch(asked: Asked) -> None:
    if asked.batch_size is None and asked.specs is None and KERAS_MAKER.claims(asked.job):
        raise SettingError(
            f"the model {asked.job.name!r} can be planned for any batch; say which, the examples of a step over all "
            "devices: --batch 1024"
        )


def _job(name: str | None, split: list[int] | None, axes: list[int | None] | None) -> tuple[Any, Any]:
    if name is None:
        raise SettingError(f"name what to plan: a function of a file, like {HOW}, or a program file, .anytpu or .mlir")
    if Path(name).suffix in _FILES:
        return name, _layouts(name, split, axes)
    if split is not None:
        raise SettingError(f"--split names arguments of a .mlir file, and {name!r} is none; leave it out")
    path, colon, function = name.rpartition(":")
    if not colon or not path:
        raise SettingError(_no_function(name))
    return job_of(path, function)


def _layouts(name: str, split: list[int] | None, axes: list[int | None] | None) -> Any:
    """Return the layout of each argument of a file that is split, or None."""
    if split is None:
        if axes is not None:
            raise SettingError(f"--batch-axis is that of the arguments of {name} that --split names; add --split 0")
        return None
    each = axes or [0]
    each = each * len(split) if len(each) == 1 else each
    if len(each) != len(split):
        raise SettingError(_other_number(len(each), f"--split names {len(split)} arguments", "argument"))
    if any(axis is not None and axis < 0 for axis in each):
        raise SettingError("--batch-axis counts the axes of a file's arguments from 0; write 3, not -1")
    return {number: anytpu.program.Layout(axis) for number, axis in zip(split, each, strict=True)}


def _batch_axis(axes: list[int | None] | None, specs: Any) -> Any:
    """Return the axes that were typed as `anytpu.plan` takes them: one, or a tree like the batch."""
    if axes is None or len(axes) == 1:
        return axes[0] if axes else None
    if not isinstance(specs, tuple | list) or len(specs) != 2:
        return tuple(axes)  # The batch of a function of the devices, most likely; of anything else it is refused.
    structure = jax.tree.structure(specs[1])
    if structure.num_leaves != len(axes):
        raise SettingError(_other_number(len(axes), f"the batch has {structure.num_leaves} arrays", "array"))
    return jax.tree.unflatten(structure, axes)


def _other_number(axes: int, has: str, of: str) -> str:
    return f"--batch-axis names {axes} axes, and {has}; name one axis, or one for each {of}"


def _no_function(name: str) -> str:
    if Path(name).suffix != ".py":
        return (
            f"{name!r} is nothing that can be planned; name a function of a file, like {HOW}, or a program file, "
            ".anytpu or .mlir"
        )
    check_readable(Path(name))
    names = _functions(Path(name))
    hint = f"; its functions are {', '.join(names)}" if names else ""
    return f"name the function of {name} that returns the model, like {name}:create_model{hint}"


def _functions(path: Path) -> list[str]:
    """Return the functions of a file that stand at its left edge, without running it."""
    try:
        body = ast.parse(read_file(path)).body
    except (OSError, SyntaxError, ValueError):
        return []
    return [one.name for one in body if isinstance(one, ast.FunctionDef) and not one.name.startswith("_")]
