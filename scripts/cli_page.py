"""Print docs/cli.md, made of the help texts: `python scripts/cli_page.py > docs/cli.md`."""

from __future__ import annotations

from anytpu.cli.entry import commands, help_of

_INTRODUCTION = """\
# The command line

`anytpu COMMAND`, or `python -m anytpu COMMAND`. An error is one message on stderr and exit status 2; `--traceback`
shows its origin.

This page is generated from the help texts: `python scripts/cli_page.py > docs/cli.md`
"""


def page() -> str:
    """Return the text of docs/cli.md."""
    sections = [_INTRODUCTION, _block(help_of(""))]
    for command in commands():
        sections.append(_section("##", command.name))
        sections += [_section("###", f"{command.name} {action.name}") for action in command.actions]
    return "\n".join(sections)


def _section(mark: str, name: str) -> str:
    return f"{mark} anytpu {name}\n\n{_block(help_of(name))}"


def _block(text: str) -> str:
    return f"```text\n{text.strip()}\n```\n"


if __name__ == "__main__":
    print(page(), end="")
