"""`anytpu env`: the environment report for a bug report, as markdown or JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping

import anytpu
from anytpu.cli.command import Command

Sections = Mapping[str, Mapping[str, str]]
"""Title of a section -> name -> value."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of markdown")


def run(arguments: argparse.Namespace) -> int:
    """Print the versions, the machine, the devices and the environment."""
    sections = environment()
    print(to_json(sections) if arguments.json else to_markdown(sections))
    return 0


def environment() -> dict[str, dict[str, str]]:
    """Return the sections of the report."""
    from anytpu.cli.machine import PACKAGES, look_at_machine, memory_text

    machine = look_at_machine()
    return {
        "Versions": {name: machine.versions.get(name, "not installed") for name in ("python", *PACKAGES)},
        "Machine": {"system": machine.system, "CPU": machine.cpu, "memory": memory_text(machine)},
        "Devices": devices(),
        "Environment variables": machine.settings,
    }


def devices() -> dict[str, str]:
    """Return the system found and the reason against each other one; or the error of the search."""
    from anytpu.report.devices import headline

    try:
        resolver = anytpu.TPUClusterResolver()
        reasons = {f"not {reason.source}": reason.why for reason in resolver.reasons}
        return {"found": headline(resolver.topology), **reasons}
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"}


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


COMMAND = Command(
    name="env",
    summary="print versions, devices and environment, to paste in a bug report",
    description="""\
Print the facts for a bug report as markdown: versions, the machine, the devices
found and the reasons against other systems. The environment variables are listed
with their values after the import of anytpu.
""",
    add_arguments=add_arguments,
    run=run,
)
