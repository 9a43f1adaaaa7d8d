"""`of`: whatever somebody wants to run, as a Program.

Idea: `plan`, `chip` and the workers take "a job" and call this; they import no front door.

Rule: makers are found by name, through the entry points of the group "anytpu.programs". Each is an object that says
whether it claims a job, without loading anything to say no, and makes a Program of it. Exactly one claims a job.
"""

from __future__ import annotations

import importlib.metadata
from typing import Any, Literal, Protocol

from anytpu.errors import ProgramError, SettingError
from anytpu.program.program import Program, Tree

GROUP = "anytpu.programs"
"""The group of entry points in which makers are found."""


class Maker(Protocol):
    """What an entry point of the group "anytpu.programs" is."""

    def claims(self, job: Any) -> bool:
        """Return whether this maker is the one for the job. Loads neither JAX nor Keras to say no."""
        ...

    def make(self, job: Any, input_specs: Any, mode: str, tensors: bool) -> Program:
        """Make the Program; the arguments are those of `of`, with `mode` "train" where it was left out."""
        ...


def of(
    job: Any, input_specs: Tree | None = None, mode: Literal["train", "infer"] | None = None, tensors: bool = False
) -> Program:
    """Return the Program of a job.

    Args:
        job: a Keras model, a JAX function `step(state, batch) -> (state, outputs)`, the path of a program file, or a
            Program, which is returned as it is.
        input_specs: the shapes that go in, as the job's maker wants them: for a function the pair (state, batch) of
            trees of arrays or `jax.ShapeDtypeStruct`; None for a job that knows its own.
        mode: "train" or "infer"; None means the mode that the job has, which is "train" for a job that can do both.
        tensors: bring the values of the state along, as `program.tensors`.

    Raises:
        ProgramError: nobody makes a Program of such a job, or this one cannot be made; the message says what is
        missing. SettingError: an unknown mode.

    Example:
        >>> step = lambda state, batch: (state + batch.sum(), {"rows": batch.shape[0] * jnp.ones(())})
        >>> of(step, (jnp.zeros(()), jnp.zeros(8))).mode
        'train'
    """
    if mode not in (None, "train", "infer"):
        raise SettingError(f"mode must be 'train' or 'infer', or None for the job's own, not {mode!r}.")
    program = job if isinstance(job, Program) else _make(job, input_specs, mode or "train", tensors)
    if isinstance(job, Program):
        _check_as_it_is(job, input_specs, tensors)
    if mode is not None and program.mode != mode:
        raise ProgramError(f"The program {program.name!r} is one for mode {program.mode!r}; it has none for {mode!r}.")
    return program


def _make(job: Any, input_specs: Any, mode: str, tensors: bool) -> Program:
    broken: list[str] = []
    for entry in importlib.metadata.entry_points(group=GROUP):
        try:
            maker: Maker = entry.load()
        except (ImportError, AttributeError) as error:
            broken.append(f"{entry.name!r} ({type(error).__name__}: {error})")
            continue
        if maker.claims(job):
            return maker.make(job, input_specs, mode, tensors)
    raise ProgramError(_nobody(job, broken))


def _nobody(job: Any, broken: list[str]) -> str:
    return (
        f"No Program can be made of {job!r} ({type(job).__name__}). Give a Keras model, a JAX function step(state, "
        "batch) with input_specs=(state, batch), the path of a '.anytpu' file, or an anytpu.program.Program."
        + (f" These makers could not be asked: {', '.join(broken)}." if broken else "")
    )


def _check_as_it_is(program: Program, input_specs: Any, tensors: bool) -> None:
    if input_specs is not None:
        raise ProgramError(f"The shapes of the program {program.name!r} are fixed: leave input_specs out.")
    if tensors and program.tensors is None:
        raise ProgramError(
            f"The program {program.name!r} does not carry the values of its state. Make it with "
            "anytpu.program.of(job, tensors=True)."
        )
