"""The process of a trial: run a ported program, cut to a few steps, and write down its first failure.

Idea: the program's syntax tree is changed before it runs. A loop that trains ends after a few rounds, and `fit` and
`train` get fewer rows and steps. Other code runs as written. A name of TensorFlow fails where it is used.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from anytpu.migrate.port.trial_files import guard

ROUNDS = 2
"""Number of rounds of a loop that trains, and of batches of a `fit`."""
MAX_ROUNDS = 64
"""Number of rounds of a loop that has not set a name that is read behind it."""
MAX_EPOCHS = 10
_TRAINING = frozenset(
    ["train_on_batch", "apply_gradients", "apply", "apply_updates", "assign_sub", "fit", "train", "minimize"]
)
_RUNS = ("run", "run_steps")
"""Methods of a strategy that train if the function that they get trains."""
_WRAPPED = frozenset(["fit", "train", "evaluate"])


class NotPortedError(Exception):
    """A line uses TensorFlow, which a ported program does not have."""


# Phase 1: change the syntax tree.


def cut_program(tree: ast.Module) -> ast.Module:
    """Return a program whose training loops and `fit` calls are short."""
    return ast.fix_missing_locations(_Cutter(tree).visit(tree))


def _training_functions(tree: ast.Module) -> dict[str, bool]:
    """Map each function of a program to whether it trains, also through other functions."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    own = {function.name: False for function in functions}
    while (more := own | {function.name: True for function in functions if _trains(function, own)}) != own:
        own = more
    return own


def _trains(node: ast.AST, functions: dict[str, bool]) -> bool:
    """Return whether code updates weights, itself or by a function that it calls or passes on."""
    for call in [part for part in ast.walk(node) if isinstance(part, ast.Call)]:
        if isinstance(call.func, ast.Attribute) and call.func.attr in _TRAINING:
            return True
        if any(functions.get(_last_name(part)) for part in (call.func, *call.args)):
            return True
        is_run = isinstance(call.func, ast.Attribute) and call.func.attr in _RUNS
        passed = call.args[0] if is_run and call.args else None
        if passed is not None and not isinstance(passed, ast.Lambda) and _last_name(passed) not in functions:
            return True  # The function is not known: it may train.
    return False


def _last_name(node: ast.AST) -> str:
    return getattr(node, "attr", "") or getattr(node, "id", "")


class _Cutter(ast.NodeTransformer):
    def __init__(self, tree: ast.Module) -> None:
        self._tree, self._functions = tree, _training_functions(tree)

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        if any(_trains(statement, self._functions) for statement in node.body):
            node.iter = _call("__cut__", node.iter, *self._needed(node))
        return node

    def visit_While(self, node: ast.While) -> ast.AST:
        self.generic_visit(node)
        if any(isinstance(part, ast.NamedExpr) for part in ast.walk(node.test)) or not _trains(node, self._functions):
            return node
        empty = ast.arguments([], [], None, [], [], None, [])
        rounds = _call("__while__", ast.Lambda(empty, node.test), *self._needed(node))
        target = ast.Name("__round__", ast.Store())
        return ast.copy_location(ast.For(target, rounds, node.body, node.orelse), node)

    def _needed(self, loop: ast.For | ast.While) -> list[ast.expr]:
        """Return the names that a loop's body sets and a line behind it reads: it ends when they have values."""
        names = [node for node in ast.walk(self._tree) if isinstance(node, ast.Name) and hasattr(node, "lineno")]
        read = {n.id for n in names if isinstance(n.ctx, ast.Load) and n.lineno > (loop.end_lineno or 0)}
        body = [part for statement in loop.body for part in ast.walk(statement)]
        read &= {node.id for node in body if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        return [ast.Constant(name) for name in sorted(read)]

    def visit_Import(self, node: ast.Import) -> Any:
        old = [alias for alias in node.names if alias.name.startswith("tensorflow")]
        node.names = [alias for alias in node.names if alias not in old]
        bound = [(alias.asname or alias.name.partition(".")[0], alias) for alias in old]
        missing = [_missing(node, name, alias.name if alias.asname else name) for name, alias in bound]
        return [*missing, *([node] if node.names else [])]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        if node.level or not (node.module or "").startswith("tensorflow"):
            return node
        return [_missing(node, alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names]

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if ast.unparse(node.func).endswith("TPUClusterResolver"):
            _take_any_cores(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr in _WRAPPED:
            return ast.copy_location(
                ast.Call(ast.Name("__short__", ast.Load()), [node.func, *node.args], node.keywords), node
            )
        return node


def _missing(node: ast.stmt, name: str, full_name: str) -> ast.stmt:
    """Return the statement in the place of an import of TensorFlow."""
    made = ast.Call(ast.Name("__missing__", ast.Load()), [ast.Constant(full_name)], [])
    return ast.copy_location(ast.Assign([ast.Name(name, ast.Store())], made), node)


def _take_any_cores(resolver: ast.Call) -> None:
    """Let a program that asks for this machine's own TPU run on any cores."""
    for argument in [*resolver.args[:1], *(keyword.value for keyword in resolver.keywords if keyword.arg == "tpu")]:
        if isinstance(argument, ast.Constant) and argument.value == "local":
            argument.value = ""


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), list(arguments), []), arguments[0])


