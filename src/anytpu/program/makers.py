"""`of`: whatever somebody wants to run, as a Program.

Idea: `plan`, `chip` and the workers take "a job" and call this; they import no front door.

Rule: makers are found by name, through the entry points of the group "anytpu.programs". Each is an object that says
whether it claims a job, without loading anything to say no, and makes a Program of it. Exactly one claims a job.
"""

from __future__ import annotations

import importlib.metadata
import inspect
from typing import Any, Literal, Protocol

from anytpu.errors import ProgramError, SettingError
from anytpu.program.fixed import check_fixed
from anytpu.program.program import Program, Tree
from anytpu.program.repeats import Repeats

GROUP = "anytpu.programs"
"""The group of entry points in which makers are found."""

_ROWS_FIRST = ": its examples lie along axis 0"


class Maker(Protocol):
    """What an entry point of the group "anytpu.programs" is."""

    def claims(self, job: Any) -> bool:
        """Return whether this maker is the one for the job. Loads neither JAX nor Keras to say no."""
        ...

    def make(
        self,
        job: Any,
        input_specs: Any,
        mode: str,
        tensors: bool,
        *,
        batch_size: int | None = None,
        precision: str | None = None,
        batch_axis: Tree = None,
    ) -> Program:
        """Make the Program; the arguments are those of `of`, with `mode` "train" where it was left out.

        A maker may do without `batch_size`, `precision` and `batch_axis`: they are handed over only where they were
        given, and `of` says which maker does not take them.

        Args:
            job: what `claims` said yes to.
            input_specs: the shapes that go in, or None.
            mode: "train" or "infer".
            tensors: bring the values of the state along.
            batch_size: the rows of the global batch, at least 1; None: those of `input_specs`.
            precision: what to compute in, "float32" or "bfloat16"; None: as the job has it.
            batch_axis: the axis of the batch along which examples lie; None: as the job has it.
        """
        ...


def of(
    job: Any,
    input_specs: Tree | None = None,
    mode: Literal["train", "infer"] | None = None,
    tensors: bool = False,
    *,
    batch_size: int | None = None,
    precision: Literal["float32", "bfloat16"] | None = None,
    batch_axis: Tree = None,
) -> Program:
    """Return the Program of a job.

    Args:
        job: a Keras model, a JAX function `step(state, batch) -> (state, outputs)`, the path of a program file or of a
            StableHLO file (".mlir"), or a Program, which is returned as it is.
        input_specs: the shapes that go in, as the job's maker wants them: for a function the pair (state, batch) of
            trees of arrays or `jax.ShapeDtypeStruct`; None for a job that knows its own.
        mode: "train" or "infer"; None means the mode that the job has, which is "train" for a job that can do both.
        tensors: bring the values of the state along, as `program.tensors`.
        batch_size: the rows of the global batch. A Keras model that knows the shapes of its inputs needs no
            `input_specs` beside it; where they are given, their rows are counted anew. None: as `input_specs` has them.
        precision: compute in "bfloat16" (variables stay float32: Keras's policy "mixed_bfloat16") or in "float32". A
            Keras model is made again for it, without its values, and left as it is. None: as the job has it.
        batch_axis: of a function: the axis of the batch along which examples lie, one for all leaves or a tree like
            the batch, as `jax.vmap` takes it for `in_axes`. None: the axis that the sharding of the batch splits over a
            data axis of its mesh, else axis 0; `Program.notes` says where that was assumed.

    Raises:
        ProgramError: nobody makes a Program of such a job, or this one cannot be made; the message says what is
        missing. SettingError: an unknown mode or precision, or a batch size that is no positive integer.

    Example:
        >>> step = lambda state, batch: (state + batch.sum(), {"rows": batch.shape[0] * jnp.ones(())})
        >>> of(step, (jnp.zeros(()), jnp.zeros(8))).mode
        'train'
        >>> of(step, (jnp.zeros(()), jnp.zeros(8)), batch_size=32).rows
        32
    """
    _check_settings(mode, batch_size, precision)
    if isinstance(job, Program):
        program = job
        _check_as_it_is(job, input_specs, tensors)
        check_fixed(f"The program {job.name!r}", job, batch_size, precision, batch_axis)
    else:
        asked = {"batch_size": batch_size, "precision": precision, "batch_axis": batch_axis}
        program = _make(
            job, (input_specs, mode or "train", tensors), {name: x for name, x in asked.items() if x is not None}
        )
    if mode is not None and program.mode != mode:
        raise ProgramError(f"The program {program.name!r} is one for mode {program.mode!r}; it has none for {mode!r}.")
    return program


def repeats_of(job: Any) -> Repeats | None:
    """Return how often equal blocks of layers follow each other in a job; None where none do, or nobody can tell.

    A maker may say so with a method `repeats_of(job)`.
    """
    _, maker = _maker_of(job, [])
    find = getattr(maker, "repeats_of", None)
    return find(job) if find is not None else None


def is_job(job: Any) -> bool:
    """Return whether `of` can try to make a Program of something: it is one, or some maker claims it."""
    return isinstance(job, Program) or _maker_of(job, [])[1] is not None


def _check_settings(mode: Any, batch_size: Any, precision: Any) -> None:
    if mode not in (None, "train", "infer"):
        raise SettingError(f"mode must be 'train' or 'infer', or None for the job's own, not {mode!r}.")
    if batch_size is not None and (not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1):
        raise SettingError(f"batch_size must be a positive integer, the rows of a global batch, not {batch_size!r}.")
    if precision not in (None, "float32", "bfloat16"):
        raise SettingError(f"precision must be 'float32' or 'bfloat16', or None for the job's own, not {precision!r}.")


def _make(job: Any, arguments: tuple[Any, str, bool], asked: dict[str, Any]) -> Program:
    broken: list[str] = []
    name, maker = _maker_of(job, broken)
    if maker is None:
        raise ProgramError(_nobody(job, broken))
    _check_takes(name, maker, job, asked)
    return maker.make(job, *arguments, **asked)


def _maker_of(job: Any, broken: list[str]) -> tuple[str, Maker | None]:
    """Return the name of the maker that claims a job, and the maker; those that cannot be loaded go into `broken`."""
    for entry in importlib.metadata.entry_points(group=GROUP):
        try:
            maker: Maker = entry.load()
        except (ImportError, AttributeError) as error:
            broken.append(f"{entry.name!r} ({type(error).__name__}: {error})")
            continue
        if maker.claims(job):
            return entry.name, maker
    return "", None


def _check_takes(name: str, maker: Maker, job: Any, asked: dict[str, Any]) -> None:
    """Refuse what was asked of a maker that was written without it."""
    takes = inspect.signature(maker.make).parameters
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in takes.values()):
        return
    if missing := [one for one in asked if one not in takes]:
        them = "it" if len(missing) == 1 else "them"
        instead = f", and give {job!r} input_specs of the batch wanted" if missing != ["batch_axis"] else _ROWS_FIRST
        raise ProgramError(
            f"The maker {name!r} takes no {' and no '.join(missing)}: it has make{inspect.signature(maker.make)}. "
            f"Leave {them} out{instead}."
        )


def _nobody(job: Any, broken: list[str]) -> str:
    return (
        f"No Program can be made of {job!r} ({type(job).__name__}). Give a Keras model, a JAX function step(state, "
        "batch) with input_specs=(state, batch), the path of a '.anytpu' or '.mlir' file, or an anytpu.program.Program."
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
