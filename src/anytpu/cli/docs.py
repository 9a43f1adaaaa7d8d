"""`anytpu docs`: the documentation pages. The package carries them, so messages can name a page by its command."""

from __future__ import annotations

import argparse
import difflib
from pathlib import Path

import anytpu
from anytpu.cli.command import Command
from anytpu.errors import SettingError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the name of the page."""
    parser.add_argument("page", metavar="PAGE", nargs="?", help="the page to print (default: list all pages)")


def run(arguments: argparse.Namespace) -> int:
    """Print a page, formatted on a terminal and as Markdown elsewhere; without a name, list the pages."""
    from rich.markdown import Markdown

    from anytpu.report.terminal import open_console

    files = pages()
    if arguments.page is None:
        width = max(map(len, files))
        print("\n".join(f"{name:<{width}}  {_title(path)}" for name, path in files.items()))
        return 0
    text = _page(arguments.page, files).read_text(encoding="utf-8")
    console = open_console()
    if console.is_terminal:
        console.print(Markdown(text))
    else:
        print(text, end="")
    return 0


def pages(package: Path = Path(anytpu.__file__).parent) -> dict[str, Path]:
    """Return the file of each page by its name, "plan" or "decisions/0013-planning".

    Args:
        package: the folder of the package. An installed package has the pages; a source tree has them beside `src`.
    """
    folder = next(folder for folder in (package / "docs", package.parents[1] / "docs") if folder.is_dir())
    return {
        path.relative_to(folder).with_suffix("").as_posix(): path
        for pattern in ("*.md", "*/*.md")
        for path in sorted(folder.glob(pattern))
    }


def _page(name: str, files: dict[str, Path]) -> Path:
    page = name.removeprefix("docs/").removesuffix(".md")
    if page in files:
        return files[page]
    near = difflib.get_close_matches(page, files, n=1, cutoff=0.4)
    hint = f"did you mean `anytpu docs {near[0]}`? " if near else ""
    raise SettingError(f"there is no page {name!r}; {hint}`anytpu docs` lists the pages")


def _title(path: Path) -> str:
    with path.open(encoding="utf-8") as lines:
        return next(lines).removeprefix("# ").strip()


COMMAND = Command(
    name="docs",
    summary="print a page of the documentation",
    description="""\
Print a page of the documentation, such as getting_a_tpu. Without a name, list the
pages.

    anytpu docs
    anytpu docs getting_a_tpu | less
""",
    add_arguments=add_arguments,
    run=run,
)
