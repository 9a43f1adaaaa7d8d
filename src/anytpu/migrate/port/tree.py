"""`Tree`: a parsed program with resolved names.

Idea: `tf.distribute.TPUStrategy`, `from tensorflow.distribute import TPUStrategy as S` and
`tf.compat.v2.distribute.TPUStrategy` have one canonical name, "distribute.TPUStrategy". It is the full name without
the prefix `tensorflow` and without the version prefix `compat`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias, TypeVar

import libcst as cst
from libcst.metadata import (
    ExpressionContext,
    ExpressionContextProvider,
    MetadataWrapper,
    ParentNodeProvider,
    PositionProvider,
    QualifiedNameProvider,
    QualifiedNameSource,
    ScopeProvider,
)

from anytpu.migrate.port import old_api

TENSORFLOW = re.compile(r"tensorflow(_\w+)?(\.|$)")
"""Matches TensorFlow's packages: `tensorflow`, `tensorflow_datasets`, `tensorflow_estimator`."""
N = TypeVar("N", bound=cst.CSTNode)
Function: TypeAlias = cst.FunctionDef | cst.Lambda
_VERSION = re.compile(r"^(python\.)?(compat\.v[12]\.|_api\.v[12]\.)*(python\.(?=keras))?")
_FIRST = re.compile(
    r"import tensorflow\.compat\.v1 as|from tensorflow\.compat import v1|from tensorflow\.compat\.v1 import \*|"
    r"tensorflow\.contrib|CuDNN(LSTM|GRU)"
)
_FIRST_BEHAVIOR = ("disable_v2_behavior", "disable_eager_execution")
_OLD_LOG = re.compile(r"history\[.(val_)?acc.\]|monitor\s*=\s*.(val_)?acc['\"]")
_NEW_METRIC = re.compile(r"metrics\s*=\s*\[[^\]]*['\"]acc['\"]")
"""Keras logged the metric "accuracy" as "acc" until 2.3, and `hard_sigmoid` was in its LSTM until then."""
_PRIVATE_HOME = re.compile(r"^(contrib\.\w+\.)?python\.(tpu\.)?([a-z_]\w*\.)*(?=[A-Z])")


def canonical(name: str) -> str:
    """Return the table's key for a full TensorFlow name.

    Example:
        >>> canonical("tensorflow.compat.v1.train.AdamOptimizer"), canonical("tensorflow_datasets.load")
        ('train.AdamOptimizer', 'tensorflow_datasets.load')
        >>> canonical("tensorflow.contrib.tpu.python.tpu.tpu_config.RunConfig")
        'contrib.tpu.RunConfig'
    """
    if name == "tensorflow" or not name.startswith("tensorflow."):
        return name
    name = name.removeprefix("tensorflow.")
    home = _PRIVATE_HOME.match(name)
    if home is not None and (
        home[1] or home[2]
    ):  # a class in a private module, as the programs of the first TPUs had it
        return (home[1] or "contrib.tpu.") + name[home.end() :]
    return _VERSION.sub("", name) or "tensorflow"


def public(name: str) -> str:
    """Return the public name of one of Keras 2 that has a private home.

    Example:
        >>> public("keras.layers.embeddings.Embedding"), public("keras.layers.no.Such")
        ('keras.layers.Embedding', 'keras.layers.no.Such')
    """
    parts = name.split(".")
    short = ".".join([*parts[:2], parts[-1]])
    is_private = len(parts) > 3 and parts[0] == "keras" and not old_api.is_recorded(name)
    return short if is_private and old_api.is_recorded(short) else name


