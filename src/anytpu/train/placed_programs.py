"""`PlacedPrograms`: the Programs of one Keras model, placed by the layout of its strategy.

Idea: a placement depends on the mode and on the shapes of the batch. It decides where the batch and the variables are
before a call. So a Program is placed once, when the first batch of its shapes is transferred, and kept.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import jax

from anytpu.engine.feeds import split_rows
from anytpu.program.program import Layout, Program, Tree, array_layouts
from anytpu.sharding import ModelLayout
from anytpu.strategy import TPUStrategy
from anytpu.strategy.state_extension import StateExtension
from anytpu.train.keras_program import VariableList, keras_program

_MAX_PROGRAMS = 64

Parts = tuple[VariableList, ...]


class PlacedPrograms:
    """The Programs of one model on one strategy.

    Args:
        model: a compiled Keras model.
        strategy: the strategy, with a layout or without.

    Attributes:
        extension: the model's layers with a state of their own, or None.
    """

    def __init__(self, model: Any, strategy: TPUStrategy) -> None:
        self._model, self._strategy = model, strategy
        self.extension: StateExtension | None = None
        self._programs: OrderedDict[tuple, Program] = OrderedDict()
        self._chosen: dict[str, ModelLayout] = {}

    @property
    def _is_placed(self) -> bool:
        """Whether the programs have a layout: that of the strategy, or the one that splits tables."""
        return self._strategy.layout is not None or (self.extension is not None and bool(self.extension.tables))

    def key(self, mode: str, batch: Tree, parts: Parts) -> tuple:
        """Return the key of a Program: the mode, the shapes of the batch, the variables, and the layout chosen."""
        specs, tree = jax.tree.flatten(batch)
        shapes = tuple((spec.shape, str(spec.dtype)) for spec in specs)
        variables = tuple(tuple(id(variable) for variable in part.variables) for part in parts)
        return mode, tree, shapes, variables, id(self._choice(mode))

    def program(self, mode: str, batch: Tree, parts: Parts) -> Program:
        """Return the Program of a step.

        Args:
            mode: "train", "test" or "predict".
            batch: specs of the global batch.
            parts: the lists of variables that the step takes.
        """
        if not self._is_placed:
            return keras_program(self._model, mode, batch, parts)
        key = self.key(mode, batch, parts)
        if key not in self._programs:
            program = keras_program(self._model, mode, batch, parts)
            layout = self._layout(mode, program)
            # The layout is a part of the key, and may have been chosen just now.
            key = self.key(mode, batch, parts)
            self._programs[key] = self._strategy.place(program, layout)
            if len(self._programs) > _MAX_PROGRAMS:
                self._programs.popitem(last=False)
        self._programs.move_to_end(key)
        return self._programs[key]

    def _layout(self, mode: str, program: Program) -> ModelLayout | None:
        """Return the layout of a Program; "auto" is chosen by the first step of training, before it by each mode."""
        if self._strategy.layout is None or not self._strategy.layout.is_open:
            return self._strategy.layout
        if self._choice(mode) is None:
            self._chosen[mode] = self._strategy.choose(program)
        return self._choice(mode)

    def _choice(self, mode: str) -> ModelLayout | None:
        return self._chosen.get("train", self._chosen.get(mode))

    def state_layouts(self, mode: str, batch: Tree, parts: Parts) -> list[Layout] | None:
        """Return the layout of each variable in a step; None if each core holds them whole."""
        if not self._is_placed:
            return None
        return jax.tree.leaves(array_layouts(self.program(mode, batch, parts))[0])

    def batch_layout(self, mode: str, batch: Tree, parts: Parts) -> Tree:
        """Return the layouts of a batch, as a tree of `Layout`."""
        return array_layouts(self.program(mode, batch, parts))[1] if self._is_placed else split_rows(batch)
