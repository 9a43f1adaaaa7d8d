"""What a Program that is made already cannot be asked for: another batch, another precision.

Rule: the answer names the way that can, the model or the function that the Program was made of.
"""

from __future__ import annotations

from anytpu.errors import ProgramError
from anytpu.program.program import Program, Tree


def check_fixed(
    what: str, program: Program, batch_size: int | None, precision: str | None, batch_axis: Tree = None
) -> None:
    """Check that nothing is asked of a program but what it has.

    Args:
        what: what it is, as the start of a sentence: "The program file 'a.anytpu'".
        program: the program.
        batch_size: the rows that are asked for; None, or those that it has, is fine.
        precision: the precision that is asked for; None is fine.
        batch_axis: the axis of the batch that is asked for; None is fine.

    Raises:
        ProgramError: another batch, any precision or an axis of the batch is asked for.
    """
    if batch_axis is not None:
        raise ProgramError(
            f"{what} says itself along which axes its examples lie, and cannot be made again with "
            f"batch_axis={batch_axis!r}. Give the function that it was made of in its place."
        )
    if batch_size in (None, program.rows) and precision is None:
        return
    has = "" if program.rows is None else f" of {program.rows} rows"
    asked = f"batch_size={batch_size!r}" if precision is None else f"precision={precision!r}"
    raise ProgramError(
        f"{what} has one batch{has} and one precision, and cannot be made again with {asked}. Give the model or the "
        f"function that it was made of in its place: anytpu.program.of(model, {asked})."
    )
