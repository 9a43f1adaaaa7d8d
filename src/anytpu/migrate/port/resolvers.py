"""Rewrite the choice of a TPU: `TPUClusterResolver(...)` and the address in COLAB_TPU_ADDR.

Rule: the name or address of a TensorFlow worker is removed, since such a worker does not speak JAX. Any other
argument, such as an option of the program, is kept with a note.
"""

from __future__ import annotations

import re

import libcst as cst

from anytpu.migrate.port.arguments import argument_of
from anytpu.migrate.port.edits import Edits
from anytpu.migrate.port.rules import rules
from anytpu.migrate.port.tree import Tree
from anytpu.migrate.replaced.table import advice

ADDRESS_VARIABLE = "COLAB_TPU_ADDR"
_ADDRESSES = re.compile(r"grpc://|COLAB_TPU_ADDR|KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS|TPU_NAME|\.(get_)?master\(")
_RESOLVERS = "TPUClusterResolver"


def plan_resolvers(edits: Edits) -> None:
    """Plan the arguments of each resolver, and each address of the 2018 notebooks."""
    for node, name in edits.tree.chains():
        if name.rpartition(".")[2] == _RESOLVERS:
            _plan_resolver(edits, node)
    for node in edits.tree.all(cst.BinaryOperation, cst.FormattedString):
        if re.fullmatch(r"f?['\"]grpc://.*COLAB_TPU_ADDR.*", edits.tree.code(node), re.DOTALL):
            edits.put(node, lambda _: edits.expression('tpu.TPUClusterResolver("").master()'), covers=node)
    for node in edits.tree.all(cst.Assert):
        if ADDRESS_VARIABLE in edits.tree.code(node):
            edits.drop_statement(node)
    for node in edits.tree.all(cst.SimpleString):
        if ADDRESS_VARIABLE in node.value and not edits.is_done(node):
            edits.say(node, advice("address of 2018"), "note")


def _plan_resolver(edits: Edits, node: cst.Name | cst.Attribute) -> None:
    tree, call = edits.tree, edits.tree.parent_call(node)
    target = rules()["distribute.cluster_resolver.TPUClusterResolver"].target
    if call is None:
        edits.put(node, lambda _: edits.expression(target), covers=node)
        return
    tpu = argument_of(call, "distribute.cluster_resolver.TPUClusterResolver", "tpu")
    is_kept = tpu is not None and not _is_worker(tree, tpu.value)
    removed = [argument for argument in call.args if not (argument is tpu and is_kept)]
    if removed:
        code = ", ".join(tree.code(argument).rstrip(", \n") for argument in removed)
        edits.say(call, advice("worker that is left out", code=code), "note")
        for argument in removed:
            edits.cover(argument)
    elif tpu is not None and not isinstance(tpu.value, cst.SimpleString):
        edits.say(call, advice("address that is kept", code=tree.code(tpu.value)), "note")

    def resolver(updated: cst.Call) -> cst.BaseExpression:
        arguments = [edits.rebuilt(tpu).with_changes(comma=cst.MaybeSentinel.DEFAULT)] if tpu and is_kept else []
        whitespace = {} if is_kept else {"whitespace_before_args": cst.SimpleWhitespace("")}
        return updated.with_changes(func=edits.expression(target), args=arguments, **whitespace)

    edits.put(call, resolver, covers=node)


def _is_worker(tree: Tree, value: cst.BaseExpression) -> bool:
    """Return whether an argument is, or was assigned, the name or address of a worker."""
    for part in tree.sources(value):
        if isinstance(part, cst.SimpleString):
            if part.evaluated_value not in ("", "local"):
                return True
        elif isinstance(part, cst.List | cst.Tuple) or _ADDRESSES.search(tree.code(part)):
            return True
    return False
