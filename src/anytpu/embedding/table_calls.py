"""`TableCalls`: compiled calls on the tables of a strategy, outside of a Keras model's steps.

Idea: a call is a Program like a training step: its state is the variables of the tables, split by row, and its batch is
ids. So it runs on every backend, and the tables are updated in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from anytpu.embedding.rows import Table
from anytpu.embedding.stacked_tables import StackedTables
from anytpu.program.program import ROWS, Program, Tree, array_layouts, spec_of
from anytpu.strategy import variables as homes

TableFunction = Callable[[list[Table], Tree], tuple[list[Table], Tree]]
"""`function(tables, batch) -> (new tables, outputs)`, for the tables of each stack."""


class TableCalls:
    """The compiled calls of some tables.

    Args:
        strategy: the strategy on whose cores the tables are.
        stacks: the tables.
    """

    def __init__(self, strategy: Any, stacks: Sequence[StackedTables]) -> None:
        self._strategy, self._stacks = strategy, stacks
        self._variables = [variable for stack in stacks for variable in stack.step_variables]
        self._compiled: dict[Any, Any] = {}

    def run(self, name: str, function: TableFunction, batch: Tree) -> Tree:
        """Run a function on the tables and the arrays of a batch, and return its outputs on the host.

        Args:
            name: name of the call, for reports.
            function: the function; the same one for a name.
            batch: a tree of arrays with the rows of the global batch first.
        """
        executable, (state_layouts, batch_layouts) = self._executable(name, function, spec_of(batch))
        backend = self._strategy.backend
        arrays = jax.tree.map(backend.put_once, batch, batch_layouts)
        state = homes.take(backend, self._variables, homes.Holder(name), jax.tree.leaves(state_layouts))
        try:
            new, outputs = executable.step(state, arrays)
            homes.settle(self._variables, new)
        except BaseException:
            homes.release(self._variables)
            raise
        return backend.get(outputs)

    def _executable(self, name: str, function: TableFunction, batch: Tree) -> Any:
        leaves, form = jax.tree.flatten(batch)
        key = name, form, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        if key not in self._compiled:
            program = self._strategy.place(self._program(name, function, batch))
            self._compiled[key] = self._strategy.compile(program), array_layouts(program)
        return self._compiled[key]

    def _program(self, name: str, function: TableFunction, batch: Tree) -> Program:
        stacks = self._stacks

        def step(state: list[Any], batch: Tree) -> tuple[list[Any], Tree]:
            values, tables = iter(state), []
            for stack in stacks:
                tables.append(stack.table_of([next(values) for _ in stack.step_variables]))
            new, outputs = function(tables, batch)
            triples = zip(stacks, tables, new, strict=True)
            # A table that the function returns as it is has made no step.
            values_after = [stack.values_of(after, after is not before) for stack, before, after in triples]
            return [value for values in values_after for value in values], outputs

        return Program(
            name=f"embedding/{name}",
            step=step,
            state=[jax.ShapeDtypeStruct(v.shape, v.dtype) for v in self._variables],
            batch=batch,
            layout=jax.tree.map(lambda _: ROWS, batch),
            state_names=tuple(variable.path for variable in self._variables),
            tables=tuple(variable.path for stack in stacks for variable in stack.table_variables),
        )
