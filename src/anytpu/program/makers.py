"""`of`: converts a job (a model, a function, a file) to a Program.

Idea: `plan`, `chip` and the workers take a job and call `of`; they do not import the code of each kind of job.

Rule: makers are found through the entry points of the group "anytpu.programs". A maker tells whether it claims a job,
without importing a framework to reject it, and makes a Program from it. Exactly one maker claims a job.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import inspect
from collections.abc import Callable
from typing import Any, Literal, Protocol

from anytpu._calls import explain_arguments
from anytpu.errors import ProgramError, SettingError
from anytpu.program.program import Program, Tree


@dataclasses.dataclass(frozen=True)
class Repeats:
    """Consecutive equal blocks of layers of a job.

    Attributes:
        count: number of blocks, at least 2.
        with_count: returns the job with a given number of blocks, 1 to `count`; a job for `program.of`.
        period: number of layers of one class in a block: 6 for five layers with local attention and one with global.
    """

    count: int
    with_count: Callable[[int], Any] = dataclasses.field(repr=False)
    period: int = 1


GROUP = "anytpu.programs"
"""The entry point group of makers."""

_ROWS_FIRST = ": its examples are along axis 0"


class ProgramMaker(Protocol):
    """The protocol of the objects in the entry point group "anytpu.programs"."""

    def claims(self, job: Any) -> bool:
        """Return whether this maker handles the job. It must not import JAX or Keras to return False."""
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
        """Make the Program; the arguments are those of `of`, with default `mode` "train".

        A maker may omit `batch_size`, `precision` and `batch_axis` from its signature. `of` passes them only if they
        are not None, and raises an error that names a maker without them.

        Args:
            job: a job that `claims` accepted.
            input_specs: shapes of the inputs, or None.
            mode: "train" or "infer".
            tensors: include the values of the state.
            batch_size: number of rows of the global batch, at least 1; None: that of `input_specs`.
            precision: "float32" or "bfloat16"; None: the precision of the job.
            batch_axis: the example axis of the batch; None: that of the job.
        """
        ...


@explain_arguments
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
        job: a Keras model, a JAX function `step(state, batch) -> (state, outputs)`, or the path of a ".anytpu" or a
            ".mlir" (StableHLO) file. A step compiled by `nnx.jit` or `eqx.filter_jit`, the triple (nnx.Module,
            nnx.Optimizer, loss), or a module for `mode` "infer". A Program is returned unchanged.
        input_specs: shapes of the inputs. For a function: the pair (state, batch) of trees of arrays or
            `jax.ShapeDtypeStruct`. For a compiled step: its arguments. For a triple or a module: those of the batch.
            None for a job with known shapes.
        mode: "train" or "infer"; None means the mode of the job, which is "train" if the job supports both.
        tensors: include the values of the state, as `program.tensors`.
        batch_size: number of rows of the global batch; it replaces that of `input_specs`. With it, a Keras model with
            known input shapes needs no `input_specs`. None: the rows of `input_specs`.
        precision: compute in "bfloat16" (variables stay float32: Keras's policy "mixed_bfloat16") or in "float32". A
            Keras model is cloned for it, without its values, and is not changed. None: the precision of the job.
        batch_axis: for a function, the example axis of the batch, one for all leaves or a tree like the batch, as
            `in_axes` of `jax.vmap`. None: the axis that the sharding of the batch splits over a data axis of its mesh,
            or else axis 0; `Program.notes` reports the assumption.

    Raises:
        ProgramError: no maker claims the job, or the Program cannot be made; the message names the reason.
        SettingError: an unknown mode or precision, or a batch size that is not a positive integer.

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
        _check_unchanged(job, input_specs, tensors)
        check_fixed(f"The program {job.name!r}", job, batch_size, precision, batch_axis)
    else:
        options = {"batch_size": batch_size, "precision": precision, "batch_axis": batch_axis}
        options = {name: value for name, value in options.items() if value is not None}
        program = _make(job, (input_specs, mode or "train", tensors), options)
    if mode is not None and program.mode != mode:
        raise ProgramError(f"The program {program.name!r} has the mode {program.mode!r}, not {mode!r}.")
    return program


def repeats_of(job: Any) -> Repeats | None:
    """Return the repeated equal blocks of layers in a job; None if there are none, or if the maker cannot find them.

    A maker can support this with a method `repeats_of(job)`.
    """
    _, maker = _maker_of(job, [])
    find = getattr(maker, "repeats_of", None)
    return find(job) if find is not None else None


def variant_of(job: Any, change: Literal["accumulation", "LoRA"], count: int) -> Any:
    """Return a job with a change of its training, for which its maker needs a method `variant_of`.

    Args:
        job: a job.
        change: "accumulation" of the gradients of `count` steps, or "LoRA" adapters of the rank `count`.
        count: the number of steps, or the rank.

    Raises:
        ProgramError: it cannot be changed; the message says why.
    """
    _, maker = _maker_of(job, [])
    change_job = getattr(maker, "variant_of", None)
    if change_job is None:
        raise ProgramError("only of a Keras model are the optimizer and the layers known")
    return change_job(job, change, count)


def is_job(job: Any) -> bool:
    """Return whether `of` accepts an object: it is a Program, or a maker claims it."""
    return isinstance(job, Program) or _maker_of(job, [])[1] is not None


def _check_settings(mode: Any, batch_size: Any, precision: Any) -> None:
    if mode not in (None, "train", "infer"):
        raise SettingError(f"mode must be 'train' or 'infer', or None for the job's own, not {mode!r}.")
    if batch_size is not None and (type(batch_size) is not int or not 1 <= batch_size < 2**31):
        raise SettingError(
            f"batch_size must be a positive integer below 2**31, the rows of a global batch, not {batch_size!r}."
        )
    if precision not in (None, "float32", "bfloat16"):
        raise SettingError(f"precision must be 'float32' or 'bfloat16', or None for the job's own, not {precision!r}.")


def _make(job: Any, arguments: tuple[Any, str, bool], options: dict[str, Any]) -> Program:
    broken: list[str] = []
    name, maker = _maker_of(job, broken)
    if maker is None:
        raise ProgramError(_no_maker_message(job, broken))
    _check_takes(name, maker, job, options)
    return maker.make(job, *arguments, **options)


def _maker_of(job: Any, broken: list[str]) -> tuple[str, ProgramMaker | None]:
    """Return the name of the maker that claims a job, and the maker; failed imports are appended to `broken`."""
    for entry in importlib.metadata.entry_points(group=GROUP):
        try:
            maker: ProgramMaker = entry.load()
        except (ImportError, AttributeError) as error:
            broken.append(f"{entry.name!r} ({type(error).__name__}: {error})")
            continue
        if maker.claims(job):
            return entry.name, maker
    return "", None


def _check_takes(name: str, maker: ProgramMaker, job: Any, options: dict[str, Any]) -> None:
    """Reject options that are not in the signature of a maker."""
    parameters = inspect.signature(maker.make).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    if missing := [option for option in options if option not in parameters]:
        them = "it" if len(missing) == 1 else "them"
        instead = f", and give {job!r} input_specs of the batch wanted" if missing != ["batch_axis"] else _ROWS_FIRST
        raise ProgramError(
            f"A job of the kind {name!r} takes no {' and no '.join(missing)}. Leave {them} out{instead}."
        )


def _no_maker_message(job: Any, broken: list[str]) -> str:
    return (
        f"No Program can be made of {job!r} ({type(job).__name__}). Give a Keras model, a JAX function step(state, "
        "batch) with input_specs=(state, batch), a step compiled by nnx.jit or eqx.filter_jit, the path of a '.anytpu' "
        "or '.mlir' file, or an anytpu.program.Program."
        + (f" These makers could not be loaded: {', '.join(broken)}." if broken else "")
    )


def _check_unchanged(program: Program, input_specs: Any, tensors: bool) -> None:
    if input_specs is not None:
        raise ProgramError(f"The shapes of the program {program.name!r} are fixed: leave input_specs out.")
    if tensors and program.tensors is None:
        raise ProgramError(
            f"The program {program.name!r} does not carry the values of its state. Make it with "
            "anytpu.program.of(job, tensors=True)."
        )


def check_fixed(
    owner: str, program: Program, batch_size: int | None, precision: str | None, batch_axis: Tree = None
) -> None:
    """Check that the requested settings are those of the program.

    Args:
        owner: description of the program, as the start of a sentence: "The program file 'a.anytpu'".
        program: the program.
        batch_size: requested number of rows; None, or the program's own number, is valid.
        precision: requested precision; only None is valid.
        batch_axis: requested axis of the batch; only None is valid.

    Raises:
        ProgramError: another batch size, a precision or a batch axis is requested.
    """
    if batch_axis is not None:
        raise ProgramError(
            f"{owner} defines the axes of its examples, and cannot be changed to batch_axis={batch_axis!r}. Give "
            "the function instead."
        )
    if batch_size in (None, program.rows) and precision is None:
        return
    has = "" if program.rows is None else f" of {program.rows} rows"
    setting = f"batch_size={batch_size!r}" if precision is None else f"precision={precision!r}"
    raise ProgramError(
        f"{owner} has one batch{has} and one precision, and cannot be changed to {setting}. Give the model or the "
        f"function instead: anytpu.program.of(model, {setting})."
    )
