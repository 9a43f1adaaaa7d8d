"""`FeatureTables`: the tables of some features, looked up and updated outside of the steps of replicas.

Idea: a step of replicas gets embeddings as it gets any other input, and returns their gradients. The lookup before it
and the update after it are calls of their own on the tables (`table_calls.py`).

Rule: an update is made with the ids of one lookup, and the gradients of all its rows.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any

import jax

from anytpu.embedding.bags import FeatureBags, bags_of
from anytpu.embedding.configs import FeatureConfig, TableConfig
from anytpu.embedding.feature_ids import FeatureIds, check_rows, ids_of_feature
from anytpu.embedding.rows import Table, look_up, updated
from anytpu.embedding.stacked_tables import StackedTables, stacks_of
from anytpu.embedding.table_calls import TableCalls
from anytpu.errors import DataError, SettingError


class FeatureTables:
    """The tables of some features. Make them in the scope of a strategy.

    Args:
        feature_config: a `FeatureConfig`, or a nested structure of them.
        optimizer: optimizer of the tables without one of their own.

    Attributes:
        paths: the place of each feature in the structure, for errors.

    Raises:
        SettingError: a configuration is invalid, or two tables have one name.
    """

    def __init__(self, feature_config: Any, optimizer: Any) -> None:
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
        self._stacks = list(stacks_of(self._tables, optimizer))
        self._calls: dict[int, tuple[Any, TableCalls]] = {}

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

    def ids(self, features: Any, weights: Any, replicas: int) -> tuple[FeatureIds, ...]:
        """Return the ids of a global batch, checked.

        Args:
            features: ids with the structure of the features.
            weights: the weight of each id, nested like the features. None, or a feature left out, is a weight of 1.
            replicas: number of replicas, which divides the rows.

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
        check_rows(ids, replicas)
        return ids

    def look_up(self, strategy: Any, ids: tuple[FeatureIds, ...]) -> list[Any]:
        """Return the embeddings of each feature, `(rows, width)` or `(rows, length, width)`.

        Args:
            strategy: the strategy on whose cores the tables are.
            ids: the ids of a batch.
        """
        return self._calls_on(strategy).run("look_up", self._looked_up, ids)

    def update(self, strategy: Any, ids: tuple[FeatureIds, ...], gradients: tuple[Any, ...]) -> None:
        """Update the rows of a batch.

        Args:
            strategy: the strategy on whose cores the tables are.
            ids: the ids of the batch.
            gradients: gradients of the embeddings of each feature.
        """
        self._calls_on(strategy).run("update", self._updated, (ids, gradients))

    def embeddings_of(self, features: Any) -> Any:
        """Return the embeddings of arrays of ids by the variables in scope, to be traced; NaN for a bad id.

        Args:
            features: arrays of ids with the structure of the features.
        """
        ids = [(array, None) for array in self.flat("features", features)]
        results: list[Any] = [None] * len(ids)
        for stack, members in self._bags(ids).items():
            for index, bags in members:
                rows = self._stacks[stack].table_variables[0].value
                results[index] = bags.result(look_up(rows, bags.bags), is_marked=True)
        return self.packed(results)

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
            raise DataError(
                f"{name} must have the structure of feature_config, one value for each of {self._listed()}; it is a "
                f"{type(tree).__name__}{text}"
            ) from error

    def _listed(self) -> str:
        return ", ".join(repr(path) if path else "its one feature" for path in self.paths)

    def _calls_on(self, strategy: Any) -> TableCalls:
        # The strategy is kept: another one could get its id.
        known = self._calls.get(id(strategy))
        if known is None:
            known = self._calls[id(strategy)] = strategy, TableCalls(strategy, self._stacks)
        return known[1]

    def _bags(self, features: Any) -> dict[int, list[tuple[int, FeatureBags]]]:
        """Return for each stack, by its index, the index and the bags of each of its features."""
        bags: dict[int, list[tuple[int, FeatureBags]]] = {}
        for index, (feature, (ids, weights)) in enumerate(zip(self._features, features, strict=True)):
            stack = self._stack_of(feature.table)
            combiner = None if feature.max_sequence_length else feature.table.combiner
            size, dtype = feature.table.vocabulary_size, stack.variable_dtype
            made = bags_of(ids, weights, combiner, size, dtype, stack.offset(feature.table))
            bags.setdefault(self._stacks.index(stack), []).append((index, made))
        return bags

    def _looked_up(self, tables: list[Table], features: Any) -> tuple[list[Table], list[Any]]:
        results: list[Any] = [None] * len(self._features)
        for stack, members in self._bags(features).items():
            for index, bags in members:
                # No bag is marked: `ids` has raised an error for a bad id, or has replaced it by -1.
                results[index] = bags.result(look_up(tables[stack].rows, bags.bags), is_marked=False)
        return tables, results

    def _updated(self, tables: list[Table], batch: Any) -> tuple[list[Table], None]:
        features, gradients = batch
        new = list(tables)
        for stack, members in self._bags(features).items():
            table = tables[stack]
            sums = [gradients[index].reshape(-1, table.rows.shape[1]) for index, _ in members]
            optimizer = self._stacks[stack].row_optimizer
            rows, slots = updated(optimizer, table, [bags.bags for _, bags in members], sums)
            new[stack] = dataclasses.replace(table, rows=rows, slots=slots)
        return new, None

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
