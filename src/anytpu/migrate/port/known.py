"""Public names of the installed anytpu and Keras, read from their source without importing them.

Idea: a ported program may use only names that exist. The source files say which names a package exports, which members
a class has and which keywords a function takes. Reading them takes milliseconds; importing Keras takes seconds.

Rule: the classes themselves are the only list of names, so the porter and the classes cannot disagree.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib.util
from collections.abc import Iterator
from pathlib import Path

_MAX_HOPS = 12
_PACKAGES = ("anytpu", "keras")


@dataclasses.dataclass(frozen=True)
class Definition:
    """A class or a function in a source file.

    Attributes:
        module: full name of the module that defines it.
        node: its syntax tree.
    """

    module: str
    node: ast.ClassDef | ast.FunctionDef

    @property
    def name(self) -> str:
        """Name of the class or function."""
        return self.node.name

    @property
    def is_class(self) -> bool:
        """True for a class."""
        return isinstance(self.node, ast.ClassDef)

    @property
    def is_property(self) -> bool:
        """True for a property of a class."""
        return any(ast.unparse(decorator).endswith("property") for decorator in self.node.decorator_list)


def _full(name: str) -> str:
    """Return a name as the packages write it: `tpu.` is how a program writes `anytpu.`."""
    return f"anytpu.{name.removeprefix('tpu.')}" if name.startswith("tpu.") else name


def exists(name: str) -> bool:
    """Return whether a dotted name of anytpu or Keras exists; True for names of other packages.

    Example:
        >>> exists("keras.layers.Dense"), exists("keras.mixed_precision.experimental"), exists("numpy.nothing")
        (True, False, True)
    """
    name = _full(name)
    home, _, last = name.rpartition(".")
    if name.partition(".")[0] not in _PACKAGES or _module_path(name) is not None:
        return True
    if _module_path(home) is not None:
        return last in _bindings(home) or last in _lazy_names(home)
    owner = find(home)
    return owner is not None and owner.is_class and last in members(owner)


@functools.cache
def find(name: str, hops: int = _MAX_HOPS) -> Definition | None:
    """Return the class or function of a dotted name, through any number of re-exports; None if there is none.

    A name that starts with `tpu.` is one of anytpu.

    Example:
        >>> find("keras.optimizers.Adam").name, find("keras.optimizers.Eve")
        ('Adam', None)
    """
    home, _, last = _full(name).rpartition(".")
    if not home or not hops or home.partition(".")[0] not in _PACKAGES:
        return None
    if _module_path(home) is None:
        owner = find(home, hops - 1)
        return members(owner).get(last) if owner is not None and owner.is_class else None
    return next(iter(_all_found(home, last, hops)), None)


@functools.cache
def ancestors(owner: Definition) -> tuple[Definition, ...]:
    """Return a class and its base classes, nearest first."""
    classes = {owner: None}
    assert isinstance(owner.node, ast.ClassDef)
    for base in owner.node.bases:
        for definition in _all_found(owner.module, ast.unparse(base)):
            if definition.is_class and definition != owner:
                classes.update(dict.fromkeys(ancestors(definition)))
    return tuple(classes)


def is_below(owner: Definition | None, name: str) -> bool:
    """Return whether a definition is the class of a dotted name, or derived from it.

    Example:
        >>> is_below(find("keras.layers.Dense"), "keras.layers.Layer"), is_below(None, "keras.Model")
        (True, False)
    """
    return owner is not None and owner.is_class and find(name) in ancestors(owner)


@functools.cache
def members(owner: Definition) -> dict[str, Definition | None]:
    """Return the members of a class by name: a method's or property's definition, or None for another attribute."""
    result: dict[str, Definition | None] = {}
    for definition in reversed(ancestors(owner)):
        for node in ast.walk(definition.node):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and ast.unparse(node.value) == "self"
            ):
                result.setdefault(node.attr, None)
        assert isinstance(definition.node, ast.ClassDef)
        for statement in definition.node.body:
            if isinstance(statement, ast.FunctionDef):
                result[statement.name] = Definition(definition.module, statement)
                if _is_disabled(statement):
                    del result[statement.name]
            else:
                result.update(dict.fromkeys(_assigned_names(statement)))
    return result


def _is_disabled(method: ast.FunctionDef) -> bool:
    """Return whether a method only says that it is gone, such as `add_metric` of a layer of Keras 3."""
    first = method.body[0]
    return isinstance(first, ast.Raise) and "deprecated" in ast.unparse(first)


@functools.cache
def parameters(function: Definition) -> frozenset[str] | None:
    """Return the keywords that a function, or the constructor of a class, takes; None if it takes any keyword."""
    if isinstance(function.node, ast.FunctionDef):
        return None if function.node.args.kwarg is not None else frozenset(_named_parameters(function.node))
    names: set[str] = set()
    for definition in ancestors(function):
        constructor = next((s for s in definition.node.body if getattr(s, "name", "") == "__init__"), None)
        if not isinstance(constructor, ast.FunctionDef):
            continue
        names |= _named_parameters(constructor) | _taken_from_kwargs(constructor)
        if constructor.args.vararg is not None and constructor.args.kwarg is not None:
            return None  # It only forwards, such as the constructor of keras.Model.
        if constructor.args.kwarg is None or _rejects_rest(constructor):
            return frozenset(names)
    return frozenset(names) if names else None


@functools.cache
def declared(function: Definition) -> ast.arguments | None:
    """Return the parameters of a function, or of the nearest constructor of a class; None if there is none."""
    if isinstance(function.node, ast.FunctionDef):
        return function.node.args
    bodies = (statement for definition in ancestors(function) for statement in definition.node.body)
    return next((s.args for s in bodies if isinstance(s, ast.FunctionDef) and s.name == "__init__"), None)


@functools.cache
def returned_class(function: Definition | None) -> Definition | None:
    """Return the class that a function's or property's annotation promises; None if it promises none."""
    returns = getattr(function.node, "returns", None) if function is not None else None
    if function is None or returns is None:
        return None
    code = returns.value if isinstance(returns, ast.Constant) else ast.unparse(returns)
    results = _all_found(function.module, str(code).partition(" |")[0])
    return results[0] if results and results[0].is_class else None


def public_names(name: str) -> list[str]:
    """Return the public names of a module or a class."""
    owner = find(name)
    names = _bindings(_full(name)) if owner is None else members(owner) if owner.is_class else ()
    return [name for name in names if owner is None or not name.startswith("_")]


def _named_parameters(node: ast.FunctionDef) -> set[str]:
    arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    return {argument.arg for argument in arguments} - {"self", "cls"}


def _rejects_rest(node: ast.FunctionDef) -> bool:
    """Return whether a function raises an error if some of its `**kwargs` are left."""
    rest = node.args.kwarg.arg if node.args.kwarg is not None else ""
    tests = [part for part in ast.walk(node) if isinstance(part, ast.If) and ast.unparse(part.test) == rest]
    return any(isinstance(part, ast.Raise) for test in tests for part in test.body)


def _taken_from_kwargs(node: ast.FunctionDef) -> set[str]:
    """Return the keywords that a function takes out of its `**kwargs`."""
    if node.args.kwarg is None:
        return set()
    name, taken = node.args.kwarg.arg, set()
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and ast.unparse(part.func) in (f"{name}.pop", f"{name}.get") and part.args:
            taken.add(getattr(part.args[0], "value", ""))
        elif isinstance(part, ast.Compare) and [ast.unparse(c) for c in part.comparators] == [name]:
            taken.add(getattr(part.left, "value", ""))
    return {key for key in taken if isinstance(key, str)}


def _all_found(module: str, name: str, hops: int = _MAX_HOPS) -> list[Definition]:
    """Return the definitions of a name as written in a module; several where an `if` chooses one of them."""
    head, _, rest = name.partition(".")
    definitions = []
    for bound in _bindings(module).get(head, ()):
        if isinstance(bound, str):
            definitions.append(find(f"{bound}.{rest}" if rest else bound, hops - 1))
        elif not rest and isinstance(bound, ast.ClassDef | ast.FunctionDef):
            definitions.append(Definition(module, bound))
    return [definition for definition in definitions if definition is not None]


@functools.cache
def _module_path(name: str) -> Path | None:
    """Return the source file of a module; None if there is none."""
    root, *parts = name.split(".")
    if root not in _PACKAGES:
        return None
    spec = importlib.util.find_spec(root)
    if spec is None or not spec.submodule_search_locations:
        return None
    base = Path(spec.submodule_search_locations[0]).joinpath(*parts)
    choices = [base / "__init__.py", *([base.with_suffix(".py")] if parts else [])]
    return next((path for path in choices if path.is_file()), None)


@functools.cache
def _bindings(module: str) -> dict[str, list[ast.ClassDef | ast.FunctionDef | str | None]]:
    """Map each name that a module binds to its definitions, or to the full names that it is imported from."""
    path = _module_path(module)
    bound: dict[str, list[ast.ClassDef | ast.FunctionDef | str | None]] = {}
    if path is None:
        return bound
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for statement in _top_level(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(statement, ast.ClassDef | ast.FunctionDef):
            bound.setdefault(statement.name, []).append(statement)
        elif isinstance(statement, ast.ImportFrom):
            above = package.rsplit(".", statement.level - 1)[0] if statement.level else ""
            home = ".".join(part for part in (above, statement.module) if part)
            for alias in statement.names:
                bound.setdefault(alias.asname or alias.name, []).append(f"{home}.{alias.name}")
        elif isinstance(statement, ast.Import):
            for alias in statement.names:
                name = alias.asname or alias.name.partition(".")[0]
                bound.setdefault(name, []).append(alias.name if alias.asname else name)
        else:
            for name in _assigned_names(statement):
                bound.setdefault(name, []).append(None)
    return bound


@functools.cache
def _lazy_names(module: str) -> frozenset[str]:
    """Return the strings in a module's `__all__`: some names are made on first use only."""
    path = _module_path(module)
    for statement in ast.parse(path.read_text(encoding="utf-8")).body if path is not None else ():
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            constants = [part.value for part in ast.walk(statement.value) if isinstance(part, ast.Constant)]
            return frozenset(constant for constant in constants if isinstance(constant, str))
    return frozenset()


def _top_level(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements of a module, also those below `if` and `try`."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If | ast.Try | ast.With | ast.ExceptHandler):
            yield from _top_level(child)
        elif isinstance(child, ast.stmt):
            yield child


def _assigned_names(statement: ast.AST) -> list[str]:
    targets: list[ast.AST] = [*getattr(statement, "targets", []), getattr(statement, "target", statement)]
    names = [part for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]
    return [name.id for name in names if isinstance(name.ctx, ast.Store)]
