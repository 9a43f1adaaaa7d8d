"""The codebase tests itself: floors, cycles, exports, private names, documentation. `scripts/house` measures its form.

Each failure names the file and the line.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import re
import subprocess
from collections.abc import Iterator

import pytest

from anytpu._by_name import OBJECTS, load
from source_tree import ROOT, Definition, Module, folder_pairs, imports_of, modules

FLOORS = (
    {
        "errors",
        "units",
        "_by_name",
        "_calls",
        "_contexts",
        "_env",
        "_jax",
        "_keras",
        "_keras_layers",
        "_launched",
        "_pci",
        "_restarts",
        "showing",
        "files",
    },
    {"program", "system"},
    {"engine", "sharding"},
    {"strategy", "pipeline"},
    {"embedding", "summary"},
    {"train", "launch", "layers"},
    {"checking", "report", "bench"},
    {"cli"},
    {"planning", "chip", "migrate", "worker"},
    {"__init__", "__main__"},
)
ROOMS = {"planning", "chip", "migrate", "worker"}
# Siblings that may be imported after all: a Program's layout is over cores, every part may raise our errors and
# show a size, the command line is a client of the public names, and `python -m anytpu` is the command line.
ALLOWED_SIBLINGS = {
    ("program", "anytpu.system.cores"),
    *(("_env", module) for module in ("anytpu.errors", "anytpu._jax", "anytpu._launched", "anytpu._pci")),
    ("showing", "anytpu._by_name"),
    ("_restarts", "anytpu._env"),
    ("_launched", "anytpu.errors"),
    ("_keras_layers", "anytpu._keras"),
    *((part, "anytpu._contexts") for part in ("_jax", "_keras_layers")),
    *(("files", module) for module in ("anytpu.units", "anytpu._env")),
    *((part, "anytpu") for part in ("cli", *sorted(ROOMS))),
    ("__main__", "anytpu.cli"),
}
READS_ENVIRONMENT = {"anytpu._env"}
READS_PRIVATE_KERAS = {"anytpu._keras", "anytpu._keras_layers"}
READS_PRIVATE_JAX = {"anytpu._jax"}

# A path of the machine that something was built on: somebody's home, a mount, a scratch folder at the root.
BUILD_PATH = re.compile(
    r"(?<![\w.}$<-])/(?:work|root|home/[\w.-]+|Users/[\w.-]+|opt/(?:wheels|pypi[\w-]*)|mnt/[\w.-]+)/"
)

# The path of a private name of JAX: below `jaxlib`, or with a part that begins with an underscore.
PRIVATE_JAX = re.compile(r"(jaxlib\.|jax\.(\w+\.)*_)\S*")


def part_of(name: str) -> str:
    """Return the part of anytpu that a module belongs to: `anytpu.engine.loop` to "engine", `anytpu` to "__init__"."""
    return name.split(".")[1] if "." in name else "__init__"


def floor_of(name: str) -> int:
    return next(number for number, parts in enumerate(FLOORS) if part_of(name) in parts)


def is_allowed(importer: str, imported: str) -> bool:
    own, other = part_of(importer), part_of(imported)
    if own == other or any(own == sibling and imported == module for sibling, module in ALLOWED_SIBLINGS):
        return True
    return floor_of(imported) < floor_of(importer)


def report(faults: list[str]) -> str:
    return "\n" + "\n".join(faults)


@pytest.mark.parametrize(
    ("importer", "imported", "allowed"),
    [
        ("anytpu.engine.loop", "anytpu.program.program", True),
        ("anytpu.program.program", "anytpu.engine.loop", False),
        ("anytpu.program.program", "anytpu.system.cores", True),
        ("anytpu.program.program", "anytpu.system.chips", False),
        ("anytpu.system.cores", "anytpu.program.program", False),
        ("anytpu.strategy.scope", "anytpu.pipeline", False),
        ("anytpu.train.fit", "anytpu", False),
        ("anytpu.cli.env", "anytpu", True),
        ("anytpu.cli.env", "anytpu.planning", False),
        ("anytpu.migrate.replaced.table", "anytpu.planning", False),
        ("anytpu.planning.hlo", "anytpu.report.terminal", True),
    ],
)
def test_floors_bite(importer: str, imported: str, allowed: bool):
    assert is_allowed(importer, imported) is allowed


def test_imports_are_found():
    text = """
from __future__ import annotations
import os, anytpu.errors as e
from . import backend
from ..system.cores import Core, Kind
def late():
    from anytpu.program import program
    return importlib.import_module("anytpu.pipeline.named"), import_module(name)
