"""Names that a step's code reads, and the packages whose code is not followed.

Idea: byte-code names each global and each attribute that it reads. So a step depends only on attributes that its code
names. Its code is that of its functions, of functions inside them, and of the methods of the objects that it uses.

Rule: the names are an upper bound. Code that computes a name, as `getattr(self, name)` does, reads all attributes. The
standard library and installed packages are not followed, except the package that the step itself is in.
"""

from __future__ import annotations

import dis
import importlib.util
import os
import sys
import sysconfig
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

from anytpu.program.remembered import Remembered

ALL = "*"
"""Stands for all attributes."""

_READS_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_READS_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"})
_READS_NAME = _READS_GLOBAL | _READS_ATTRIBUTE
_READS_BY_NAME = frozenset({"getattr", "attrgetter", "methodcaller"})
_READS_ALL = frozenset({"vars", "asdict", "astuple", "fields", "__dict__"})
_FRAMEWORKS = frozenset({"anytpu", "builtins", "equinox", "flax", "jax", "jaxlib", "keras", "numpy", "optax"})


class CodeReads(NamedTuple):
    """Names that a code object and its nested ones read.

    Attributes:
        global_names: names of globals, in order.
        attributes: names of attributes, and of what it imports from modules; with `ALL` if it may read any.
        imports: level and name of each module that it imports when it runs.
    """

    global_names: tuple[str, ...]
    attributes: frozenset[str]
    imports: tuple[tuple[int, str], ...]

    def imported(self, names: dict[str, Any]) -> list[str]:
        """Return the full names of the modules that the code imports, for functions with these globals."""
        package = names.get("__package__") or ""
        full = [importlib.util.resolve_name("." * level + name, package) for level, name in self.imports]
        return [name for name in full if name in sys.modules]


_READS: Remembered[CodeReads] = Remembered()


def reads_of(code: types.CodeType) -> CodeReads:
    """Return the names that a code object and its nested ones read."""
    known = _READS.get(code)
    if known is not None:
        return known
    instructions = list(dis.get_instructions(code))
    names = [one.argval for one in instructions if one.opname in _READS_GLOBAL]
    attributes = {one.argval for one in instructions if one.opname in _READS_ATTRIBUTE}
    imports: list[tuple[int, str]] = []
    if _READS_ALL & attributes.union(names):
        attributes.add(ALL)
    for index, instruction in enumerate(instructions):
        if instruction.opname in _READS_NAME and instruction.argval in _READS_BY_NAME:
            attributes |= set(_texts_of_call(instructions[index + 1 :])) or {ALL}
        if instruction.opname == "IMPORT_NAME":
            imports.append((instructions[index - 2].argval, instruction.argval))
    nested = [reads_of(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return _READS.keep(
        code,
        CodeReads(
            tuple(dict.fromkeys([*names, *(name for inner in nested for name in inner.global_names)])),
            frozenset(attributes.union(*(inner.attributes for inner in nested))),
            tuple(dict.fromkeys([*imports, *(imported for inner in nested for imported in inner.imports)])),
        ),
    )


def _texts_of_call(instructions: list[dis.Instruction]) -> Iterator[str]:
    """Yield the parts of the constant names that the first call takes, as `getattr(x, "a")` and `attrgetter("a.b")`."""
    for instruction in instructions:
        if instruction.opname.startswith(("CALL", "PRECALL")):
            return
        if instruction.opname.startswith(("FORMAT", "BINARY_OP")):
            yield ALL
        if instruction.opname == "LOAD_CONST" and isinstance(instruction.argval, str):
            yield from instruction.argval.split(".")


_STANDARD_LIBRARY = sysconfig.get_path("stdlib") + os.sep
_IS_LIBRARY: dict[str, bool] = dict.fromkeys(_FRAMEWORKS, True)


def is_library(module_name: Any) -> bool:
    """Return whether code of a module is not followed: the standard library, and packages that are installed."""
    package = module_name.partition(".")[0] if isinstance(module_name, str) else ""
    known = _IS_LIBRARY.get(package)
    if known is None:
        module = sys.modules.get(package)
        paths = [str(path) for path in (getattr(module, "__file__", None), *getattr(module, "__path__", ()))]
        known = package in sys.stdlib_module_names or any(
            path.startswith(_STANDARD_LIBRARY) or "site-packages" in path or "dist-packages" in path for path in paths
        )
        _IS_LIBRARY[package] = known
    return known


def follow_package(module_name: Any) -> None:
    """Follow the package of a step, also if it is installed."""
    if isinstance(module_name, str) and module_name.partition(".")[0] not in {*_FRAMEWORKS, *sys.stdlib_module_names}:
        _IS_LIBRARY[module_name.partition(".")[0]] = False
