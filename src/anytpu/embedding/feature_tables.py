"""`FeatureTables`: the tables of some features, looked up and updated outside of the steps of replicas.

Idea: a step of replicas gets embeddings as it gets any other input, and returns their gradients. The lookup before it
and the update after it are Programs like training steps. Their state is the variables of the tables, split by row, and
their batch is ids. So they run on every backend, and the tables are updated in place.

Rule: an update is made with the ids of one lookup, and the gradients of all its rows.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import jax

from anytpu.embedding.bags import FeatureBags
from anytpu.embedding.configs import FeatureConfig, TableConfig
from anytpu.embedding.feature_ids import FeatureIds, check_rows, ids_of_feature
from anytpu.embedding.rows import TableArrays, look_up, updated
from anytpu.embedding.stacked_tables import StackedTables, stacks_of
from anytpu.errors import DataError, SettingError
from anytpu.program.program import ROWS, Program, Tree, array_layouts, spec_of
from anytpu.strategy import variables as homes
from anytpu.strategy.current import CURRENT

_Function = Callable[[list[TableArrays], Any], tuple[list[TableArrays], Any]]
"""`function(tables, batch) -> (new tables, outputs)`, for the table of each stack."""


class FeatureTables:
    """The tables of some features. Make them in the scope of a strategy.

    Args:
        feature_config: a `FeatureConfig`, or a nested structure of them.
        optimizer: optimizer of the tables without one of their own.

    Attributes:
        strategy: the strategy on whose cores the tables are.
        paths: the place of each feature in the structure, for errors.

    Raises:
        SettingError: a configuration is invalid, or two tables have one name.
    """

    def __init__(self, feature_config: Any, optimizer: Any) -> None:
        self.strategy: Any = CURRENT.get()
        self._features: list[FeatureConfig]
        self._features, self._form = jax.tree.flatten(feature_config, is_leaf=_is_feature)
        for feature in self._features:
            if not isinstance(feature, FeatureConfig):
                raise SettingError(f"feature_config must consist of FeatureConfig, not {feature!r}")
        if not self._features:
            raise SettingError(
                "feature_config has no feature: pass a FeatureConfig, or a nested structure of them, not "
                f"{feature_config!r}"
            )
        paths, _ = zip(*jax.tree_util.tree_flatten_with_path(feature_config, is_leaf=_is_feature)[0], strict=True)
        self.paths = [jax.tree_util.keystr(path, simple=True, separator="/") for path in paths]
        self._tables = named_tables(feature.table for feature in self._features)
        self._stacks = stacks_of(self._tables, optimizer)
        for stack in self._stacks:
            stack.build()
        self._step_variables = [variable for stack in self._stacks for variable in stack.step_variables]
        self._compiled: dict[tuple, tuple[Any, Any, tuple[Tree, Tree]]] = {}

    @property
    def variables(self) -> list[Any]:
        """The variables to save: the tables, their slots, step counts and learning rates."""
        return [variable for stack in self._stacks for variable in stack.variables]

    @property
    def table_variables(self) -> list[Any]:
        """The variables of the embeddings alone, without those of their optimizers."""
        return [stack.table_variables[0] for stack in self._stacks]

    def values(self) -> dict[str, Any]:
        """Return the embeddings of each table by its name, `(vocabulary_size, dim)`."""
        return {str(table.name): self._stack_of(table).rows_of(table) for table in self._tables}

    def assign(self, table: str, value: Any) -> None:
        """Replace the embeddings of a table.

        Args:
            table: name of the table.
            value: the new embeddings, `(vocabulary_size, dim)`.

        Raises:
            SettingError: there is no such table, or the value has another shape.
        """
        for config in self._tables:
            if config.name == table:
                return self._stack_of(config).assign_rows(config, value)
        names = ", ".join(repr(config.name) for config in self._tables)
        raise SettingError(f"there is no table {table!r}; the tables are {names}")

    def ids(self, features: Any, weights: Any = None) -> tuple[FeatureIds, ...]:
        """Return the ids of a global batch, checked.

        Args:
            features: ids with the structure of the features.
            weights: the weight of each id, nested like the features. None, or a feature left out, is a weight of 1.

        Raises:
            DataError: an id is outside of its table, or the rows are not as many in each feature.
        """
        ids_of_features = self.flat("features", features)
        if isinstance(weights, dict) and isinstance(features, dict) and weights.keys() <= features.keys():
            weights = {**dict.fromkeys(features), **weights}
        weights_of_ids = [None] * len(ids_of_features) if weights is None else self.flat("weights", weights)
        names = [feature.name or path for feature, path in zip(self._features, self.paths, strict=True)]
        for name, value in zip(names, ids_of_features, strict=True):
            if value is None:
                raise DataError(f"the ids of {name!r} are None: pass an array of ids, in which -1 stands for no id")
        ids = tuple(map(ids_of_feature, self._features, names, ids_of_features, weights_of_ids))
        check_rows(ids, self.strategy.num_replicas_in_sync)
        return ids

    def look_up(self, ids: tuple[FeatureIds, ...]) -> list[Any]:
        """Return the embeddings of each feature, `(rows, width)` or `(rows, length, width)`, for checked ids."""
        return self._run("look_up", lambda tables, ids: (tables, self._sums([t.rows for t in tables], ids, False)), ids)

    def update(self, ids: tuple[FeatureIds, ...], gradients: tuple[Any, ...]) -> None:
        """Update the rows of a batch.

        Args:
            ids: the ids of the batch.
            gradients: gradients of the embeddings of each feature.
        """
        self._run("update", self._updated, (ids, gradients))

    def embeddings_of(self, features: Any) -> Any:
        """Return the embeddings of arrays of ids by the variables in scope, to be traced; NaN for a bad id.

        Args:
            features: arrays of ids with the structure of the features.
        """
        rows = [variable.value for variable in self.table_variables]
        return self.packed(self._sums(rows, [(array, None) for array in self.flat("features", features)], True))

    def packed(self, values: list[Any]) -> Any:
        """Return values, one for each feature, with the structure of the features."""
        return jax.tree.unflatten(self._form, values)

    def flat(self, name: str, tree: Any) -> list[Any]:
        """Return the parts of an argument, one for each feature.

        Raises:
            DataError: the argument has another structure.
        """
        try:
            return self._form.flatten_up_to(tree)
        except (TypeError, ValueError) as error:
            text = f", the keys {sorted(map(str, tree))}" if isinstance(tree, dict) else ""
            listed = ", ".join(repr(path) if path else "its one feature" for path in self.paths)
            raise DataError(
                f"{name} must have the structure of feature_config, one value for each of {listed}; it is a "
                f"{type(tree).__name__}{text}"
            ) from error

    def _bags(self, features: Any) -> list[list[tuple[int, FeatureBags]]]:
        """Return for each stack the index and the bags of each of its features."""
        bags: list[list[tuple[int, FeatureBags]]] = [[] for _ in self._stacks]
        for index, (feature, (ids, weights)) in enumerate(zip(self._features, features, strict=True)):
            stack, table = self._stack_of(feature.table), feature.table
            combiner = None if feature.max_sequence_length else table.combiner
            bags[self._stacks.index(stack)].append((index, stack.bags(table, ids, weights, combiner)))
        return bags

    def _sums(self, rows: list[Any], features: Any, is_marked: bool) -> list[Any]:
        """Return the embeddings of each feature, given the rows of each stack.

        `is_marked`: whether a bag with a bad id is NaN. `ids` raises an error for one, or replaces it by -1.
        """
        results: list[Any] = [None] * len(self._features)
        for table, members in zip(rows, self._bags(features), strict=True):
            for index, bags in members:
                results[index] = bags.result(look_up(table, bags.bags), is_marked)
        return results

    def _updated(self, tables: list[TableArrays], batch: Any) -> tuple[list[TableArrays], None]:
        features, gradients = batch
        new = []
        for stack, table, members in zip(self._stacks, tables, self._bags(features), strict=True):
            sums = [gradients[index].reshape(-1, table.rows.shape[1]) for index, _ in members]
            rows, slots = updated(stack.row_optimizer, table, [bags.bags for _, bags in members], sums)
            new.append(dataclasses.replace(table, rows=rows, slots=slots))
        return new, None

    def _run(self, name: str, function: _Function, batch: Tree) -> Tree:
        """Run a function on the tables and the arrays of a batch, and return its outputs on the host."""
        backend, (leaves, form) = self.strategy.backend, jax.tree.flatten(batch)
        key = id(self.strategy), name, form, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        if key not in self._compiled:
            program = self.strategy.place(self._program(name, function, spec_of(batch)))
            # The strategy is kept: another one could get its id.
            self._compiled[key] = self.strategy, self.strategy.compile(program), array_layouts(program)
        _, executable, (state_layouts, batch_layouts) = self._compiled[key]
        arrays = jax.tree.map(backend.put_once, batch, batch_layouts)
        state = homes.take(backend, self._step_variables, homes.Holder(name), jax.tree.leaves(state_layouts))
        try:
            new, outputs = executable.step(state, arrays)
            homes.settle(self._step_variables, new)
        except BaseException:
            homes.release(self._step_variables)
            raise
        return backend.get(outputs)

    def _program(self, name: str, function: _Function, batch: Tree) -> Program:
        stacks = self._stacks

        def step(state: list[Any], batch: Tree) -> tuple[list[Any], Tree]:
            values = iter(state)
            tables = [stack.table_of([next(values) for _ in stack.step_variables]) for stack in stacks]
            new, outputs = function(tables, batch)
            triples = zip(stacks, tables, new, strict=True)
            # A table that the function returns as it is has made no step.
            values_after = [stack.values_of(after, after is not before) for stack, before, after in triples]
            return [value for values in values_after for value in values], outputs

        return Program(
            name=f"embedding/{name}",
            step=step,
            state=[jax.ShapeDtypeStruct(v.shape, v.dtype) for v in self._step_variables],
            batch=batch,
            layout=jax.tree.map(lambda _: ROWS, batch),
            state_names=tuple(variable.path for variable in self._step_variables),
            tables=tuple(variable.path for stack in stacks for variable in stack.table_variables),
        )

    def _stack_of(self, table: TableConfig) -> StackedTables:
        return next(stack for stack in self._stacks if stack.has(table))


def _is_feature(node: Any) -> bool:
    return isinstance(node, FeatureConfig)


def named_tables(tables: Iterable[TableConfig]) -> list[TableConfig]:
    """Return the tables of features, each once, and assign names to those without one.

    The names are set on the caller's own `TableConfig`: "table_2" for the table with index 2.

    Args:
        tables: the tables; features may share one.

    Raises:
        SettingError: two tables have one name.
    """
    listed = list({id(table): table for table in tables}.values())
    # A name may be taken: by the user, or by a table that other features have named.
    taken = {table.name for table in listed}
    for index, table in enumerate(listed):
        free = (name for number in itertools.count(index) if (name := f"table_{number}") not in taken)
        table.name = table.name or next(free)
        taken.add(table.name)
    names = [table.name for table in listed]
    for name in names:
        if names.count(name) > 1:
            raise SettingError(f"two tables have the name {name!r}; features that share a table share its TableConfig")
    return listed
