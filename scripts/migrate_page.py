"""Generate docs/migrate.md from the porter's table: `python scripts/migrate_page.py > docs/migrate.md`."""

from __future__ import annotations

from collections.abc import Iterator

from anytpu.migrate.replaced.table import Replacement, replacements

_OPENING = """\
# Coming from TensorFlow

`anytpu port old.py` shows the changes to a TensorFlow program, and runs the result for a few steps in a copy of its
folder (`--no-try` leaves that out); `anytpu port --write old.py` makes the changes. This page is its table: lines of a
program for TensorFlow 1 or 2 (`-`), and their replacement (`+`). Lines without a sign are unchanged. Nothing of `tf.*`
is emulated: a ported program imports `anytpu` and `keras`, not TensorFlow.

    import anytpu as tpu  # before keras: it makes Keras run on JAX
    import keras

This page is generated from the table: `python scripts/migrate_page.py > docs/migrate.md`
"""


def page() -> str:
    """Return the text of docs/migrate.md."""
    return "\n".join(
        [_OPENING, *(part for section, rows in replacements().items() for part in _section(section, rows))]
    )


def _section(title: str, rows: tuple[Replacement, ...]) -> Iterator[str]:
    yield f"## {title}\n"
    ported = [row for row in rows if row.how != "hand"]
    if ported:
        yield _block(ported)
    by_hand = [row for row in rows if row.how == "hand"]
    if by_hand:
        yield "By hand:\n"
        yield _block(by_hand)


def _block(rows: list[Replacement]) -> str:
    return "\n".join(["```diff", "\n\n".join(_row(row) for row in rows), "```\n"])


def _row(row: Replacement) -> str:
    note = [f" # {row.note}"] if row.note else []
    if "*" in row.target:
        note.append(f" # likewise {', '.join(sorted({name.rpartition('.')[2] for name in row.names}))}")
    if row.how == "same":
        return "\n".join([*note, *(f" {line}" for line in row.old.splitlines())])
    old = [f"-{line}" for line in row.old.splitlines()]
    return "\n".join([*note, *old, *(f"+{line}" for line in row.new.splitlines())])


if __name__ == "__main__":
    print(page(), end="")
