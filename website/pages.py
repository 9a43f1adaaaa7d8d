"""The pages of the site: those of the repository, and the ones made from its source.

Idea: Sphinx builds one folder. It gets copies of docs/*.md, README.md, CONTRIBUTING.md, CHANGELOG.md and the examples,
with links that fit there. The list of names, the list of errors and the lists of pages are written from the source.

Rule: a link to a file that is no page becomes its text.
"""

from __future__ import annotations

import ast
import base64
import builtins
import fnmatch
import importlib
import inspect
import itertools
import json
import os
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

import anytpu
from source_tree import ROOT, modules

LINK = re.compile(r"(?P<is_picture>!?)\[(?P<label>[^]]*)\]\((?!https?:|#)(?P<target>[^)#\s]+)(?P<anchor>#[^)]*)?\)")
PROMISES = tomllib.loads((ROOT / "scripts/prices.toml").read_text(encoding="utf-8"))["promise"]
BUILT_IN = vars(builtins).keys()
NAMED_PAGES = {"README.md": "overview", "CONTRIBUTING.md": "contributing", "CHANGELOG.md": "changelog"}

PARTS = {
    "strategy": "Systems, strategies and replicas",
    "train": "Keras models and their state",
    "pipeline": "Input data",
    "planning": "Plans",
    "checking": "Checks",
    "chip": "The first TPU",
    "embedding": "Embedding tables",
    "layers": "Layers",
    "summary": "TensorBoard",
    "system": "Finding and starting a system",
    "program": "Programs",
    "engine": "Devices",
    "bench": "Comparisons of systems",
    "migrate.estimator": "TPUEstimator",
    "migrate.keras_to_tpu": "keras_to_tpu_model",
    "migrate.low_level": "TensorFlow 1",
    "errors": "Errors",
}
"""Part of the package -> the title of its page."""


