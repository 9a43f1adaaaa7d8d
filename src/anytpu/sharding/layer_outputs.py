"""`constrained_outputs`: the partitions of layer outputs in a Keras LayoutMap.

Idea: a path such as "block/dense/output" is the output of a layer. Keras's layers ask the current distribution for it
whenever they are called, so a distribution of ours answers while a step is traced.

Rule: a key for outputs that no layer asked for is an error, as a pattern that matches no weight is.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

from jax.sharding import AbstractMesh, NamedSharding

from anytpu.errors import SettingError
from anytpu.program.placed import partition_of
from anytpu.sharding.layouts import ModelLayout, Spec


@contextlib.contextmanager
def constrained_outputs(layout: ModelLayout, mesh: AbstractMesh) -> Iterator[None]:
    """Constrain the outputs of Keras's layers inside a block; a layout that is no LayoutMap constrains none.

    Args:
        layout: the layout.
        mesh: the mesh.

    Raises:
        SettingError: the partition of an output does not fit it. Or (at the end of the block) no layer was called whose
            output a pattern matches.
    """
    if not layout.is_literal:
        yield
        return
    import keras

    before, answering = keras.distribution.distribution(), _OutputLayouts(layout, mesh)
    keras.distribution.set_distribution(answering)
    try:
        yield
    except ValueError as error:
        # JAX's message has the shardings and the shape, and not the layer.
        if "with_sharding_constraint" not in str(error) or answering.last is None:
            raise
        path, spec = answering.last
        raise SettingError(
            f"the partition {partition_of(spec)} of the layout does not fit the output {path!r}, which a key of it "
            "matches too. Let the key of the weights end in their name, as in '.*/kernel'"
        ) from error
    finally:
        keras.distribution.set_distribution(before)
    for pattern in layout.outputs:
        if not any(re.fullmatch(pattern, path) for path in answering.asked):
            raise SettingError(
                f"the pattern {pattern!r} of the layout matches the output of no layer of the step."
                f"{whole_path_hint(pattern, answering.asked)}"
            )


def whole_path_hint(pattern: str, paths: Iterable[str]) -> str:
    """Return the remedy for a key of a LayoutMap that is found inside of a path only; "" if it is in none."""
    found = next((path for path in paths if re.search(pattern, path)), "")
    whole = next((each for each in (f".*{pattern}", f".*(?:{pattern}).*") if re.fullmatch(each, found)), "")
    return f" Keras matches whole paths, such as {found!r}: write {whole!r}." if whole else ""


class _OutputLayouts:
    """The two questions that Keras asks a distribution while a model is called.

    Attributes:
        asked: paths of the outputs.
        last: the last of them that has a partition, and the partition.
    """

    def __init__(self, layout: ModelLayout, mesh: AbstractMesh) -> None:
        self._layout, self._mesh = layout, mesh
        self.asked: set[str] = set()
        self.last: tuple[str, Spec] | None = None

    def get_tensor_layout(self, path: str) -> NamedSharding | None:
        """Return the sharding of a layer's output by its path."""
        self.asked.add(path)
        spec = self._layout.spec_of(path, ())
        if spec is not None:
            self.last = path, spec
        return None if spec is None else NamedSharding(self._mesh, partition_of(spec))

    def get_variable_layout(self, variable: Any) -> None:
        """Return None: a variable that is made in a trace is whole."""