"""
    module = Module("anytpu.engine.made_up", ROOT / "src/anytpu/engine/made_up.py", text, ast.parse(text))
    assert [(i.module, i.line) for i in imports_of(module)] == [
        ("anytpu.errors", 3),
        ("anytpu.engine.backend", 4),
        ("anytpu.system.cores", 5),
        ("anytpu.program.program", 7),
        ("anytpu.pipeline.named", 8),
    ]


def test_every_module_has_a_floor():
    known = set().union(*FLOORS)
    faults = [
        f"{m.at(1)}: {part_of(m.name)} is on no floor" for m in modules().values() if part_of(m.name) not in known
    ]
    assert not faults, report(faults)


def test_imports_only_go_down():
    faults = [
        f"{module.at(i.line)}: {module.name} (floor {floor_of(module.name)}) "
        f"imports {i.module} (floor {floor_of(i.module)})"
        for module in modules().values()
        for i in imports_of(module)
        if not is_allowed(module.name, i.module)
    ]
    assert not faults, report(faults)


def test_nobody_imports_a_room():
    """A room knows the floors below it. Only the public names and the table of `_by_name` know a room."""
    faults = [
        f"{module.at(i.line)}: {module.name} imports {i.module}; load it by name"
        for module in modules().values()
        for i in imports_of(module)
        if part_of(i.module) in ROOMS and part_of(module.name) not in {part_of(i.module), "__init__"}
    ]
    assert not faults, report(faults)


def test_no_two_folders_import_each_other():
    """At any depth: a folder and its parent do not either."""
    faults = [f"{a} and {b}" for a, b in folder_pairs()]
    assert not faults, report(faults)


def test_no_import_cycles():
    graph = {name: {i.module: module.at(i.line) for i in imports_of(module)} for name, module in modules().items()}
    faults, done = [], set()

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            circle = [*path[path.index(name) :], name]
            faults.append("\n  ".join(f"{graph[a][b]}: {a} imports {b}" for a, b in itertools.pairwise(circle)))
        elif name not in done:
            for imported in graph[name]:
                visit(imported, [*path, name])
            done.add(name)

    for name in graph:
        visit(name, [])
    assert not faults, report(faults)


def test_environment_is_read_in_one_file():
    names = {"environ", "environb", "getenv", "putenv", "unsetenv"}
    faults = [
        f"{module.at(node.lineno)}: reads the environment; only _env.py may"
        for module in modules().values()
        if module.name not in READS_ENVIRONMENT
        for node in ast.walk(module.tree)
        if (isinstance(node, ast.Attribute) and node.attr in names and ast.unparse(node.value) == "os")
        or (isinstance(node, ast.ImportFrom) and node.module == "os" and names & {a.name for a in node.names})
    ]
    assert not faults, report(faults)


def names_private_keras(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(a.name.startswith("keras.src") for a in node.names)
    if isinstance(node, ast.ImportFrom):
        module = node.module or ""
        return module.startswith("keras.src") or (module == "keras" and any(a.name == "src" for a in node.names))
    if isinstance(node, ast.Attribute):
        return ast.unparse(node) == "keras.src"
    # A name in a string, for import_module or a patch; a sentence that speaks of it has a space.
    return (
        isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(re.match(r"keras\.src\S*$", node.value))
    )


def test_private_keras_is_in_two_files():
    faults = [
        f"{module.at(node.lineno)}: uses a private name of Keras; only _keras.py and _keras_layers.py may"  # pyright: ignore[reportAttributeAccessIssue]
        for module in modules().values()
        if module.name not in READS_PRIVATE_KERAS
        for node in ast.walk(module.tree)
        if names_private_keras(node)
    ]
    assert not faults, report(faults)


def names_private_jax(module: Module) -> Iterator[ast.AST]:
    """Yield the imports, attributes and strings that name `jaxlib`, or a name of JAX with an underscore."""
    from_jax: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            home = f"{node.module}." if isinstance(node, ast.ImportFrom) and not node.level else ""
            for alias in node.names:
                path = f"{home}{alias.name}"
                if PRIVATE_JAX.match(f"{path}."):
                    yield node
                if path.split(".")[0] == "jax":
                    from_jax.add(alias.asname or (alias.name if home else "jax"))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and PRIVATE_JAX.fullmatch(node.value):
            yield node
    for node in ast.walk(module.tree):
        is_private = isinstance(node, ast.Attribute) and re.match("_[a-z]", node.attr)
        if is_private and ast.unparse(node.value).split(".")[0] in from_jax:  # pyright: ignore[reportAttributeAccessIssue]
            yield node


def test_private_names_of_jax_are_found():
    text = """