def write_pages(folder: Path) -> None:
    """Write all pages to an empty folder.

    Args:
        folder: the folder of Sphinx's sources.
    """
    pages = repository_pages()
    texts = {page: rewritten(path, pages, page) for path, page in pages.items() if path.endswith(".md")}
    texts |= {page: example_page(path) for path, page in pages.items() if path.endswith(".py")}
    decisions = sorted(page for page in pages.values() if page.startswith("decisions/"))
    texts["decisions/index"] = index_page(
        "Decisions", "Each says a context, a choice, and what was measured.", decisions
    )
    examples = sorted(page for page in pages.values() if page.startswith("examples/"))
    texts["examples/index"] = index_page("Examples", "Each is one file, and runs in a minute with `--smoke`.", examples)
    notebooks = {f"notebooks/{path.stem}": path for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
    texts |= {page: notebook_page(path, folder / page) for page, path in notebooks.items()}
    texts["notebooks/index"] = index_page("Notebooks", "Each installs what it needs, and runs anywhere.", notebooks)
    texts["troubleshooting"] = errors_page(pages)
    texts |= name_pages()
    for page, text in texts.items():
        path = folder / f"{page}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (folder / "demo.svg").write_bytes((ROOT / "docs/demo.svg").read_bytes())


def repository_pages() -> dict[str, str]:
    """Return the page of each file that is one: "docs/plan.md" -> "plan"."""
    docs = {f"docs/{path.relative_to(ROOT / 'docs').as_posix()}": path for path in (ROOT / "docs").rglob("*.md")}
    pages = {name: name.removeprefix("docs/").removesuffix(".md") for name in docs}
    examples = {f"examples/{path.name}": f"examples/{path.stem}" for path in (ROOT / "examples").glob("*.py")}
    return {**pages, **examples, **NAMED_PAGES, "website/index.md": "index"}


def rewritten(path: str, pages: dict[str, str], page: str) -> str:
    """Return a file's text, with links that fit the site.

    Args:
        path: the file in the repository. website/index.md stands for a file of the root.
        pages: the page of each file.
        page: the file's page.
    """
    folder = PurePosixPath("." if path.startswith("website/") else path).parent

    def link(found: re.Match[str]) -> str:
        target = os.path.normpath(folder / found["target"])
        anchor = found["anchor"] or ""
        if target == "docs/demo.svg":
            return f"![{found['label']}](demo.svg)"
        if target == "docs/decisions":
            pages_target = "decisions/index"
        elif path.startswith("website/") and target not in pages:
            pages_target = target.removesuffix(".md")
        elif target in pages:
            pages_target = pages[target]
        else:
            return found["label"]
        start = PurePosixPath(page).parent
        label = title_of(target) if target.endswith(found["label"]) and target.endswith(".md") else found["label"]
        return f"[{label}]({os.path.relpath(pages_target, start)}.md{anchor})"

    return LINK.sub(link, (ROOT / path).read_text(encoding="utf-8"))


def example_page(path: str) -> str:
    """Return the page of an example: its title and its text."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return f"# {Path(path).name}\n\n```python\n{text}```\n"


def notebook_page(path: Path, pictures: Path) -> str:
    """Return the page of a notebook that ran, and write its pictures.

    Args:
        path: the notebook, a JSON file.
        pictures: folder for its pictures.
    """
    blocks = []
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        source = "".join(cell["source"])
        blocks.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            shown = output.get("data", {})
            if "image/png" in shown:
                pictures.mkdir(parents=True, exist_ok=True)
                (pictures / f"{number}.png").write_bytes(base64.b64decode(shown["image/png"]))
                blocks.append(f"![the picture that the cell above shows]({path.stem}/{number}.png)")
            else:
                text = "".join(output.get("text") or shown["text/plain"]).rstrip()
                blocks.append(f"```text\n{text}\n```")
    return "\n\n".join(blocks) + "\n"


def index_page(title: str, opening: str, pages: Iterable[str]) -> str:
    """Return a page that lists the pages of a folder."""
    names = "\n".join(PurePosixPath(page).name for page in pages)
    return f"# {title}\n\n{opening}\n\n```{{toctree}}\n:maxdepth: 1\n{names}\n```\n"


def name_pages() -> dict[str, str]:
    """Return a page for each part of the package, with all of its public names, and the list of these pages."""
    names = defaultdict(list)
    for name, module in anytpu._MODULES.items():
        part = next(part for part in PARTS if f"{module}.".startswith(f"{part}."))
        names[part].append(f"anytpu.{name}")
    for name in sorted(anytpu._SUBMODULES):
        module = importlib.import_module(f"anytpu.{name}")
        listed = getattr(module, "__all__", None) or [n for n, v in vars(module).items() if is_own(v, module)]
        names[name] += [f"anytpu.{name}.{one}" for one in listed if f"anytpu.{one}" not in names[name]]
    texts = {f"api/{part.replace('.', '_')}": name_page(part, names[part]) for part in PARTS}
    opening = (
        "`import anytpu as tpu` gives each name that is not in a part: `anytpu.connect` is `tpu.connect`, and\n"
        "`anytpu.pipeline.Dataset` is `tpu.pipeline.Dataset`. The examples are tested."
    )
    return {**texts, "api/index": index_page("The Python names", opening, texts)}


def is_own(value: object, module: object) -> bool:
    """Return whether a module defines a value that users may use."""
    named = inspect.isclass(value) or inspect.isfunction(value)
    return named and value.__module__ == module.__name__ and not value.__name__.startswith("_")


def name_page(part: str, names: list[str]) -> str:
    """Return the page of one part."""
    blocks = [f"# {PARTS[part]}\n"]
    for name in sorted(names, key=str.lower):
        module, _, short = name.rpartition(".")
        value = getattr(importlib.import_module(module), short)
        if inspect.isclass(value) and part == "layers":
            block = f"It is `{value.__module__.rpartition('.')[0]}.{short}`."
        elif callable(value):
            directive = f"autoclass:: {name}\n   :members:" if inspect.isclass(value) else f"autofunction:: {name}"
            block = f"```{{eval-rst}}\n.. {directive}\n```"
        else:
            block = constant_text(module, short)
        blocks.append(f"## {name.removeprefix('anytpu.')}\n\n{block}\n")
    return "\n".join(blocks)


def constant_text(package: str, name: str) -> str:
    """Return the docstring below a constant, in whichever module of a package it is defined."""
    for module in (module for path, module in modules().items() if f"{path}.".startswith(f"{package}.")):
        for statement, text in itertools.pairwise(module.tree.body):
            targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return " ".join(ast.literal_eval(text.value).split()) if isinstance(text, ast.Expr) else ""
    return ""


def errors_page(pages: dict[str, str]) -> str:
    """Return the page of the errors: each class, its meaning, and each text that it is raised with."""
    classes = {node.name: ast.get_docstring(node) for node in modules()["anytpu.errors"].tree.body if is_error(node)}
    texts = defaultdict(set)
    for module in modules().values():
        path = module.path.relative_to(ROOT / "src/anytpu").as_posix()
        for error, text in messages(module.tree, set(classes)):
            texts[error].add((text, page_of(path)))
    blocks = [
        "# Errors by their text\n",
        "Search this page for words of the message that you saw. `<...>` stands for a value of your program.",
        "A message says what is wrong, what was expected and what to type next. The page above it explains more.\n",
        "`except anytpu.errors.AnyTPUError` catches all of them.\n",
    ]
    for error, meaning in classes.items():
        blocks += [f"## {error}\n", (meaning or "").split("\n\n")[0] + "\n"]
        for page, group in itertools.groupby(
            sorted(texts[error], key=lambda pair: pair[::-1]), key=lambda pair: pair[1]
        ):
            about = f"[{title_of(page)}]({pages[page]}.md)" if page else "Every part"
            blocks += [f"{about}:\n", *(f"- {code(text)}" for text, _ in group), ""]
    return "\n".join(blocks)


def title_of(path: str) -> str:
    """Return the title of a Markdown file of the repository."""
    with (ROOT / path).open(encoding="utf-8") as lines:
        return next(lines).removeprefix("# ").strip()


def is_error(node: ast.stmt) -> bool:
    """Return whether a statement of errors.py defines an error."""
    return isinstance(node, ast.ClassDef)


def messages(tree: ast.AST, classes: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the class and the text of each error that is made with a literal text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
            text = text_of(node.args[0])
            if name in classes and text and len(re.sub("<[^>]*>", "", text)) > 12:
                yield name, text


def text_of(node: ast.expr) -> str | None:
    """Return a literal text, with `<name>` for each value in it; None for another expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = node.value
    elif isinstance(node, ast.JoinedStr):
        parts = [p.value if isinstance(p, ast.Constant) else f"<{placeholder(p.value)}>" for p in node.values]
        text = "".join(map(str, parts))
    else:
        return None
    return " ".join(text.split())


def placeholder(value: ast.expr) -> str:
    """Return the name of a value in a message, "..." if it has none."""
    if isinstance(value, ast.Call):
        is_of_argument = isinstance(value.func, ast.Name) and value.func.id in BUILT_IN and value.args
        return placeholder(value.args[0] if is_of_argument else value.func)
    if isinstance(value, ast.Attribute):
        return "..." if value.attr == "join" else value.attr.strip("_")
    return value.id.strip("_") if isinstance(value, ast.Name) else "..."


def page_of(path: str) -> str:
    """Return the page of the promise that a source file belongs to (scripts/prices.toml)."""
    for promise in PROMISES:
        if any(
            path.count("/") == pattern.count("/") and fnmatch.fnmatch(path, pattern) for pattern in promise["files"]
        ):
            return promise["page"]
    return ""


def code(text: str) -> str:
    """Return a text as Markdown code, whatever backticks it has."""
    ticks = "``" if "`" in text else "`"
    space = " " if "`" in text else ""
    return f"{ticks}{space}{text}{space}{ticks}"
