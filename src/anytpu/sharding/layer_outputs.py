"""`constrained_outputs`: the partitions of layer outputs in a Keras LayoutMap.

Idea: a key of a LayoutMap such as "block/dense/output" is the output of a layer. Keras's layers ask the current
distribution for it whenever they are called, so a distribution of ours answers while a step is traced.

Rule: a key that no layer asked for is an error, as a pattern that matches no weight is.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from jax.sharding import AbstractMesh, NamedSharding

from anytpu.errors import SettingError
from anytpu.program.placed import partition_of


@contextlib.contextmanager
def constrained_outputs(outputs: Mapping[str, Any], mesh: AbstractMesh) -> Iterator[None]:
    """Constrain the outputs of Keras's layers inside a block.

    Args:
        outputs: partition of each output by the pattern of its path.
        mesh: the mesh.

    Raises:
        SettingError: (at the end of the block) no layer was called whose output a pattern matches.
    """
    if not outputs:
        yield
        return
    import keras

    before, answering = keras.distribution.distribution(), _OutputLayouts(outputs, mesh)
    keras.distribution.set_distribution(answering)
    try:
        yield
    finally:
        keras.distribution.set_distribution(before)
    for pattern in outputs:
        if pattern not in answering.matched:
            raise SettingError(f"the pattern {pattern!r} of the layout matches the output of no layer of the step")


class _OutputLayouts:
    """The two questions that Keras asks a distribution while a model is called.

    Attributes:
        matched: patterns that matched an output.
    """

    def __init__(self, outputs: Mapping[str, Any], mesh: AbstractMesh) -> None:
        self._outputs, self._mesh = outputs, mesh
        self.matched: set[str] = set()

    def get_tensor_layout(self, path: str) -> NamedSharding | None:
        """Return the sharding of a layer's output, by its exact path or by the first pattern in it."""
        pattern = path if path in self._outputs else next((p for p in self._outputs if re.search(p, path)), None)
        if pattern is None:
            return None
        self.matched.add(pattern)
        return NamedSharding(self._mesh, partition_of(self._outputs[pattern]))

    def get_variable_layout(self, variable: Any) -> None:
        """Return None: a variable that is made in a trace is whole."""
