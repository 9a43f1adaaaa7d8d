"""`Values`: the classes of a program's values, tracked through variables, functions and methods.

Idea: a data-flow analysis over the whole program, without order. A variable may hold each value that is assigned to it
anywhere, a parameter each value that some call passes. The tables are recomputed until nothing changes.

Rule: a value whose class is not known has the empty set, and is never reported.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import libcst as cst

from anytpu.migrate.port import known
from anytpu.migrate.port.arguments import argument_of, keyword_of
from anytpu.migrate.port.kinds import (
    ARRAY,
    DATASET,
    ELEMENT,
    IN_MODEL,
    IN_SEQUENTIAL,
    OF_ANY_CLASS,
    SHAPE,
    SIZE,
    SYMBOLIC,
    TENSORS,
    UNKNOWN,
    Each,
    Instance,
    Items,
    Kinds,
    OwnClass,
    OwnFunction,
    Value,
    each_of,
    instance_of,
    instances_of,
    item_of,
    kinds_of,
    list_of,
    result_of,
)
from anytpu.migrate.port.known import Definition
from anytpu.migrate.port.rules import new_name
from anytpu.migrate.port.tree import Function, Tree, parameter_names
from anytpu.migrate.replaced.table import facts

MAX_ROUNDS = 8
"""Maximum number of rounds; each follows values through one more assignment or call."""

MODEL_FUNCTION = frozenset(["features", "labels", "mode"])
"""Parameters of a function that makes a model for an estimator."""
_NOT_DATASETS = ("cardinality", "element_spec", "get_single_element", "options", "reduce", "save")
"""Methods of a data set that return something else; the others return data sets."""
_TRANSFORMS = frozenset(["map", "filter", "flat_map", "interleave", "random_map", "take_while", "group_by_window"])
_RUNS = ("run", "experimental_run_v2", "run_steps")
_IDENTITIES = (cst.Is, cst.IsNot, cst.In, cst.NotIn)
_OPERATIONS = (
    cst.BooleanOperation
    | cst.NamedExpr
    | cst.Await
    | cst.BinaryOperation
    | cst.UnaryOperation
    | cst.Comparison
    | cst.ComparisonTarget
)
_TRACED_METHODS = frozenset(["call", "train_step", "test_step", "predict_step"])
_WRAPPERS = ("function", "autograph.experimental.do_not_convert")
_MAPPERS = ("map_and_batch", "parallel_interleave")
_OF_SIZES = re.compile(
    r"(math\.)?(concat|stack|reduce_(prod|sum|max|min)|minimum|maximum|add|subtract|multiply|floordiv|floormod|mod)$"
)
"""Functions that NumPy computes where all arguments are sizes."""
_NO_OPERANDS = ("axis", "name", "keepdims", "keep_dims", "dtype")
_VARIABLES = ("trainable_variables", "trainable_weights", "non_trainable_variables", "non_trainable_weights")
"""Attributes that hold variables of Keras, whatever their owner is."""
_HAVE_VARIABLES = ("keras.layers.Layer", "keras.optimizers.Optimizer", "keras.metrics.Metric")
_SAME_ITEMS = ("list", "tuple", "reversed", "sorted", "set")
_ITERATORS = frozenset(["as_numpy_iterator", "make_one_shot_iterator", "make_initializable_iterator"])


class Values:
    """The classes of all values of a program.

    Attributes:
        tree: the parsed program.
        host: functions that a data set calls for its elements, on the host.
        traced: functions that JAX traces: steps, model functions, `call` of layers, and the functions that they call.
    """

    def __init__(self, tree: Tree) -> None:
        """Track all values."""
        self.tree = tree
        self.host: set[cst.CSTNode] = set()
        self.traced: set[cst.CSTNode] = set()
        self._held: dict[tuple[Any, ...], Kinds] = {}
        self._nodes = list(tree.nodes())
        for _ in range(MAX_ROUNDS):
            before = dict(self._held)
            # A round infers each value once, from what the assignments and calls of the rounds before hold.
            self._seen: dict[cst.CSTNode, Kinds] = {}
            for node in self._nodes:
                self._flow(node)
            if self._held == before:
                break
        # A value of the last round may be older than what is held now, so it is inferred again.
        self._seen = {}

    def of(self, node: cst.CSTNode) -> Kinds:
        """Return the possible classes of an expression's value; empty if not known."""
        kinds = self._seen.get(node)
        if kinds is None:
            kinds = self._seen[node] = self._infer(node)
        return kinds

    def classes(self, node: cst.CSTNode) -> list[Definition]:
        """Return the classes of anytpu and Keras that an expression's value may be an instance of."""
        return [definition for value in self.of(node) for definition in self._definitions(value)]

    def is_a(self, node: cst.CSTNode, *names: str) -> bool:
        """Return whether an expression's value may be an instance of one of some classes, or of a class below it."""
        return any(known.is_below(definition, name) for definition in self.classes(node) for name in names)

    def is_dataset(self, node: cst.CSTNode) -> bool:
        """Return whether an expression's value may be a data set."""
        return self.is_a(node, DATASET)

    def functions(self, node: cst.CSTNode) -> list[OwnFunction]:
        """Return the program's functions that an expression may be."""
        return [value for value in self.of(node) if isinstance(value, OwnFunction)]

    def returned(self, function: cst.CSTNode) -> Kinds:
        """Return the possible classes of what a function of the program returns."""
        return self._held.get(("return", function), UNKNOWN)

    def is_host(self, node: cst.CSTNode) -> bool:
        """Return whether a node is in a function that only data sets call, so that its values are NumPy arrays."""
        around = (function for function in self.tree.functions(node) if function in self.traced | self.host)
        return next(around, None) not in self.traced | {None}

    def is_traced(self, node: cst.CSTNode) -> bool:
        """Return whether a node is in a function that JAX traces."""
        return not self.traced.isdisjoint(self.tree.functions(node)) and not self.is_host(node)

    def is_layer(self, node: cst.ClassDef) -> bool:
        """Return whether a class of the program is derived from Keras's layers."""
        return any(known.is_below(base, "keras.layers.Layer") for base in self.bases_of(node))

    def own_classes(self, node: cst.CSTNode) -> list[OwnClass]:
        """Return the program's classes that an expression's value may be an instance of, also those above."""
        return [own for value in self.of(node) for own in self._own_classes(value)]

    def own_members(self, node: cst.CSTNode) -> set[str]:
        """Return the members that the program's own classes add to the classes of an expression's value."""
        return {name for own in self.own_classes(node) for name in self._members_of(own)}

    def is_of_sizes(self, call: cst.Call) -> bool:
        """Return whether a call computes with sizes alone, so that its result is known when JAX traces a step."""
        name = self.tree.library_name(call.func) or ""
        if name == "cast" and len(call.args) == 2 and self.tree.is_integer_type(call.args[1].value):
            return self.of(call.args[0].value) == SIZE
        if not _OF_SIZES.match(name):
            return False
        is_list = name.endswith(("concat", "stack"))
        operands = [argument for argument in call.args if keyword_of(argument) not in _NO_OPERANDS]
        parts = [self._parts(argument.value) for argument in operands[: 1 if is_list else None]]
        kinds = frozenset().union(*parts) if parts else UNKNOWN
        return bool(kinds & (SHAPE | SIZE)) and not kinds & TENSORS

    def _parts(self, node: cst.CSTNode) -> Kinds:
        """Return the classes of a value, or of the items of a list."""
        kinds = self.of(node)
        items = [item for value in kinds if isinstance(value, Items) for item in value.items]
        return kinds.union(*items)

    # Flow of values into variables.

    def _flow(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.Assign):
            for target in node.targets:
                self._store(target.target, self.of(node.value))
        elif isinstance(node, cst.AnnAssign | cst.NamedExpr):
            self._store(node.target, self.of(node.value) if node.value is not None else UNKNOWN)
        elif isinstance(node, cst.For | cst.CompFor):
            self._store(node.target, self._element(node.iter))
        elif isinstance(node, cst.With):
            for item in node.items:
                if item.asname is not None:
                    self._store(item.asname.name, self.of(item.item))
        elif isinstance(node, cst.Return) and node.value is not None:
            self._add(("return", self.tree.function(node)), self.of(node.value))
        elif isinstance(node, cst.Lambda):
            self._add(("return", node), self.of(node.body))
        elif isinstance(node, cst.FunctionDef):
            self._store(node.name, frozenset({OwnFunction(node)}))
            self._flow_definition(node)
        elif isinstance(node, cst.ClassDef):
            self._store(node.name, frozenset({OwnClass(node)}))
        elif isinstance(node, cst.Call):
            self._pass(node)

    def _flow_definition(self, node: cst.FunctionDef) -> None:
        """Record the functions that JAX traces by their form: `call` of layers, and model functions."""
        owner = self.tree.class_of_method(node)
        is_layer_method = node.name.value in _TRACED_METHODS and owner is not None and bool(self.bases_of(owner))
        parameters = parameter_names(node)
        is_model_fn = set(parameters) >= MODEL_FUNCTION
        if is_layer_method or is_model_fn:
            self.traced.add(node)
            for parameter in parameters[1:2] if is_layer_method else ("features", "labels"):
                self._add(("variable", node, parameter), ARRAY)

    def _store(self, target: cst.CSTNode, kinds: Kinds) -> None:
        if isinstance(target, cst.Tuple | cst.List):
            for index, element in enumerate(target.elements):
                self._store(element.value, item_of(kinds, index))
        elif isinstance(target, cst.Name):
            for key in self._keys(target):
                self._add(key, kinds)
        elif isinstance(target, cst.Attribute):
            for key in self._attribute_keys(target):
                self._add(key, kinds)

    def _add(self, key: tuple[Any, ...], kinds: Kinds) -> None:
        if kinds:
            self._held[key] = self._held.get(key, UNKNOWN) | kinds

    def _keys(self, name: cst.Name) -> list[tuple[Any, ...]]:
        return [("variable", scope, name.value) for scope in self.tree.scopes_of(name)]

    def _attribute_keys(self, node: cst.Attribute) -> list[tuple[Any, ...]]:
        """Return the keys of `self.x`: one for the class around it."""
        owners = self.own_classes(node.value)
        if not owners and isinstance(node.value, cst.Name) and node.value.value == "self":
            around = self.tree.around(node, cst.ClassDef)
            owners = [OwnClass(around)] if around is not None else []
        return [("attribute", own, node.attr.value) for own in owners]

    def _pass(self, call: cst.Call) -> None:
        """Pass the arguments of a call to the parameters of the functions that it calls, now or later."""
        for function in self.called(call):
            self._bind(function.node, call.args)
            for functions in (self.host, self.traced):  # A function runs where its caller does.
                if not functions.isdisjoint(self.tree.functions(call)):
                    functions.add(function.node)
        self._pass_items(call)
        if (self.tree.old_name(call.func) or "").endswith(_MAPPERS):
            self._mark_host(call)
        if not isinstance(call.func, cst.Attribute):
            return
        method, owner = call.func.attr.value, call.func.value
        if method in _TRANSFORMS and self.is_dataset(owner):
            self._mark_host(call)
        elif method in _RUNS and self.is_a(owner, "anytpu.strategy.base.Strategy"):
            for function in self._passed_functions(call):
                self.traced.add(function.node)
                self._bind_tuple(function.node, argument_of(call, "distribute.Strategy.run", "args"))

    def _pass_items(self, call: cst.Call) -> None:
        """Pass the items of a list to the function that `map` or `filter` calls, or to a `key`."""
        mapped = self.tree.code(call.func) in ("filter", "map") and len(call.args) == 2
        function = call.args[0] if mapped else argument_of(call, "", "key")
        if function is not None:
            for found in self.functions(function.value):
                for name in parameter_names(found.node)[:1]:
                    self._add(("variable", found.node, name), each_of(self.of(call.args[mapped].value)))

    def _passed_functions(self, call: cst.Call) -> list[OwnFunction]:
        return self.functions(call.args[0].value) if call.args else []

    def _mark_host(self, call: cst.Call) -> None:
        """Record that the elements of a data set reach the parameters of the function that a call passes."""
        for function in self._passed_functions(call):
            self.host.add(function.node)
            for name in parameter_names(function.node):
                self._add(("variable", function.node, name), ELEMENT)

    def _bind(self, node: Function, arguments: Sequence[cst.Arg]) -> None:
        names_by_position = iter(parameter_names(node)[self.tree.class_of_method(node) is not None :])
        for argument in arguments:
            if argument.star:
                return
            name = keyword_of(argument) or next(names_by_position, None)
            if name is not None:
                self._add(("variable", node, name), self.of(argument.value))

    def _bind_tuple(self, node: Function, arguments: cst.Arg | None) -> None:
        for index, name in enumerate(parameter_names(node)):
            kinds = item_of(self.of(arguments.value), index) if arguments is not None else UNKNOWN
            self._add(("variable", node, name), (kinds - ELEMENT) or ARRAY)

    def called(self, call: cst.Call) -> list[OwnFunction]:
        """Return the program's functions that a call runs: a constructor and a layer's `call` count as functions."""
        functions = self.functions(call.func)
        for value in self.of(call.func):
            functions += self._method(value, "__init__") if isinstance(value, OwnClass) else []
            functions += [method for own in self._own_classes(value) for method in self._method(own, "call")]
        return functions

    # Values of expressions.

    def _infer(self, node: cst.CSTNode) -> Kinds:
        if isinstance(node, cst.Name):
            return self._name(node)
        if isinstance(node, cst.Attribute):
            return self._attribute(node)
        if isinstance(node, cst.Call):
            return self._call(node)
        if isinstance(node, cst.Lambda):
            return frozenset({OwnFunction(node)})
        if isinstance(node, cst.Tuple | cst.List):
            return frozenset({Items(tuple(self.of(element.value) for element in node.elements))})
        if isinstance(node, cst.ListComp | cst.GeneratorExp | cst.SetComp):
            return list_of(self.of(node.elt))
        if isinstance(node, cst.Subscript):
            return self._subscript(node)
        if isinstance(node, cst.IfExp):
            return self.of(node.body) | self.of(node.orelse)
        if any(isinstance(target.operator, _IDENTITIES) for target in getattr(node, "comparisons", ())):
            return UNKNOWN
        operands = frozenset().union(*map(self.of, node.children)) if isinstance(node, _OPERATIONS) else UNKNOWN
        if isinstance(node, cst.BooleanOperation | cst.NamedExpr | cst.Await):
            return operands
        if lists := frozenset(value for value in operands if isinstance(value, Each)):
            return lists
        return operands & TENSORS or (SIZE if operands & (SHAPE | SIZE) else UNKNOWN)

    def _name(self, node: cst.Name) -> Kinds:
        if self.tree.library_name(node) is not None:
            return UNKNOWN
        kinds = self._held_in(self._keys(node))
        if not kinds and node.value == "self":
            around = self.tree.around(node, cst.ClassDef)
            return frozenset({Instance(OwnClass(around))}) if around is not None else UNKNOWN
        return kinds

    def _held_in(self, keys: list[tuple[Any, ...]]) -> Kinds:
        return frozenset().union(*(self._held.get(key, UNKNOWN) for key in keys))

    def _attribute(self, node: cst.Attribute) -> Kinds:
        if self.tree.library_name(node) is not None:
            return UNKNOWN
        name, owners = node.attr.value, self.of(node.value)
        kinds = self._held_in(self._attribute_keys(node)) | (owners & TENSORS if name in ("T", "values") else UNKNOWN)
        for own in [own for value in owners for own in self._own_classes(value)]:
            kinds |= frozenset(self._method(own, name))
        members = [known.members(owner).get(name) for owner in self.classes(node.value)]
        properties = [member for member in members if member is not None and member.is_property]
        kinds |= self._given_member(name, node.value)
        if name == "layers" and self.is_a(node.value, "keras.Model"):
            kinds |= list_of(instance_of("keras.layers.Layer") | {OF_ANY_CLASS} | self._place(node.value))
        if name in _VARIABLES or (name in ("variables", "weights") and self.is_a(node.value, *_HAVE_VARIABLES)):
            kinds |= list_of(instance_of("keras.Variable") | self._place(node.value))
        return kinds | instances_of(*map(known.returned_class, properties))

    def _given_member(self, name: str, owner: cst.CSTNode) -> Kinds:
        """Return the values that the table gives for a member, such as "optimizer" of a model or "add_weight()"."""
        given = (full.rpartition(".") for full in facts("values of members"))
        homes = [f"{home}.{name}" for home, _, last in given if last == name and self.is_a(owner, home)]
        return UNKNOWN.union(*(kinds_of(facts("values of members")[full]) for full in homes))

    def _place(self, owner: cst.CSTNode) -> Kinds:
        """Return the mark of the layers and variables of a model, and of the variables of a layer of it."""
        is_in = IN_SEQUENTIAL in self.of(owner) or self.is_a(owner, "keras.Sequential")
        return frozenset({IN_SEQUENTIAL if is_in else IN_MODEL})

    def _subscript(self, node: cst.Subscript) -> Kinds:
        kinds = self.of(node.value)
        index = node.slice[0].slice if len(node.slice) == 1 else None
        position = getattr(index.value, "value", None) if isinstance(index, cst.Index) else None
        size = SIZE if isinstance(index, cst.Index) else SHAPE
        sizes = (kinds & SIZE) | (size if kinds & SHAPE else UNKNOWN)
        if isinstance(position, str) and position.isdigit():
            return item_of(kinds, int(position)) | sizes
        items = each_of(kinds) if index is None or isinstance(index, cst.Index) else list_of(each_of(kinds))
        return (kinds & TENSORS) | sizes | items

    def _element(self, node: cst.BaseExpression) -> Kinds:
        """Return the values of the elements of an iterable."""
        kinds = self.of(node)
        if self.is_dataset(node) or "iterator" in kinds:
            return ELEMENT
        if isinstance(node, cst.Call) and self.tree.code(node.func) == "enumerate" and node.args:
            return frozenset({Items((UNKNOWN, self._element(node.args[0].value)))})
        if isinstance(node, cst.Call) and self.tree.code(node.func) == "zip":
            return frozenset({Items(tuple(self._element(argument.value) for argument in node.args))})
        return (kinds & TENSORS) | each_of(kinds)

    # Values of calls.

    def _call(self, node: cst.Call) -> Kinds:
        name = self.tree.library_name(node.func)
        if name is not None:
            if self.is_of_sizes(node):
                return SIZE
            is_wrapper = name in _WRAPPERS and bool(node.args)
            result = self.of(node.args[0].value) if is_wrapper else result_of(name)
            return result | self._symbolic(node) if result & ARRAY else result
        if self.tree.code(node.func) in ("partial", "functools.partial") and node.args:
            return self.of(node.args[0].value)
        if self.tree.code(node.func) == "super" and (around := self.tree.around(node, cst.ClassDef)) is not None:
            above = [base for argument in around.bases for base in self.of(argument.value)]
            own = frozenset(Instance(base) for base in above if isinstance(base, OwnClass))
            return own | instances_of(*self._bases(OwnClass(around)))
        kinds = UNKNOWN
        for value in self.of(node.func):
            if isinstance(value, OwnFunction):
                kinds |= self._held.get(("return", value.node), UNKNOWN)
            elif isinstance(value, OwnClass):
                kinds |= frozenset({Instance(value)})
            elif any("__call__" in known.members(definition) for definition in self._definitions(value)):
                kinds |= ARRAY | self._symbolic(node)
        if isinstance(node.func, cst.Attribute):
            kinds |= self._method_result(node.func.attr.value, node.func.value)
        elif isinstance(node.func, cst.Name) and node.args:
            at = 1 if node.func.value == "filter" and len(node.args) > 1 else 0
            kinds |= self._builtin_result(node.func.value, node.args[at].value)
        return kinds

    def _symbolic(self, call: cst.Call) -> Kinds:
        """Return "symbolic" for a call with a tensor of a model that is made from inputs."""
        return frozenset().union(*(self._parts(argument.value) for argument in call.args)) & SYMBOLIC

    def _builtin_result(self, function: str, argument: cst.BaseExpression) -> Kinds:
        if function == "iter":
            return frozenset({"iterator"}) if self.is_dataset(argument) else self.of(argument) & {"iterator"}
        if function == "next":
            return ELEMENT if "iterator" in self.of(argument) else UNKNOWN
        return list_of(each_of(self.of(argument))) if function in (*_SAME_ITEMS, "filter") else UNKNOWN

    def _method_result(self, name: str, owner: cst.BaseExpression) -> Kinds:
        if self.is_dataset(owner):
            if name in _ITERATORS:
                return frozenset({"iterator"})
            if name not in _NOT_DATASETS and not name.startswith("output_"):
                return instance_of(DATASET)
        if name == "get_layer":
            return instance_of("keras.layers.Layer") | {OF_ANY_CLASS} | self._place(owner)
        if given := self._given_member(f"{name}()", owner):
            return given
        if name == "sync_to_cpu" and "converted" in self.of(owner):
            return instance_of("keras.Model")
        if name in ("get_next", "__next__") and "iterator" in self.of(owner):
            return ELEMENT
        if name in ("experimental_distribute_dataset", "experimental_distribute_datasets_from_function"):
            name = name.removeprefix("experimental_")
        members = [known.members(definition).get(name) for definition in self.classes(owner)]
        return instances_of(*map(known.returned_class, members)) | (self.of(owner) & TENSORS)

    # Classes.

    def _definitions(self, value: Value) -> list[Definition]:
        """Return the classes of packages that a value is an instance of, also through classes of the program."""
        if not isinstance(value, Instance):
            return []
        if isinstance(value.cls, Definition):
            return [value.cls]
        return [definition for own in self._own_classes(value) for definition in self._bases(own)]

    def _own_classes(self, value: Value) -> list[OwnClass]:
        """Return the program's classes that a value is an instance of, nearest first."""
        if not isinstance(value, Instance) or not isinstance(value.cls, OwnClass):
            return []
        classes = [value.cls]
        for own in classes:  # It grows meanwhile.
            above = [base for argument in own.node.bases for base in self.of(argument.value)]
            classes += [base for base in above if isinstance(base, OwnClass) and base not in classes]
        return classes

    def _bases(self, own: OwnClass) -> list[Definition]:
        names = [self.tree.library_name(base.value) or "" for base in own.node.bases]
        classes = [known.find(new_name(name) or "") for name in names]
        return [definition for definition in classes if definition is not None]

    def bases_of(self, node: cst.ClassDef) -> list[Definition]:
        """Return the classes of packages that a class of the program is derived from."""
        return self._definitions(Instance(OwnClass(node)))

    def _method(self, own: OwnClass, name: str) -> list[OwnFunction]:
        methods = [s for s in own.node.body.body if isinstance(s, cst.FunctionDef) and s.name.value == name]
        return [OwnFunction(statement) for statement in methods]

    def _members_of(self, own: OwnClass) -> set[str]:
        """Return the methods and variables of a class of the program, and the attributes of `self` that it sets."""
        body = own.node.body.body
        names = {n.name.value for n in body if isinstance(n, cst.FunctionDef | cst.ClassDef)}
        names |= {n.value for n in self.tree.names(own.node.body) if self.tree.scopes_of(n) == {own.node}}
        attributes = (n for n in self.tree.nodes(own.node) if isinstance(n, cst.Attribute) and self.tree.is_stored(n))
        return names | {n.attr.value for n in attributes if self.tree.code(n.value) == "self"}
