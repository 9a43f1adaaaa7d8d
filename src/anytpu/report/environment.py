"""The environment section of a bug report, as markdown and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping

Sections = Mapping[str, Mapping[str, str]]
"""Title of a section -> name -> value."""


def to_markdown(sections: Sections) -> str:
    """Return sections as markdown tables, with aligned columns for reading as plain text.

    Example:
        >>> print(to_markdown({"Versions": {"jax": "0.10.2", "python": "3.11.7"}}))
        ### Versions
        <BLANKLINE>
        | what   | value  |
        |--------|--------|
        | jax    | 0.10.2 |
        | python | 3.11.7 |
    """
    return "\n\n".join(f"### {title}\n\n{_table(values)}" for title, values in sections.items())


def to_json(sections: Sections) -> str:
    """Return sections as JSON; the titles, in lower case, are the keys.

    Example:
        >>> print(to_json({"Environment variables": {}}))
        {
          "environment_variables": {}
        }
    """
    keyed = {title.lower().replace(" ", "_"): values for title, values in sections.items()}
    return json.dumps(keyed, indent=2, ensure_ascii=False)


def _table(values: Mapping[str, str]) -> str:
    if not values:
        return "none"
    rows = [("what", "value"), *((name, _cell(value)) for name, value in values.items())]
    left, right = (max(len(row[column]) for row in rows) for column in (0, 1))
    lines = [f"| {name:<{left}} | {value:<{right}} |" for name, value in rows]
    return "\n".join([lines[0], f"|{'-' * (left + 2)}|{'-' * (right + 2)}|", *lines[1:]])


def _cell(value: str) -> str:
    """Return a value as a table cell: on one line, with `|` escaped."""
    return " ".join(value.split()).replace("|", "\\|")