import jax
import jaxlib.mlir
from jax._src import core
from jax.interpreters import mlir
rules, devices = mlir._lowerings, jax.devices()._value
bridge = sys.modules.get("jax._src.xla_bridge")
sentence = "jax._src is private", importlib.metadata.version("jaxlib")
"""
    module = Module("anytpu.engine.made_up", ROOT / "src/anytpu/engine/made_up.py", text, ast.parse(text))
    assert sorted({node.lineno for node in names_private_jax(module)}) == [3, 4, 6, 7]  # pyright: ignore[reportAttributeAccessIssue]


def test_private_jax_is_in_one_file():
    faults = [
        f"{module.at(node.lineno)}: uses a private name of JAX; only _jax.py may"  # pyright: ignore[reportAttributeAccessIssue]
        for module in modules().values()
        if module.name not in READS_PRIVATE_JAX
        for node in names_private_jax(module)
    ]
    assert not faults, report(faults)


@pytest.mark.parametrize("name", OBJECTS)
def test_what_is_loaded_by_name_exists(name: str):
    assert OBJECTS[name].partition(":")[0] in modules()
    assert load(name) is not None


def test_contributing_shows_the_floors():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d) \| (.*?) \|", text, re.MULTILINE)
    shown = {int(floor): {re.sub(r"(\.py|/)$", "", part) for part in re.findall("`(.*?)`", row)} for floor, row in rows}
    assert shown == dict(enumerate(FLOORS))


def public_definitions(body: list[ast.stmt]) -> Iterator[Definition]:
    for node in body:
        if isinstance(node, Definition) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public_definitions(node.body)


def is_part_of_another(node: Definition) -> bool:
    """Tell whether a definition has its documentation elsewhere: a property's setter, an overload, an override."""
    return any(re.search(r"\.(setter|deleter)$|overload$|override$", ast.unparse(d)) for d in node.decorator_list)


def test_public_names_are_documented():
    faults = [f"{m.at(1)}: the module has no docstring" for m in modules().values() if not ast.get_docstring(m.tree)]
    faults += [
        f"{module.at(node.lineno)}: {node.name} has no docstring"
        for module in modules().values()
        for node in public_definitions(module.tree.body)
        if not ast.get_docstring(node) and not is_part_of_another(node)
    ]
    assert not faults, report(faults)


def bound_names(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the public names of anytpu that a module binds, also those under `if TYPE_CHECKING`."""
    for node in body:
        if isinstance(node, ast.If):
            yield from bound_names(node.body)
        elif isinstance(node, Definition):
            yield node.name
        elif isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").split(".")[0] == "anytpu"):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


PACKAGES = [name for name, module in modules().items() if module.is_package]


@pytest.mark.parametrize("name", PACKAGES)
def test_exports_are_what_exists(name: str):
    module, package = modules()[name], importlib.import_module(name)
    bound = {n for n in bound_names(module.tree.body) if not n.startswith("_")}
    listed = list(getattr(package, "__all__", []))
    assert len(listed) == len(set(listed)), f"{module.at(1)}: __all__ names something twice: {sorted(listed)}"
    public = {n for n in listed if not n.startswith("_")}
    assert public == bound, (
        f"{module.at(1)}: not in __all__: {sorted(bound - public)}; only there: {sorted(public - bound)}"
    )
    missing = [n for n in listed if not hasattr(package, n)]
    assert not missing, f"{module.at(1)}: __all__ names what does not exist: {missing}"


def test_no_path_of_a_build_machine():
    listing = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    paths = [
        ROOT / name for name in subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split("\0")
    ]
    faults = [
        f"{path.relative_to(ROOT)}:{number}: {found.group()}"
        for path in paths
        if path.is_file()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if (found := BUILD_PATH.search(line))
    ]
    assert not faults, report(faults)


def test_each_folder_of_tests_has_a_core():
    """tests/core.txt names files that exist, and at least one of each folder."""
    files = [line for line in (ROOT / "tests/core.txt").read_text().splitlines() if not line.startswith("#")]
    missing = [file for file in files if not (ROOT / file).is_file()]
    assert not missing, f"tests/core.txt names files that do not exist: {', '.join(missing)}"
    folders = {path.parent.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").glob("*/**/test_*.py")}
    without = folders - {file.split("/")[1] for file in files}
    assert not without, f"tests/core.txt has no file of {', '.join(sorted(without))}"
