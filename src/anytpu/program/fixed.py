"""Rejection of a new batch size, precision or batch axis for an existing Program.

Rule: the error names the alternative: the model or function from which the Program was made.
"""

from __future__ import annotations

from anytpu.errors import ProgramError
from anytpu.program.program import Program, Tree


def check_fixed(
    what: str, program: Program, batch_size: int | None, precision: str | None, batch_axis: Tree = None
) -> None:
    """Check that the requested settings are those of the program.

    Args:
        what: description of the program, as the start of a sentence: "The program file 'a.anytpu'".
        program: the program.
        batch_size: requested number of rows; None, or the program's own number, is valid.
        precision: requested precision; only None is valid.
        batch_axis: requested axis of the batch; only None is valid.

    Raises:
        ProgramError: another batch size, a precision or a batch axis is requested.
    """
    if batch_axis is not None:
        raise ProgramError(
            f"{what} defines the axes of its examples, and cannot be made again with batch_axis={batch_axis!r}. Give "
            "the function that it was made of in its place."
        )
    if batch_size in (None, program.rows) and precision is None:
        return
    has = "" if program.rows is None else f" of {program.rows} rows"
    setting = f"batch_size={batch_size!r}" if precision is None else f"precision={precision!r}"
    raise ProgramError(
        f"{what} has one batch{has} and one precision, and cannot be made again with {setting}. Give the model or the "
        f"function that it was made of in its place: anytpu.program.of(model, {setting})."
    )
