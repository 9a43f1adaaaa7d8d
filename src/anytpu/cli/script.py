"""A function of the user's file, by its name: "train.py:create_model", and the job that it returns.

Idea: the file is loaded as a module of a name of its own, so that what stands under `if __name__ == "__main__":` does
not run; it sees a command line without arguments, and what stands beside it can be imported.

Rule: whatever goes wrong inside the file is told with the line of the file where it did.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from anytpu.errors import SettingError
from anytpu.files.opening import open_file

HOW = "train.py:create_model"
"""How a function of a file is named, for errors."""

_TO_PLAN = (
    "of which nothing can be planned; it must return a compiled Keras model, a pair (model, input_specs) with "
    "input_specs=(x, y), or a pair (step, input_specs) with a JAX function step(state, batch) and "
    "input_specs=(state, batch)"
)


def job_of(name: str, function: str) -> tuple[Any, Any]:
    """Return what a function of a file makes: a job as `program.of` takes it, and its input specs.

    Args:
        name: the path of the file.
        function: the function; it is called without arguments and returns the job, or a pair (job, input_specs). One
            with an argument `devices` is called with the number of devices of each system: it is the job itself, as
            `anytpu.plan` takes it, and the specs are None.

    Raises:
        SettingError: there is no such file or function, it needs arguments, it fails, or returns something else.
    """
    path = Path(name)
    found = _function(path, function)
    if "devices" not in inspect.signature(found).parameters:
        return _pair(name, function, _called(path, function, found))

    def made(devices: int) -> tuple[Any, Any]:
        with _told(path):
            returned = found(devices=devices)
        return _pair(name, function, returned)

    return made, None


def _pair(name: str, function: str, returned: Any) -> tuple[Any, Any]:
    from anytpu.program.makers import is_job

    job, specs = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
    if not is_job(job):
        raise wrong(name, function, returned, _TO_PLAN)
    return job, specs


def returned_by(name: str, function: str) -> Any:
    """Return what a function of a file returns; it is called without arguments.

    Raises:
        SettingError: there is no such file or function, it needs arguments, or it fails.
    """
    path = Path(name)
    return _called(path, function, _function(path, function))


def wrong(name: str, function: str, returned: Any, wanted: str) -> SettingError:
    """Return the error that a function of a file returned something of no use.

    Args:
        name: the path of the file.
        function: the function.
        returned: what it returned.
        wanted: what that is no use for, and what is: "of which nothing can be planned; it must return ...".
    """
    return SettingError(f"{function}() in {Path(name)} returned {_short(returned)}, {wanted}")


def load(path: Path, how: str = HOW) -> ModuleType:
    """Run a file as a module, without what stands under `if __name__ == "__main__":`, and return it.

    Args:
        path: the file.
        how: how a function of a file is named, for errors.

    Raises:
        SettingError: there is no such file, it is no Python, or it fails.
    """
    if path.suffix != ".py":
        raise SettingError(f"{str(path)!r} is no Python file, so it has no functions; name one like {how}")
    check_readable(path, how)
    name = f"_anytpu_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where pickle and dataclasses look for it
    sys.path.insert(0, str(path.parent.resolve()))
    with _told(path), _alone(path):
        spec.loader.exec_module(module)
    return module


def check_readable(path: Path, how: str = HOW) -> None:
    """Check that a file of functions is there and can be read.

    Args:
        path: the file.
        how: how a function of a file is named, for errors.

    Raises:
        SettingError: it is not, or cannot.
    """
    try:
        open_file(path).close()
    except FileNotFoundError as error:
        raise SettingError(f"there is no file {str(path)!r}; {_near_file(path, how)}") from error
    except OSError as error:
        raise SettingError(
            f"{str(path)!r} cannot be read: {error.strerror}; name a function of a file, like {how}"
        ) from error


def _function(path: Path, function: str) -> Callable[..., Any]:
    module = load(path)
    found = vars(module).get(function)
    if callable(found):
        return found
    own = [name for name, one in vars(module).items() if inspect.isfunction(one) and one.__module__ == module.__name__]
    near = difflib.get_close_matches(function, own, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(map(repr, own)) or 'no function at all'}"
    raise SettingError(f"{path} has no function {function!r}; {hint}")


def _called(path: Path, function: str, found: Callable[[], Any]) -> Any:
    _check_takes_nothing(path, function, found)
    with _told(path):
        return found()


def _check_takes_nothing(path: Path, function: str, found: Callable[..., Any]) -> None:
    signature = inspect.signature(found)
    try:
        signature.bind()
    except TypeError as error:
        raise SettingError(
            f"{function}{signature} in {path} is called without arguments ({error}); give each a default, or name "
            "another function, one that calls it"
        ) from error


def _short(value: Any) -> str:
    text = repr(value)
    return f"{text} ({type(value).__name__})" if len(text) <= 60 else f"a {type(value).__name__}"


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Let a file see a command line of its own, without arguments."""
    before = sys.argv
    sys.argv = [str(path)]
    try:
        yield
    finally:
        sys.argv = before


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """Tell of an error inside with the last line of the file that it went through."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise SettingError(f"{_where(path, error)}: {_what(error)}; --traceback shows the whole of it") from error


def _where(path: Path, error: BaseException) -> str:
    if isinstance(error, SyntaxError) and _is_same(path, error.filename):
        return f"{path}, line {error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_same(path, frame.filename)]
    if not frames:
        return str(path)
    inside = "" if frames[-1].name == "<module>" else f", in {frames[-1].name}"
    return f"{path}, line {frames[-1].lineno}{inside}"


def _is_same(path: Path, filename: str | None) -> bool:
    return filename is not None and Path(filename).resolve() == path.resolve()


def _what(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"it ended by sys.exit({error.code!r})"
    said = error.msg if isinstance(error, SyntaxError) else str(error).strip()
    first = said.splitlines()[0] if said else ""
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _near_file(path: Path, how: str) -> str:
    folder = path.parent
    names = sorted(one.name for one in folder.glob("*.py")) if folder.is_dir() else []
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.7)
    return f"did you mean {str(folder / near[0])!r}?" if near else f"name a function of a file, like {how}"
