"""Arguments of Keras 2 keep their meaning: positions, names and defaults follow from the record of its signatures."""

from __future__ import annotations

import ast

from anytpu.migrate.port import known, old_api, ported
from anytpu.migrate.port.rules import keras_name, new_name, rule_of
from anytpu.migrate.port.signatures import names_by_position


def test_no_argument_by_position_changes_its_meaning():
    """All functions and classes of the record in one program, each with all arguments by position."""
    recorded = set(old_api.names())
    names = [name for name in sorted(recorded) if name.rpartition(".")[0] not in recorded and _new_name(name)]
    calls = {f"made_{index}": name for index, name in enumerate(names) if old_api.parameters(name) is not None}
    old = {made: [part.arg for part in _parameters(name).args] for made, name in calls.items()}
    lines = [f"{made} = tf.{calls[made]}({', '.join(f'v_{part}' for part in old[made])})" for made in calls]
    texts = (
        "\n".join(["import tensorflow as tf", *part])
        for part in (lines[start : start + 100] for start in range(0, len(lines), 100))
    )
    wrong, compared = [], set()
    for line in (line for text in texts for line in ast.parse(ported(text).new).body):
        if not isinstance(line, ast.Assign) or not isinstance(line.value, ast.Call):
            continue
        made = ast.unparse(line.targets[0])
        found = known.find(ast.unparse(line.value.func))
        after = known.declared(found) if found is not None else None
        positions = names_by_position(after)
        for value, position in zip(line.value.args, positions, strict=False):
            passed = ast.unparse(value).removeprefix("v_")
            compared |= {made} if passed == position or passed in old[made] else set()
            if isinstance(value, ast.Name) and passed != position and (passed in positions or position in old[made]):
                wrong.append(f"{calls[made]}: {passed} became {position}")
    assert wrong == []
    assert len(compared) > 600


def _new_name(name: str) -> str | None:
    if name.startswith("keras."):
        return keras_name(name)
    rule = rule_of(name)
    return new_name(name) if rule is not None and rule[1].how == "rename" else None


def _parameters(name: str) -> ast.arguments:
    parameters = old_api.parameters(name)
    assert parameters is not None
    return parameters
