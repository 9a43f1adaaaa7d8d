"""`anytpu env`: the environment report for a bug report."""

from __future__ import annotations

import argparse

from anytpu.cli.command import Command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of markdown")


def run(arguments: argparse.Namespace) -> int:
    """Print the versions, the machine, the devices and the environment."""
    from anytpu.report.environment import to_json, to_markdown

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
    import anytpu
    from anytpu.report.devices import headline

    try:
        resolver = anytpu.TPUClusterResolver()
        reasons = {f"not {reason.source}": reason.why for reason in resolver.reasons}
        return {"found": headline(resolver.topology), **reasons}
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"}


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