# Phase 2: the functions that the changed tree calls.


def _cut(rounds: Iterable[Any], *needed: str) -> Iterator[Any]:
    for count, item in enumerate(rounds):
        has_all = set(needed) <= set(sys._getframe(1).f_locals)  # those of the loop
        if count >= MAX_ROUNDS or (count >= ROUNDS and has_all):
            return
        yield item


def _while(test: Callable[[], Any], *needed: str) -> Iterator[Any]:
    return _cut(iter(lambda: bool(test()), False), *needed)


def call_short(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call `fit`, `train` or `evaluate` with fewer steps and rows; other functions of these names as they are."""
    try:
        bound = inspect.signature(function).bind_partial(*args, **kwargs)
        names = set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return function(*args, **kwargs)
    arguments = bound.arguments
    if {"steps_per_epoch", "epochs"} <= names:
        _shorten_fit(arguments)
    elif "max_steps" in names or "steps" in names:
        for name in ("max_steps", "steps"):
            if isinstance(arguments.get(name), int):
                arguments[name] = min(arguments[name], ROUNDS)
    return function(*bound.args, **bound.kwargs)


def _shorten_fit(arguments: dict[str, Any]) -> None:
    arguments["epochs"] = min(arguments.get("epochs", 1), max(MAX_EPOCHS, arguments.get("initial_epoch", 0) + 1))
    rows = ROUNDS * (arguments.get("batch_size") or 32)
    if isinstance(arguments.get("steps_per_epoch"), int):
        arguments["steps_per_epoch"] = min(arguments["steps_per_epoch"], ROUNDS)
    else:
        for name in ("x", "y", "sample_weight"):
            arguments.update({name: _first(arguments[name], rows)} if name in arguments else {})
    if isinstance(arguments.get("validation_steps"), int):
        arguments["validation_steps"] = min(arguments["validation_steps"], ROUNDS)
    elif arguments.get("validation_data") is not None:
        validation = arguments["validation_data"]
        is_pair = isinstance(validation, tuple)
        arguments["validation_data"] = (
            tuple(_first(x, rows) for x in validation) if is_pair else _first(validation, rows)
        )


def _first(value: Any, rows: int) -> Any:
    """Return the first rows of an array or a tree of arrays, the first batches of a data set, and other data whole."""
    if isinstance(value, dict):
        return {name: _first(part, rows) for name, part in value.items()}
    if isinstance(value, list | tuple) and value and hasattr(value[0], "shape"):
        return type(value)(_first(part, rows) for part in value)
    array: Any = value
    if hasattr(value, "shape") and len(array.shape) > 0:
        return array[:rows]
    is_dataset = type(value).__name__ == "Dataset" and hasattr(value, "take")
    return array.take(ROUNDS) if is_dataset else value


# Phase 3: TensorFlow is not there.


class _Missing:
    """A name of TensorFlow: it may be looked up and subclassed; calling it is the failure."""

    def __init__(self, name: str, *_: Any) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self._name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotPortedError(f"{self._name} is TensorFlow's")

    def __mro_entries__(self, bases: Any) -> Any:
        raise NotPortedError(f"{self._name} is TensorFlow's")


# Phase 4: run.


def run_program(code: str, path: str, home: str = "") -> dict[str, Any]:
    """Run a program as `__main__`; return its failure as "line" and "error", or an empty dictionary.

    A module of a package in the folder `home` runs as `python -m` runs it, so it may import its neighbours.
    """
    main = types.ModuleType("__main__")
    package = Path(path).parent.relative_to(home).parts if home else ()
    if package:
        main.__package__ = ".".join(package)
        sys.path.insert(1, home)
    main.__dict__.update(__file__=path, __cut__=_cut, __while__=_while, __short__=call_short, __missing__=_Missing)
    sys.modules["__main__"], sys.argv, sys.path[0] = main, [path], str(Path(path).parent)
    try:
        exec(compile(cut_program(ast.parse(code)), path, "exec"), main.__dict__)
    except SystemExit as error:
        return {} if not error.code else {"line": _line_of(error, path), "error": f"the program ended: {error.code}"}
    except BaseException as error:
        text = str(error).strip() or "no message"
        return {"line": _line_of(error, path), "error": f"{type(error).__name__}: {text}"}
    return {}


def _line_of(error: BaseException, path: str) -> int:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return lines[-1] or 1 if lines else 1


def _use_no_window() -> None:
    """Let plots be drawn without a window, where matplotlib is installed."""
    try:
        import matplotlib  # pyright: ignore[reportMissingImports]
    except ImportError:
        return
    matplotlib.use("Agg")


if __name__ == "__main__":
    result, home, program = Path(sys.argv[1]), *sys.argv[2:]
    _use_no_window()
    watch = guard(result.parent, program)
    outcome = run_program(Path(program).read_text(encoding="utf-8"), program, home)
    if watch.refused and not outcome:  # The program caught it.
        outcome = {"line": watch.refused[0][0], "error": f"OutsideError: {watch.refused[0][1]}"}
    result.write_text(json.dumps(outcome), encoding="utf-8")