class Tree:
    """A program with its scopes, parents and positions.

    Attributes:
        module: the parsed program; all methods take nodes of it.
    """

    def __init__(self, module: cst.Module) -> None:
        """Resolve the names of a parsed program."""
        wrapper = MetadataWrapper(module)
        self.module = wrapper.module
        self._qualified = wrapper.resolve(QualifiedNameProvider)
        self._parents = wrapper.resolve(ParentNodeProvider)
        self._positions = wrapper.resolve(PositionProvider)
        self._contexts = wrapper.resolve(ExpressionContextProvider)
        self._scopes = wrapper.resolve(ScopeProvider)
        self._nodes = list(_below(self.module))
        stars = [node.module for node in self.all(cst.ImportFrom) if isinstance(node.names, cst.ImportStar)]
        modules = [self.code(module) for module in stars if module is not None]
        self._stars = [name for name in modules if TENSORFLOW.match(name) or name.partition(".")[0] == "keras"]
        self._variables = [node for node in self._nodes if isinstance(node, cst.Name) and self._is_variable(node)]
        self._assigned: dict[str, list[cst.BaseExpression]] = {}
        for assign in self.all(cst.Assign):
            for target in assign.targets:
                for name in dict.fromkeys(n.value for n in self.names(target.target) if self.is_stored(n)):
                    self._assigned.setdefault(name, []).append(assign.value)

    def nodes(self, root: cst.CSTNode | None = None) -> Iterable[cst.CSTNode]:
        """Return a node and its descendants in text order; None starts at the module."""
        return self._nodes if root is None or root is self.module else _below(root)

    def all(self, *kinds: type[N]) -> Iterator[N]:
        """Yield the program's nodes of some classes in text order."""
        return (node for node in self._nodes if isinstance(node, kinds))

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """Return a node's parent; None for the module."""
        return self._parents.get(node)

    def around(self, node: cst.CSTNode, *kinds: type[N]) -> N | None:
        """Return the innermost node of some classes around a node; None if there is none."""
        above = self.parent(node)
        while above is not None and not isinstance(above, kinds):
            above = self.parent(above)
        return above

    def line(self, node: cst.CSTNode) -> int:
        """Return the number of a node's first line, from 1."""
        return self._positions[node].start.line

    def ends_before(self, first: cst.CSTNode, second: cst.CSTNode) -> bool:
        """Return whether a node's code ends before that of another one does."""
        ends = [self._positions[node].end for node in (first, second)]
        return (ends[0].line, ends[0].column) < (ends[1].line, ends[1].column)

    def code(self, node: cst.CSTNode) -> str:
        """Return a node's source code."""
        return self.module.code_for_node(node)

    def old_name(self, node: cst.CSTNode) -> str | None:
        """Return the canonical name that a dotted name resolves to, or None if it is not TensorFlow's."""
        names = self._imported(node)
        # A name with two bindings, of which one is not TensorFlow's, is left to the author.
        return public(canonical(min(names))) if names and all(map(TENSORFLOW.match, names)) else None

    def keras_name(self, node: cst.CSTNode) -> str | None:
        """Return the full name of a dotted name imported from the package keras itself, or None."""
        names = self._imported(node)
        return public(min(names)) if names and all(name.partition(".")[0] == "keras" for name in names) else None

    def is_numpy(self, node: cst.CSTNode) -> bool:
        """Return whether an expression is a variable that holds what functions of NumPy return."""
        values = self.values_assigned_to(node.value) if isinstance(node, cst.Name) else []
        return any(isinstance(value, cst.Call) and self.numpy_name(value.func) is not None for value in values)

    def numpy_name(self, node: cst.CSTNode) -> str | None:
        """Return the full name of a dotted name imported from NumPy, or None."""
        return next((name for name in self._imported(node) if name.startswith("numpy.")), None)

    def is_integer_type(self, dtype: cst.BaseExpression) -> bool:
        """Return whether a type is one of integers that holds each size."""
        text = dtype.evaluated_value if isinstance(dtype, cst.SimpleString) else self.old_name(dtype)
        return text in ("int32", "int64", "dtypes.int32", "dtypes.int64")

    def library_name(self, node: cst.CSTNode) -> str | None:
        """Return the canonical name of TensorFlow's, or the full name of Keras's, that a dotted name resolves to."""
        return self.old_name(node) or self.keras_name(node)

    def _imported(self, node: cst.CSTNode) -> list[str]:
        """Return the full names that a dotted name may be imported as; "" stands for another binding."""
        if not isinstance(node, cst.Name | cst.Attribute) or not isinstance(head(node), cst.Name):
            return []
        lazy: Any = self._qualified.get(node)
        names: Any = lazy() if callable(lazy) else lazy or ()
        if self._stars and (not names or all(name.source is QualifiedNameSource.BUILTIN for name in names)):
            full_names = [f"{module}.{self.code(node)}" for module in self._stars]
            return [name for name in full_names if old_api.is_recorded(public(canonical(name)))][-1:]
        return [name.name if name.source is QualifiedNameSource.IMPORT else "" for name in names]

    def chains(self) -> Iterator[tuple[cst.Name | cst.Attribute, str]]:
        """Yield each outermost dotted name that resolves to TensorFlow, with its canonical name."""
        for node in self.all(cst.Name, cst.Attribute):
            if not isinstance(self.parent(node), cst.Attribute) and (name := self.old_name(node)) is not None:
                yield node, name

    @functools.cached_property
    def is_for_first(self) -> bool:
        """Whether a program is for TensorFlow 1, or Keras of its time: it has a name or an import that later ones lack.

        One name of `compat.v1` says nothing: programs for TensorFlow 2 use it too.
        """
        names = {name for node, name in self.chains() if not self._is_compat(node)}
        if any(name in _FIRST_BEHAVIOR for _, name in self.chains()) or any(map(old_api.is_only_first, names)):
            return True
        imports = (self.code(node) for node in self.all(cst.Import, cst.ImportFrom))
        is_old_fit = any(arg.keyword is not None and arg.keyword.value == "nb_epoch" for arg in self.all(cst.Arg))
        code = self.module.code
        is_old_log = bool(_OLD_LOG.search(code)) and "accuracy" in code and not _NEW_METRIC.search(code)
        return is_old_fit or is_old_log or any(_FIRST.search(text) for text in imports)

    def is_of_first(self, node: cst.CSTNode) -> bool:
        """Return whether a name is TensorFlow 1's: by its program, or by `compat.v1` in the name or its import."""
        return self.is_for_first or self._is_compat(node)

    def _is_compat(self, node: cst.CSTNode) -> bool:
        return any("compat.v1" in name for name in self._imported(node))

    def calls(self) -> Iterator[tuple[cst.Call, str]]:
        """Yield the calls of names of TensorFlow or Keras, with the name."""
        named = ((call, self.library_name(call.func)) for call in self.all(cst.Call))
        return ((call, name) for call, name in named if name is not None)

    def method_calls(self, *names: str) -> Iterator[tuple[cst.Call, cst.Attribute]]:
        """Yield the calls of methods of some names, on any object, with the method: `a.f(x)` with `a.f`."""
        methods = ((call, call.func) for call in self.all(cst.Call) if isinstance(call.func, cst.Attribute))
        return ((call, method) for call, method in methods if method.attr.value in names)

    def statement(self, node: cst.CSTNode) -> Any:
        """Return the innermost statement line or compound statement that contains a node."""
        kinds = (cst.SimpleStatementLine, cst.BaseCompoundStatement, cst.Module)
        return node if isinstance(node, kinds) else self.around(node, *kinds)

    def small_statement(self, node: cst.CSTNode) -> cst.BaseSmallStatement | None:
        """Return the simple statement that contains a node, such as an assignment; None if there is none."""
        return node if isinstance(node, cst.BaseSmallStatement) else self.around(node, cst.BaseSmallStatement)

    def is_alone(self, node: cst.CSTNode) -> bool:
        """Return whether a node's statement has a line of its own."""
        line = self.statement(node)
        return isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1

    def is_statement(self, node: cst.CSTNode) -> bool:
        """Return whether an expression is a whole statement, such as `tf.get_logger().setLevel("ERROR")`."""
        above = self._parents[node]
        while isinstance(above, cst.Attribute | cst.Call):
            above = self._parents[above]
        return isinstance(above, cst.Expr)

    def target_code(self, statement: cst.CSTNode | None) -> str | None:
        """Return the code of a statement's only target, a tuple in parentheses; None if it has none or several."""
        if not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
            return None
        target = statement.targets[0].target
        return f"({self.code(target)})" if isinstance(target, cst.Tuple) and not target.lpar else self.code(target)

    def scopes_of(self, name: cst.Name) -> set[cst.CSTNode | None]:
        """Return the functions and classes in which a variable is bound; None stands for the module."""
        scope = self._scopes.get(name)
        if scope is None:
            return set()
        return {getattr(assignment.scope, "node", None) for assignment in scope[name.value]}

    def function(self, node: cst.CSTNode) -> Function | None:
        """Return the innermost function around a node; None for the module."""
        return next(self.functions(node), None)

    def functions(self, node: cst.CSTNode | None) -> Iterator[Function]:
        """Yield the functions around a node, innermost first."""
        while node is not None and (node := self.around(node, cst.FunctionDef, cst.Lambda)) is not None:
            yield node

    def parent_call(self, node: cst.CSTNode) -> cst.Call | None:
        """Return the call whose function a node is, or None."""
        above = self.parent(node)
        return above if isinstance(above, cst.Call) and above.func is node else None

    def class_of_method(self, function: cst.CSTNode) -> cst.ClassDef | None:
        """Return the class whose method a function is; None for another function."""
        block = self.parent(function) if isinstance(function, cst.FunctionDef) else None
        owner = self.parent(block) if block is not None else None
        return owner if isinstance(owner, cst.ClassDef) else None

    def following(self, block: cst.CSTNode) -> list[cst.CSTNode]:
        """Return the statements after a block in the same suite."""
        suite = self.parent(block)
        body: list[Any] = list(suite.body) if isinstance(suite, cst.IndentedBlock | cst.Module) else [block]
        return body[body.index(block) + 1 :]

    def names(self, root: cst.CSTNode | None = None) -> Iterable[cst.Name]:
        """Return the variables below a node in text order, without attributes, keywords and imported names."""
        if root is None or root is self.module:
            return self._variables
        return (node for node in _below(root) if isinstance(node, cst.Name) and self._is_variable(node))

    def _is_variable(self, name: cst.Name) -> bool:
        parent = self.parent(name)
        is_label = isinstance(parent, cst.Attribute) and parent.attr is name
        is_label |= isinstance(parent, cst.Arg) and parent.keyword is name
        return self._contexts.get(name) is not None and not is_label and not isinstance(parent, cst.ImportAlias)

    def taken(self) -> set[str]:
        """Return all variables of the program, by name."""
        return {name.value for name in self._variables}

    def free_name(self, *names: str) -> str:
        """Return the first of some names that is no variable of the program."""
        return next(name for name in names if name not in self.taken())

    def context(self, name: cst.CSTNode) -> object:
        """Return a name's expression context (load, store or delete); None if it is not a variable."""
        return self._contexts.get(name)

    def is_stored(self, name: cst.CSTNode) -> bool:
        """Return whether a variable or an attribute is assigned where this name stands."""
        return self._contexts.get(name) is ExpressionContext.STORE

    def reads_of(self, name: cst.Name) -> list[cst.Name]:
        """Return the places where a variable is read; one of the same name in another function is another variable."""
        reads = [n for n in self.names() if n.value == name.value and self.context(n) is ExpressionContext.LOAD]
        return [read for read in reads if self.scopes_of(read) & self.scopes_of(name)]

    def values_assigned_to(self, name: str) -> list[cst.BaseExpression]:
        """Return all values assigned to a variable of this name, anywhere in the program."""
        return self._assigned.get(name, [])

    def sources(self, node: cst.BaseExpression | None) -> list[cst.BaseExpression]:
        """Return an expression and, where it is a variable, what is assigned to it, directly or through variables."""
        found = [node] if node is not None else []
        for part in found:  # It grows meanwhile.
            assigned = self.values_assigned_to(part.value) if isinstance(part, cst.Name) else []
            found += [value for value in assigned if value not in found]
        return found


def _below(root: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield root
    for child in root.children:
        yield from _below(child)


def head(node: cst.CSTNode) -> cst.CSTNode:
    """Return the expression at the start of a chain of attributes: `a` of `a.b.c`."""
    while isinstance(node, cst.Attribute):
        node = node.value
    return node


def bound_name(alias: cst.ImportAlias) -> str:
    """Return the variable that an import binds: `tf` for `tensorflow as tf`, `os` for `os.path`."""
    name: Any = alias.asname.name if alias.asname is not None else head(alias.name)
    return name.value


def parameter_names(function: Function) -> list[str]:
    """Return the names of a function's parameters that may be passed by position."""
    return [parameter.name.value for parameter in function.params.params]
