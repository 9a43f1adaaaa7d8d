"""`Values`: the classes of a program's values, tracked through variables, functions and methods.

Idea: a data-flow analysis over the whole program, without order. A variable may hold each value that is assigned to it
anywhere, a parameter each value that some call passes. The tables are recomputed until nothing changes.

Rule: a value whose class is not known has the empty set, and is never reported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

import libcst as cst

from anytpu.port import known
from anytpu.port.kinds import (
    ARRAY,
    DATASET,
    ELEMENT,
    UNKNOWN,
    Function,
    Instance,
    Items,
    Kinds,
    OwnClass,
    Value,
    instance_of,
    item_of,
    result_of,
)
from anytpu.port.known import Definition
from anytpu.port.rules import new_name
from anytpu.port.tree import Tree

MAX_ROUNDS = 8
"""Maximum number of rounds; each follows values through one more assignment or call."""


_NOT_DATASETS = frozenset(
    [
        "as_numpy_iterator",
        "cardinality",
        "element_spec",
        "get_single_element",
        "make_initializable_iterator",
        "make_one_shot_iterator",
        "options",
        "output_classes",
        "output_shapes",
        "output_types",
        "reduce",
        "save",
        "__len__",
        "__iter__",
    ]
)
_TRANSFORMS = frozenset(["map", "filter", "flat_map", "interleave", "random_map", "take_while", "group_by_window"])
_IDENTITIES = (cst.Is, cst.IsNot, cst.In, cst.NotIn)
_TRACED_METHODS = frozenset(["call", "train_step", "test_step", "predict_step"])
_WRAPPERS = ("function", "autograph.experimental.do_not_convert")
_MAPPERS = ("map_and_batch", "parallel_interleave")
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
        self._held: dict[object, Kinds] = {}
        self._nodes = list(tree.nodes())
        for _ in range(MAX_ROUNDS):
            before = dict(self._held)
            self._seen: dict[cst.CSTNode, Kinds] = {}
            for node in self._nodes:
                self._flow(node)
            if self._held == before:
                break
        self._seen = {}

    def of(self, node: cst.CSTNode) -> Kinds:
        """Return the possible classes of an expression's value; empty if not known."""
        found = self._seen.get(node)
        if found is None:
            found = self._seen[node] = self._infer(node)
        return found

    def classes(self, node: cst.CSTNode) -> list[Definition]:
        """Return the classes of anytpu and Keras that an expression's value may be an instance of."""
        return [definition for value in self.of(node) for definition in self._definitions(value)]

    def is_a(self, node: cst.CSTNode, *names: str) -> bool:
        """Return whether an expression's value may be an instance of one of some classes, or of a class below it."""
        wanted = {known.find(name) for name in names}
        return any(wanted & set(known.ancestors(definition)) for definition in self.classes(node))

    def is_dataset(self, node: cst.CSTNode) -> bool:
        """Return whether an expression's value may be a data set."""
        return self.is_a(node, DATASET)

    def functions(self, node: cst.CSTNode) -> list[Function]:
        """Return the program's functions that an expression may be."""
        return [value for value in self.of(node) if isinstance(value, Function)]

    def is_host(self, node: cst.CSTNode) -> bool:
        """Return whether a node is in a function that only data sets call, so that its values are NumPy arrays."""
        function = self.tree.function(node)
        while function is not None:
            if function in self.traced:
                return False
            if function in self.host:
                return True
            function = self.tree.function(function)
        return False

    def is_traced(self, node: cst.CSTNode) -> bool:
        """Return whether a node is in a function that JAX traces."""
        function = self.tree.function(node)
        while function is not None and function not in self.traced:
            function = self.tree.function(function)
        return function is not None and not self.is_host(node)

    def is_built_later(self, node: cst.CSTNode) -> bool:
        """Return whether an expression is a model of the program's own class that its first call builds."""
        owners = {own for value in self.of(node) for own in self._own_classes(value)}
        model, layer = known.find("keras.Model"), known.find("keras.layers.Layer")
        for (kind, own, *_), kinds in [(key, held) for key, held in self._held.items() if isinstance(key, tuple)]:
            if kind == "attribute" and own in owners and model in self._ancestors_of(self._bases(own)):
                parts = [self._ancestors_of(self._definitions(value)) for value in kinds]
                if any(layer in part and model not in part for part in parts):
                    return True
        return False

    def _ancestors_of(self, definitions: list[Definition]) -> set[Definition]:
        return set().union(*(known.ancestors(definition) for definition in definitions))

    def own_members(self, node: cst.CSTNode) -> set[str]:
        """Return the members that the program's own classes add to the classes of an expression's value."""
        names: set[str] = set()
        for value in self.of(node):
            for own in self._own_classes(value):
                names |= self._members_of(own)
        return names

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
            self._store(node.name, frozenset({Function(node)}))
            self._flow_definition(node)
        elif isinstance(node, cst.ClassDef):
            self._store(node.name, frozenset({OwnClass(node)}))
        elif isinstance(node, cst.Call):
            self._pass(node)

    def _flow_definition(self, node: cst.FunctionDef) -> None:
        """Record the functions that JAX traces by their form: `call` of layers, and model functions."""
        owner = self.tree.class_of_method(node)
        is_layer_method = node.name.value in _TRACED_METHODS and owner is not None and bool(self.bases_of(owner))
        parameters = [parameter.name.value for parameter in node.params.params]
        is_model_fn = {"features", "labels", "mode"} <= set(parameters)
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

    def _add(self, key: object, kinds: Kinds) -> None:
        if kinds:
            self._held[key] = self._held.get(key, UNKNOWN) | kinds

    def _keys(self, name: cst.Name) -> list[object]:
        return [("variable", scope, name.value) for scope in self.tree.scopes_of(name)]

    def _attribute_keys(self, node: cst.Attribute) -> list[object]:
        """Return the keys of `self.x`: one for the class around it."""
        owners = [own for value in self.of(node.value) for own in self._own_classes(value)]
        if not owners and isinstance(node.value, cst.Name) and node.value.value == "self":
            around = self.tree.class_around(node)
            owners = [OwnClass(around)] if around is not None else []
        return [("attribute", own, node.attr.value) for own in owners]

    def _pass(self, call: cst.Call) -> None:
        """Pass the arguments of a call to the parameters of the functions that it calls, now or later."""
        for function in self._called(call):
            is_method = self._is_method(function.node)
            self._bind(function.node, call.args, is_method)
            self._inherit(function.node, self.tree.function(call))
        if (self.tree.old_name(call.func) or "").endswith(_MAPPERS):
            for function in self._passed_functions(call):
                self._mark_host(function.node)
        if not isinstance(call.func, cst.Attribute):
            return
        method, owner = call.func.attr.value, call.func.value
        if method in _TRANSFORMS and self.is_dataset(owner):
            for function in self._passed_functions(call):
                self._mark_host(function.node)
        elif method in ("run", "experimental_run_v2", "run_steps") and self.is_a(
            owner, "anytpu.strategy.base.Strategy"
        ):
            for function in self._passed_functions(call):
                self.traced.add(function.node)
                self._bind_tuple(function.node, _argument(call, 1, "args"))

    def _passed_functions(self, call: cst.Call) -> list[Function]:
        return self.functions(call.args[0].value) if call.args else []

    def _inherit(self, called: cst.CSTNode, caller: cst.CSTNode | None) -> None:
        """Record that a function runs where its caller does."""
        while caller is not None:
            for functions in (self.host, self.traced):
                if caller in functions:
                    functions.add(called)
            caller = self.tree.function(caller)

    def _mark_host(self, node: cst.FunctionDef | cst.Lambda) -> None:
        """Record that the elements of a data set reach a function's parameters."""
        self.host.add(node)
        for parameter in node.params.params:
            self._add(("variable", node, parameter.name.value), ELEMENT)

    def _bind(self, node: cst.FunctionDef | cst.Lambda, arguments: Sequence[cst.Arg], is_method: bool) -> None:
        names = [parameter.name.value for parameter in node.params.params][is_method:]
        names_by_position = iter(names)
        for argument in arguments:
            if argument.star:
                return
            name = argument.keyword.value if argument.keyword else next(names_by_position, None)
            if name is not None:
                self._add(("variable", node, name), self.of(argument.value))

    def _bind_tuple(self, node: cst.FunctionDef | cst.Lambda, arguments: cst.BaseExpression | None) -> None:
        for index, parameter in enumerate(node.params.params):
            kinds = item_of(self.of(arguments), index) if arguments is not None else UNKNOWN
            self._add(("variable", node, parameter.name.value), (kinds - ELEMENT) or ARRAY)

    def _called(self, call: cst.Call) -> list[Function]:
        """Return the program's functions that a call runs: a constructor counts as a function."""
        found = []
        for value in self.of(call.func):
            if isinstance(value, Function):
                found.append(value)
            elif isinstance(value, OwnClass):
                found += [value for value in self._method(value, "__init__") if isinstance(value, Function)]
        if isinstance(call.func, cst.Name | cst.Attribute):
            for value in self.of(call.func):
                for own in self._own_classes(value) if isinstance(value, Instance) else ():
                    found += [value for value in self._method(own, "call") if isinstance(value, Function)]
        return found

    def _is_method(self, node: cst.CSTNode) -> bool:
        return isinstance(node, cst.FunctionDef) and self.tree.class_of_method(node) is not None

    # Values of expressions.

    def _infer(self, node: cst.CSTNode) -> Kinds:
        if isinstance(node, cst.Name):
            return self._name(node)
        if isinstance(node, cst.Attribute):
            return self._attribute(node)
        if isinstance(node, cst.Call):
            return self._call(node)
        if isinstance(node, cst.Lambda):
            return frozenset({Function(node)})
        if isinstance(node, cst.Tuple | cst.List):
            return frozenset({Items(tuple(self.of(element.value) for element in node.elements))})
        if isinstance(node, cst.IfExp):
            return self.of(node.body) | self.of(node.orelse)
        if isinstance(node, cst.BooleanOperation):
            return self.of(node.left) | self.of(node.right)
        if isinstance(node, cst.NamedExpr | cst.Await):
            return self.of(node.value if isinstance(node, cst.NamedExpr) else node.expression)
        if isinstance(node, cst.BinaryOperation):
            return (self.of(node.left) | self.of(node.right)) & (ARRAY | ELEMENT)
        if isinstance(node, cst.Comparison):
            if any(isinstance(target.operator, _IDENTITIES) for target in node.comparisons):
                return UNKNOWN
            parts = [node.left, *(target.comparator for target in node.comparisons)]
            return frozenset().union(*map(self.of, parts)) & (ARRAY | ELEMENT)
        if isinstance(node, cst.UnaryOperation):
            return self.of(node.expression) & (ARRAY | ELEMENT)
        if isinstance(node, cst.Subscript):
            return self._subscript(node)
        return UNKNOWN

    def _name(self, node: cst.Name) -> Kinds:
        if self.tree.library_name(node) is not None:
            return UNKNOWN
        kinds = UNKNOWN
        for key in self._keys(node):
            kinds |= self._held.get(key, UNKNOWN)
        if not kinds and node.value == "self":
            around = self.tree.class_around(node)
            return frozenset({Instance(OwnClass(around))}) if around is not None else UNKNOWN
        return kinds

    def _attribute(self, node: cst.Attribute) -> Kinds:
        if self.tree.library_name(node) is not None:
            return UNKNOWN
        kinds = UNKNOWN
        for value in self.of(node.value):
            if value in ("array", "element"):
                kinds |= frozenset({value}) if node.attr.value in ("T", "values") else UNKNOWN
            for own in self._own_classes(value):
                kinds |= self._held.get(("attribute", own, node.attr.value), UNKNOWN)
                kinds |= self._method(own, node.attr.value)
            for definition in self._definitions(value):
                kinds |= self._member_value(definition, node.attr.value)
        for key in self._attribute_keys(node):
            kinds |= self._held.get(key, UNKNOWN)
        return kinds

    def _member_value(self, owner: Definition, name: str) -> Kinds:
        member = known.members(owner).get(name)
        if name == "optimizer" and known.find("keras.Model") in known.ancestors(owner):
            return instance_of("keras.optimizers.Optimizer")
        is_property = member is not None and any(_is_property(item) for item in member.node.decorator_list)
        returned = known.returned_class(member) if member is not None and is_property else None
        return frozenset({Instance(returned)}) if returned is not None else UNKNOWN

    def _subscript(self, node: cst.Subscript) -> Kinds:
        kinds = self.of(node.value)
        index = node.slice[0].slice if len(node.slice) == 1 else None
        position = getattr(index.value, "value", None) if isinstance(index, cst.Index) else None
        if isinstance(position, str) and position.isdigit():
            return item_of(kinds, int(position))
        return kinds & (ARRAY | ELEMENT)

    def _element(self, node: cst.BaseExpression) -> Kinds:
        """Return the values of the elements of an iterable."""
        kinds = self.of(node)
        if self.is_dataset(node) or "iterator" in kinds:
            return ELEMENT
        if isinstance(node, cst.Call) and self.tree.code(node.func) == "enumerate" and node.args:
            return frozenset({Items((UNKNOWN, self._element(node.args[0].value)))})
        if isinstance(node, cst.Call) and self.tree.code(node.func) == "zip":
            return frozenset({Items(tuple(self._element(argument.value) for argument in node.args))})
        return kinds & (ARRAY | ELEMENT)

    # Values of calls.

    def _call(self, node: cst.Call) -> Kinds:
        name = self.tree.library_name(node.func)
        if name is not None:
            is_wrapper = name in _WRAPPERS and bool(node.args)
            return self.of(node.args[0].value) if is_wrapper else result_of(name)
        if self.tree.code(node.func) in ("partial", "functools.partial") and node.args:
            return self.of(node.args[0].value)
        kinds = UNKNOWN
        for value in self.of(node.func):
            if isinstance(value, Function):
                kinds |= self._held.get(("return", value.node), UNKNOWN)
            elif isinstance(value, OwnClass):
                kinds |= frozenset({Instance(value)})
            elif isinstance(value, Instance) and self._is_callable(value):
                kinds |= ARRAY
        if isinstance(node.func, cst.Attribute):
            kinds |= self._method_result(node.func, node)
        elif isinstance(node.func, cst.Name) and node.args:
            kinds |= self._builtin_result(node.func.value, node.args[0].value)
        return kinds

    def _builtin_result(self, function: str, argument: cst.BaseExpression) -> Kinds:
        if function == "iter":
            return frozenset({"iterator"}) if self.is_dataset(argument) else self.of(argument) & {"iterator"}
        if function == "next":
            return ELEMENT if "iterator" in self.of(argument) else UNKNOWN
        return UNKNOWN

    def _method_result(self, method: cst.Attribute, call: cst.Call) -> Kinds:
        name, owner = method.attr.value, method.value
        if self.is_dataset(owner):
            if name in _ITERATORS:
                return frozenset({"iterator"})
            if name not in _NOT_DATASETS:
                return instance_of(DATASET)
        if name in ("get_next", "__next__") and "iterator" in self.of(owner):
            return ELEMENT
        if name in ("experimental_distribute_dataset", "experimental_distribute_datasets_from_function"):
            name = name.removeprefix("experimental_")
        kinds = UNKNOWN
        for definition in self.classes(owner):
            member = known.members(definition).get(name)
            returned = known.returned_class(member) if member is not None else None
            kinds |= frozenset({Instance(returned)}) if returned is not None else UNKNOWN
        if self.of(owner) & (ARRAY | ELEMENT):
            kinds |= self.of(owner) & (ARRAY | ELEMENT)
        return kinds

    def _is_callable(self, value: Instance) -> bool:
        return any("__call__" in known.members(definition) for definition in self._definitions(value))

    # Classes.

    def _definitions(self, value: Value) -> list[Definition]:
        """Return the classes of packages that a value is an instance of, also through classes of the program."""
        if not isinstance(value, Instance):
            return []
        if isinstance(value.of, Definition):
            return [value.of]
        return [definition for own in self._own_classes(value) for definition in self._bases(own)]

    def _own_classes(self, value: Value) -> list[OwnClass]:
        """Return the program's classes that a value is an instance of, nearest first."""
        if not isinstance(value, Instance) or not isinstance(value.of, OwnClass):
            return []
        found, rest = [], [value.of]
        while rest:
            own = rest.pop(0)
            if own not in found:
                found.append(own)
                for base in own.node.bases:
                    rest += [v for v in self.of(base.value) if isinstance(v, OwnClass)]
        return found

    def _bases(self, own: OwnClass) -> list[Definition]:
        names = [self.tree.library_name(base.value) for base in own.node.bases]
        new = [new_name(name) for name in names if name is not None]
        found = [known.find(name) for name in new if name is not None]
        return [definition for definition in found if definition is not None]

    def bases_of(self, node: cst.ClassDef) -> list[Definition]:
        """Return the classes of packages that a class of the program is derived from."""
        return self._definitions(Instance(OwnClass(node)))

    def _method(self, own: OwnClass, name: str) -> Kinds:
        body = own.node.body.body
        found = [s for s in body if isinstance(s, cst.FunctionDef) and s.name.value == name]
        return frozenset(Function(statement) for statement in found)

    def _members_of(self, own: OwnClass) -> set[str]:
        names = {key[2] for key in self._attributes if key[1] == own}
        names |= {n.name.value for n in own.node.body.body if isinstance(n, cst.FunctionDef)}
        return names | {n.value for line in own.node.body.body for n in _targets(line)}

    @property
    def _attributes(self) -> Iterable[tuple[str, OwnClass, str]]:
        for node in self._nodes:
            if isinstance(node, cst.AssignTarget | cst.AnnAssign | cst.For | cst.Element):
                target = getattr(node, "target", getattr(node, "value", None))
                if isinstance(target, cst.Attribute) and self.tree.code(target.value) == "self":
                    around = self.tree.class_around(target)
                    if around is not None:
                        yield "attribute", OwnClass(around), target.attr.value


def _argument(call: cst.Call, position: int, name: str) -> cst.BaseExpression | None:
    for index, argument in enumerate(call.args):
        if argument.keyword.value == name if argument.keyword else index == position:
            return argument.value
    return None


def _targets(line: cst.CSTNode) -> Iterable[cst.Name]:
    for statement in line.body if isinstance(line, cst.SimpleStatementLine) else ():
        for target in getattr(statement, "targets", ()):
            if isinstance(target.target, cst.Name):
                yield target.target


def _is_property(decorator: object) -> bool:
    return isinstance(decorator, ast.Name | ast.Attribute) and ast.unparse(decorator).endswith("property")
