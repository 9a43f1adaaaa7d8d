"""Predictions of layouts on the disk, by all that they depend on.

Idea: a search places each candidate, lowers it and prices its HLO, even if the compiler's answers are on the disk. All
of these follow from the step without a placement, the layout, the system and the settings. So the key of a prediction
needs one trace, and no lowering.

Rule: the compiler, JAX and anytpu's own files are part of the key. A prediction is
stored only if it can be read back as an equal one.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

import jax

from anytpu import _env, _jax
from anytpu.planning.compiler import cache
from anytpu.planning.compiler.places import operations
from anytpu.planning.jobs.settings import PlanSettings
from anytpu.planning.records import Prediction
from anytpu.planning.records.target import Target
from anytpu.program.trace_digest import trace_digest
from anytpu.sharding import ModelLayout, TracedStep
from anytpu.sharding.searched import to_record

# These decide how a prediction is made and whether, not what it is.
_NOT_IN_KEY = ("progress", "timeout_s", "use_cache")
_FILES = (".py", ".json", ".csv")


def digest_of(steps: Sequence[TracedStep]) -> str | None:
    """Return the identity of traced steps with their names, layers and lines; None if one has none."""
    digests = [_step_digest(traced) for traced in steps]
    return None if None in digests else hashlib.sha256("".join(map(str, digests)).encode()).hexdigest()


def _step_digest(traced: TracedStep) -> str | None:
    program, trace = traced.program, trace_digest(traced.trace)
    if trace is None:
        return None
    # The names of the arrays are in the paths of the trees.
    trees = [str(jax.tree_util.tree_flatten_with_path(tree)) for tree in (program.state, program.batch)]
    said = [program.name, program.mode, *program.state_names, *program.notes, str(program.layout), *trees]
    places = [operation.place.identity for operation in operations(traced.trace)]
    text = json.dumps([trace, said, str(traced.structure), places])
    return hashlib.sha256(text.encode()).hexdigest()


def key_of(digest: str, layout: ModelLayout, target: Target, settings: PlanSettings) -> str:
    """Return the key of the prediction of a searched layout: the digest of everything that it depends on.

    Args:
        digest: identity of the step without a placement.
        layout: the layout.
        target: the system.
        settings: settings of the prediction.
    """
    fields = [field.name for field in dataclasses.fields(settings) if field.name not in _NOT_IN_KEY]
    parts = [
        digest,
        to_record(layout),
        layout.row_axes,
        repr(target),
        {name: repr(getattr(settings, name)) for name in fields},
        {
            "jax": jax.__version__,
            "jaxlib": importlib.metadata.version("jaxlib"),
            "libtpu": _env.libtpu_version(),
            **_env.compiler_settings(),
        },
        _jax.trace_settings(),
        _package_digest(),
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def read(key: str, target: Target) -> Prediction | None:
    """Return the stored prediction of a key for a system, or None."""
    entry = cache.read(key)
    if entry is None:
        return None
    try:
        return _decoded(Prediction, entry[0], target)
    except (TypeError, KeyError, ValueError):
        return None


def write(key: str, prediction: Prediction) -> None:
    """Store a prediction; the time of its compilation belongs to this run alone."""
    prediction = dataclasses.replace(prediction, compile_s=None)
    record = {name: _encoded(getattr(prediction, name)) for name in _hints(Prediction) if name != "target"}
    if _decoded(Prediction, json.loads(json.dumps(record)), prediction.target) == prediction:
        cache.write(key, record, b"")


@functools.cache
def _package_digest() -> str:
    """Return the digest of anytpu's own files."""
    digest, folder = hashlib.sha256(), _env.package_folder() / "anytpu"
    for path in sorted(folder.rglob("*")):
        if path.suffix in _FILES:
            digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.hexdigest()


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _encoded(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return [_encoded(getattr(value, field.name)) for field in dataclasses.fields(value)]
    return [_encoded(item) for item in value] if isinstance(value, tuple) else value


def _decoded(kind: type[Prediction], record: dict[str, Any], target: Target) -> Prediction:
    fields = {name: _decoder(hint)(record[name]) for name, hint in _hints(kind).items() if name != "target"}
    return kind(target=target, **fields)


@functools.cache
def _decoder(kind: Any) -> Callable[[Any], Any]:
    """Return the function from a value of JSON to one of a type; records are lists of their fields."""
    if dataclasses.is_dataclass(kind):
        decoders = [_decoder(hint) for hint in _hints(kind).values()]
        if all(decode is _same for decode in decoders):
            return lambda items: typing.cast(Any, kind)(*items)
        return lambda items: typing.cast(Any, kind)(
            *(decode(item) for decode, item in zip(decoders, items, strict=True))
        )
    if isinstance(kind, types.UnionType):
        decode = next(_decoder(option) for option in typing.get_args(kind) if option is not types.NoneType)
        return _same if decode is _same else lambda value: None if value is None else decode(value)
    if typing.get_origin(kind) is tuple:
        decode = _decoder(typing.get_args(kind)[0])  # All items of a tuple have one type.
        return tuple if decode is _same else lambda items: tuple(map(decode, items))
    return _same


def _same(value: Any) -> Any:
    return value
