"""Load a function of the user's file, "train.py:create_model", and the job that it returns.

Idea: the file is loaded as a module with a private name, so code under `if __name__ == "__main__":` does not run. It
sees an empty command line, and it can import files of its folder.

Rule: an error inside the file is reported with the file's line.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
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
"""Example of a function's name on the command line, for errors."""

_TO_PLAN = (
    "which cannot be planned; it must return a compiled Keras model, a pair (model, input_specs) with "
    "input_specs=(x, y), or a pair (step, input_specs) with a JAX function step(state, batch) and "
    "input_specs=(state, batch)"
)


def job_of(name: str, function: str, has_values: bool) -> tuple[Any, Any]:
    """Return a job as `program.of` takes it, and its input specs, from a function in a file.

    Without values, a Keras model is made of shapes, so that one larger than this machine can be planned. If the
    function reads a value, it is called again, and makes the values.

    A function without an argument `devices` is called without arguments; it returns a job or a pair (job, specs). A
    function with an argument `devices` is the job itself, as `anytpu.plan` takes it, and the specs are None.

    Args:
        name: the path of the file.
        function: the name of the function.
        has_values: whether the values of a model are needed.

    Raises:
        SettingError: there is no such file or function, it needs arguments, it fails, or its value is not a job.
    """
    path = Path(name)
    make_job = function_in(path, function)
    if not has_values:
        make_job = _of_shapes(make_job)
    if "devices" not in inspect.signature(make_job).parameters:
        return _job_and_specs(name, function, _call(path, function, make_job))

    def job_for(devices: int) -> tuple[Any, Any]:
        with located_errors(path):
            returned = make_job(devices=devices)
        return _job_and_specs(name, function, returned)

    return job_for, None


def _job_and_specs(name: str, function: str, returned: Any) -> tuple[Any, Any]:
    from anytpu.program.makers import is_job

    job, specs = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
    if not is_job(job):
        raise wrong(name, function, returned, _TO_PLAN)
    return job, specs


def _of_shapes(make_job: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that makes the job in `shapes_only`; if that reads a value, outside of it."""

    @functools.wraps(make_job)
    def make(*args: Any, **kwargs: Any) -> Any:
        from anytpu.program.shapes_only import is_missing_value, shapes_only

        try:
            with shapes_only():
                return make_job(*args, **kwargs)
        except Exception as error:
            if not is_missing_value(error):
                raise
        return make_job(*args, **kwargs)

    return make


def returned_by(name: str, function: str) -> Any:
    """Call a function in a file without arguments, and return its value.

    Raises:
        SettingError: there is no such file or function, it needs arguments, or it fails.
    """
    path = Path(name)
    return _call(path, function, function_in(path, function))


def wrong(name: str, function: str, returned: Any, wanted: str) -> SettingError:
    """Return the error for a function that returned a value of the wrong kind.

    Args:
        name: the path of the file.
        function: the name of the function.
        returned: its value.
        wanted: the end of the message, with the expected value: "which cannot be planned; it must return ...".
    """
    return SettingError(f"{function}() in {Path(name)} returned {_short(returned)}, {wanted}")


def load(path: Path, how: str = HOW) -> ModuleType:
    """Run a file as a module, without its `if __name__ == "__main__":` block, and return the module.

    Args:
        path: the file.
        how: example of a function's name on the command line, for errors.

    Raises:
        SettingError: there is no such file, it is not Python, or it fails.
    """
    if path.suffix != ".py":
        raise SettingError(f"{str(path)!r} is not a Python file; name a function in a file, like {how}")
    check_readable(path, how)
    name = f"_anytpu_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pickle and dataclasses look the module up here
    sys.path.insert(0, str(path.parent.resolve()))
    with located_errors(path), _without_arguments(path):
        if b"\0" in path.read_bytes():  # Python before 3.11.4 raises a ValueError, and later ones a SyntaxError.
            raise SyntaxError("source code string cannot contain null bytes")
        spec.loader.exec_module(module)
    return module


def check_readable(path: Path, how: str = HOW) -> None:
    """Check that a file exists and can be read.

    Args:
        path: the file.
        how: example of a function's name on the command line, for errors.

    Raises:
        SettingError: the file does not exist or cannot be read.
    """
    try:
        open_file(path).close()
    except FileNotFoundError as error:
        raise SettingError(f"there is no file {str(path)!r}; {_near_file(path, how)}") from error
    except OSError as error:
        raise SettingError(
            f"{str(path)!r} cannot be read: {error.strerror}; name a function in a file, like {how}"
        ) from error


def function_in(path: Path, function: str, how: str = HOW) -> Callable[..., Any]:
    """Run a file as `load` does, and return its function of this name.

    Raises:
        SettingError: as `load` does; or the file has no such function.
    """
    module = load(path, how)
    value = vars(module).get(function)
    if callable(value):
        return value
    functions = [(name, member) for name, member in vars(module).items() if inspect.isfunction(member)]
    own = [name for name, member in functions if member.__module__ == module.__name__]
    near = difflib.get_close_matches(function, own, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(map(repr, own)) or 'no function at all'}"
    raise SettingError(f"{path} has no function {function!r}; {hint}")


def _call(path: Path, function: str, target: Callable[[], Any]) -> Any:
    _check_no_arguments(path, function, target)
    with located_errors(path):
        return target()


def _check_no_arguments(path: Path, function: str, target: Callable[..., Any]) -> None:
    signature = inspect.signature(target)
    try:
        signature.bind()
    except TypeError as error:
        raise SettingError(
            f"{function}{signature} in {path} is called without arguments ({error}); give each a default, or name a "
            "function without arguments that calls it"
        ) from error


def _short(value: Any) -> str:
    text = repr(value)
    return f"{text} ({type(value).__name__})" if len(text) <= 60 else f"a {type(value).__name__}"


@contextlib.contextmanager
def _without_arguments(path: Path) -> Iterator[None]:
    """Set `sys.argv` to the file's own command line, without arguments."""
    before = sys.argv
    sys.argv = [str(path)]
    try:
        yield
    finally:
        sys.argv = before


@contextlib.contextmanager
def located_errors(path: Path) -> Iterator[None]:
    """Turn any error inside into a `SettingError` that names the file's innermost line in the traceback."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise SettingError(
            f"{_location(path, error)}: {_summary(error)}; --traceback shows the whole traceback"
        ) from error


def _location(path: Path, error: BaseException) -> str:
    if isinstance(error, SyntaxError) and _is_same(path, error.filename):
        return f"{path}, line {error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_same(path, frame.filename)]
    if not frames:
        return str(path)
    inside = "" if frames[-1].name == "<module>" else f", in {frames[-1].name}"
    return f"{path}, line {frames[-1].lineno}{inside}"


def _is_same(path: Path, filename: str | None) -> bool:
    return filename is not None and Path(filename).resolve() == path.resolve()


def _summary(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"it called sys.exit({error.code!r})"
    message = error.msg if isinstance(error, SyntaxError) else str(error).strip()
    first = message.splitlines()[0] if message else ""
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _near_file(path: Path, how: str) -> str:
    folder = path.parent
    names = sorted(file.name for file in folder.glob("*.py")) if folder.is_dir() else []
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.7)
    return f"did you mean {str(folder / near[0])!r}?" if near else f"name a function in a file, like {how}"
