"""What the structure tests read: every module of `src/anytpu` as a syntax tree, and what it imports."""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclasses.dataclass(frozen=True)
class Import:
    """One module of anytpu that another imports, and the line."""

    module: str
    line: int


@dataclasses.dataclass(frozen=True)
class Module:
    """One source file: its dotted name, its path, its text and its syntax tree."""

    name: str
    path: Path
    text: str
    tree: ast.Module = dataclasses.field(repr=False)

    def at(self, line: int) -> str:
        """Return "src/anytpu/errors.py:12", what a failure shows."""
        return f"{self.path.relative_to(ROOT)}:{line}"

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"


@functools.cache
def modules() -> dict[str, Module]:
    """Return every module of anytpu by its dotted name."""
    found = {}
    for path in sorted((SOURCE / "anytpu").rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text(encoding="utf-8")
        found[name] = Module(name, path, text, ast.parse(text, str(path)))
    return found


def imports_of(module: Module) -> list[Import]:
    """Return the anytpu modules that a module imports, anywhere in it: also inside functions and `if TYPE_CHECKING`."""
    found = [Import(_nearest(name), line) for name, line in _imported_names(module)]
    return sorted({i for i in found if i.module != module.name}, key=lambda i: (i.line, i.module))


def folder_of(name: str) -> str:
    """Return the folder that holds a module, at any depth: "anytpu.planning.hlo" for "anytpu.planning.hlo.shapes"."""
    return name if modules()[name].is_package else name.rpartition(".")[0]


def folder_pairs() -> list[tuple[str, str]]:
    """Return the pairs of folders, at any depth, that import each other; the files beside the folders are left out."""
    edges = {(folder_of(name), folder_of(i.module)) for name, m in modules().items() for i in imports_of(m)}
    return sorted((a, b) for a, b in edges if a < b and (b, a) in edges and a != "anytpu")


def definitions(tree: ast.AST) -> Iterator[Definition]:
    """Yield every class and function, nested ones too."""
    return (node for node in ast.walk(tree) if isinstance(node, Definition))


def _imported_names(module: Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            home = _home_of(module, node)
            names = [f"{home}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        else:
            continue
        yield from ((name, node.lineno) for name in names if name.split(".")[0] == "anytpu")


def _home_of(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    package = parts if module.is_package else parts[:-1]
    kept = package[: len(package) - (node.level - 1)]
    return ".".join([*kept, *([node.module] if node.module else [])])


def _nearest(name: str) -> str:
    """Return the module that a dotted name lies in: `anytpu.errors.DataError` is in `anytpu.errors`."""
    while name not in modules() and "." in name:
        name = name.rpartition(".")[0]
    return name
