"""Replace TensorFlow's names by the table's rules, one name at a time.

Rule: a name of Keras or anytpu passes only if the installed package has it, and a keyword only if its function takes
it.
"""

from __future__ import annotations

import difflib
import itertools
import re

import libcst as cst
import libcst.matchers as m

from anytpu.migrate.port import known, old_api
from anytpu.migrate.port.arguments import argument_of, keyword_of
from anytpu.migrate.port.edits import Edits
from anytpu.migrate.port.filling import fill, fill_as_function
from anytpu.migrate.port.fitting import fit_arguments
from anytpu.migrate.port.kinds import TENSORS, instance_of
from anytpu.migrate.port.rules import new_name, rule_of, rules
from anytpu.migrate.port.signatures import defaults, names_by_position, required
from anytpu.migrate.port.tree import Tree, head
from anytpu.migrate.replaced.table import Replacement, advice, advice_of, facts

_PART = m.Element(~m.UnaryOperation())
_PARTS = [m.ZeroOrMore(_PART), m.Element()]
_SIZES = m.List(_PARTS) | m.Tuple(_PARTS)
"""`[1, 2, -1]`: only the last size of a split may be -1, which is the rest."""
_REPEATED = m.BinaryOperation(left=m.List(), operator=m.Multiply() | m.Add()) | m.BinaryOperation(
    right=m.List(), operator=m.Multiply() | m.Add()
)
_INTEGERS = re.compile(r"(^|\.|['\"])int(32|64)\b")
_LISTED = re.compile(r"(?s)[\[(]*-?\d[\d,\s\[\]()-]*$")
_TYPE = m.MatchRegex(r"['\"]?u?int\d+['\"]?$")
_CAST = m.Arg(m.Attribute(attr=m.Name(_TYPE)) | m.Name(_TYPE) | m.SimpleString(_TYPE))
_OF_INTEGERS = m.Call(args=[m.Arg(m.Call(m.Attribute(attr=m.Name("cast")), [m.Arg(), _CAST])), m.ZeroOrMore()])
_TEXT = re.compile(r"[\[(\s]*['\"]")
_FLOATS = re.compile(
    r"(?<![\w.])\d+\.|float|reduce_mean|\.(exp|log|sqrt|square|softmax|sigmoid|norm|truediv|l2_loss)\b"
)
"""Code of an argument whose result is a float."""


def plan_calls(edits: Edits) -> None:
    """Plan an edit or a finding for each name of TensorFlow or of Keras 2 that no pattern has handled."""
    tree = edits.tree
    # Programs for Keras 2 import names from the package keras itself.
    chains = [n for n in tree.all(cst.Name, cst.Attribute) if not isinstance(tree.parent(n), cst.Attribute)]
    of_keras = [(node, name) for node in chains if (name := tree.keras_name(node)) not in (None, "keras")]
    for node, name in [*tree.chains(), *of_keras]:
        if edits.is_done(node) or edits.is_left(node):
            continue
        # In TensorFlow 2, tf.losses and tf.metrics are those of Keras.
        is_of_keras = not tree.is_of_first(node) and old_api.is_recorded(f"keras.{name}")
        name = f"keras.{name}" if is_of_keras and {name, f"keras.{name}"} & rules().keys() else name
        rule = row_of_call(tree, name, tree.parent_call(node))
        if rule is not None:
            _plan(edits, node, name, *rule)
        elif not name.startswith("keras"):
            edits.say(tree.parent_call(node) or node, advice("no counterpart"), old=tree.code(node))


def row_of_call(tree: Tree, name: str, call: cst.Call | None) -> tuple[str, Replacement] | None:
    """Return the old name and the row for a name that is called; None if there is none.

    table.toml explains names with arguments, such as "matmul(transpose_b)" and "split(sizes)".
    """
    codes = [(keyword_of(argument), tree.code(argument.value)) for argument in call.args] if call is not None else []
    positions = names_by_position(old_api.parameters(old_function(tree, name, call) or ""))
    named = [(keyword or "".join(positions[index : index + 1]), code) for index, (keyword, code) in enumerate(codes)]
    keywords = [keyword for keyword, code in named if keyword and code not in ("False", "None")]
    # The first variant with a row decides, so pairs of keywords come before single ones.
    variants = [f"{name}={code}" for name, code in named]
    variants += [f"{first}, {second}" for first, second in itertools.combinations(sorted(keywords), 2)] + keywords
    variants += ["sizes"] if call is not None and _has_sizes(tree, call) else []
    variants += ["files"] if call is not None and _has_files(tree, call) else []
    variants += ["integers"] if any(_INTEGERS.search(code) for _, code in codes) else []
    variants += ["floats"] if any(_FLOATS.search(code) for _, code in codes) else []
    variants += ["strings"] if call is not None and call.args and m.findall(call.args[0], m.SimpleString()) else []
    variants += [", ".join(code for _, code in codes[1:])] if call is not None else []
    variants += ["list"] if call is not None and m.matches(call, m.Call(args=[m.Arg(m.List()), m.ZeroOrMore()])) else []
    variants += ["functions"] if call is not None and m.findall(call, m.Arg(value=m.Lambda())) else []
    variants += ["of integers"] if call is not None and m.matches(call, _OF_INTEGERS) else []
    variants += ["of integers"] if codes and _LISTED.match(codes[0][1]) else []
    variants += [f"{sum(not keyword for keyword, _ in codes)} by position", f"{len(codes)} in all"]
    rows = (rules().get(f"{name}({variant})") for variant in variants)
    special = next((row for row in rows if row is not None), None)
    return (name, special) if special is not None else rule_of(name)


def old_function(tree: Tree, name: str, call: cst.Call | None) -> str | None:
    """Return the recorded name of the function that a call of an old name means."""
    keywords = [keyword_of(argument) for argument in call.args if argument.keyword] if call is not None else []
    is_first = tree.is_for_first if call is None else tree.is_of_first(call.func)
    found = old_api.public_name(name, keywords, is_first)
    flags = defaults(old_api.parameters(found or "")).values()
    pairs = zip(flags, call.args if call is not None else (), strict=False)
    # A number is no flag: `TensorBoard("logs", 0, 32)` is older than `write_graph` in the third place.
    is_older = any(isinstance(flag, bool) and isinstance(passed.value, cst.Integer) for flag, passed in pairs)
    return old_api.public_name(name, keywords, is_first=is_first or is_older)


def _has_files(tree: Tree, call: cst.Call) -> bool:
    """Return whether the first argument is a list of names of files."""
    values = tree.sources(call.args[0].value) if call.args else ()
    functions = [tree.code(part.func) for part in values if isinstance(part, cst.Call)]
    return any(function.rpartition(".")[2] in ("glob", "listdir", "Glob", "ListDirectory") for function in functions)


def _has_sizes(tree: Tree, call: cst.Call) -> bool:
    """Return whether a call splits into parts of given sizes, not into a number of equal parts."""
    argument = argument_of(call, "split", "num_or_size_splits")
    values = tree.sources(argument.value) if argument is not None else ()
    return any(m.matches(part, _SIZES) or m.matches(part, _REPEATED) for part in values)


def _plan(edits: Edits, node: cst.Name | cst.Attribute, name: str, key: str, row: Replacement) -> None:
    tree, called = edits.tree, edits.tree.parent_call(node)
    is_in_numpy = edits.values.is_host(node) or (called is not None and edits.values.is_of_sizes(called))
    # In code of the host the row's form for NumPy is used, unless it draws random numbers.
    host = row.host if is_in_numpy and "{rng}" not in row.host else ""
    if row.how == "drop" and _drop(edits, node, called):
        return
    if not host and row.target.startswith("keras.ops.") and edits.values.is_host(node):
        edits.say(node, advice("slow on the host"), "note")
    if name.startswith("train.") and name.endswith("Optimizer"):
        for argument in called.args if called is not None else ():
            if "array" in edits.values.of(argument.value):
                edits.say(argument, advice("rate of a step"))
    if key in ("__version__", "VERSION") and (name != key or tree.around(node, cst.Comparison, cst.Assert) is not None):
        edits.say(node, advice("version of TensorFlow"))
    is_first = tree.is_of_first(node)
    for noted in (*facts("notes").get(name, ()), *(facts("notes for TensorFlow 1").get(name, ()) if is_first else ())):
        edits.say(called or node, advice(noted), "note")
    if name == "keras.optimizers.RMSprop" and (is_first or tree.keras_name(node) is not None):
        edits.say(called or node, advice("epsilon of RMSprop"), "note")
    if name == "clip_by_global_norm" and re.search(r"Embedding|embedding|gather\(", tree.module.code):
        edits.say(called or node, advice("rows of a gradient"), "note")
    if called is not None and not is_in_numpy:
        _make_arrays(edits, called, name)
    call = called if row.how == "call" and key == name else None
    old = old_function(tree, name, called)
    if call is not None and ((host and fill(edits, call, row, host, old=old)) or fill(edits, call, row, old=old)):
        return
    is_passed = called is None and row.how == "call" and key == name
    if is_passed and name.startswith("keras.metrics."):  # Keras takes the mean of what it returns.
        edits.put(node, lambda _: edits.expression(name), covers=node)
        return
    made = "keras.ops.convert_to_tensor({input})" if key == "identity" else "{input}"
    if is_passed and fill_as_function(edits, node, row, host or row.target.replace("{input}", made)):
        return
    if row.how == "rename":
        _rename(edits, node, name, row, host, old)
    elif not edits.is_done(node):
        # The line of a row for many names is an example of another one.
        note = "" if row.note.startswith("nothing:") else row.note
        is_own = key == name or row.how != "hand"
        edits.say(node, advice_of(row) if is_own else note or advice("no counterpart"))
        if called is not None:
            _list_once(edits, called, row)
        if tree.around(node, cst.WithItem) is not None and (block := tree.around(node, cst.With)) is not None:
            _list_once(edits, block, row)


def _make_arrays(edits: Edits, call: cst.Call, name: str) -> None:
    """Turn lists and variables into arrays where the new function takes no others."""
    last = name.rpartition(".")[2]
    names = facts("only arrays").get(last, ())
    arguments = {argument_of(call, name, parameter) for parameter in names} - {None}
    arguments |= {argument for argument in call.args if "*" in names and not argument.keyword and not argument.star}
    for argument in arguments:
        kinds, parts = edits.values.of(argument.value), edits.tree.sources(argument.value)
        if any(_TEXT.match(edits.tree.code(part)) for part in parts):
            continue
        is_unknown = last in facts("functions")["need an array"] and kinds.isdisjoint(TENSORS)
        if (
            is_unknown
            or kinds & instance_of("keras.Variable")
            or any(isinstance(part, cst.List | cst.Tuple) for part in parts)
        ):
            edits.compose(argument.value, lambda new: edits.expression("keras.ops.convert_to_tensor({x})", x=new))


def _list_once(edits: Edits, block: cst.With | cst.Call, row: Replacement) -> None:
    """Let one finding stand for all names of a row in a block or a call that is listed: it goes as a whole."""
    for node in edits.tree.nodes(block):
        name = None if isinstance(edits.tree.parent(node), cst.Attribute) else edits.tree.old_name(node)
        rule = rule_of(name) if name is not None else None
        if rule is not None and rule[1] is row:
            edits.leave(node)


def _rename(
    edits: Edits, node: cst.Name | cst.Attribute, name: str, row: Replacement, host: str, old: str | None
) -> None:
    """Replace a dotted name by its new full name; one that starts at an import that is made right stays."""
    target, called = new_name(name), edits.tree.parent_call(node)
    if target is None:
        edits.say(node, _gone(name))
        return
    new = known.find(target)
    target = host.replace("*", name.rpartition(".")[2]) or target
    head_old = edits.tree.library_name(head(node)) or ""
    head_new = new_name(head_old)
    if head_new is not None and head_new.startswith("keras") and target == head_new + name.removeprefix(head_old):
        edits.cover(node)
    else:
        edits.put(node, lambda _: edits.expression(target), covers=node)
    if called is not None:
        # NumPy's functions have the names of Keras's for what is optional, at other positions; where() has neither.
        after = known.declared(new) if new is not None else None
        positions = names_by_position(after)
        optional = "".join(positions[len(required(after)) :][:1]) if host and target != "np.where" else ""
        fit_arguments(edits, called, old, new, keywords=row.keywords, shown=target, by_keyword=optional)


def _gone(name: str) -> str:
    """Return the advice for a name of Keras or of a data set that the installed packages lack."""
    home, _, last = name.rpartition(".")
    new_home = new_name(home) if home else None
    if new_home is None or new_home.startswith('"'):
        return advice("no counterpart") if new_home is None else advice("part of a type", name=new_home)
    near = difflib.get_close_matches(last, known.public_names(new_home), n=3, cutoff=0.6)
    hint = f"its nearest names are {', '.join(near)}" if near else "`anytpu docs migrate` has what replaces what"
    return f"{new_home} has no {last}; {hint}"


def _drop(edits: Edits, node: cst.CSTNode, called: cst.Call | None) -> bool:
    """Remove a decorator or a statement, or turn `tf.function(f)` into `f`; return False where none applies."""
    tree, whole = edits.tree, called or node
    above = tree.parent(whole)
    if isinstance(above, cst.Decorator):
        edits.drop(above)
    elif isinstance(above, cst.Expr) or (isinstance(above, cst.Attribute) and tree.is_statement(above)):
        edits.drop_statement(whole)
    elif called is not None and called.args and not called.args[0].keyword and not called.args[0].star:
        edits.put(called, lambda updated: updated.args[0].value, covers=node)
    elif isinstance(above, cst.Assign) and not _is_read(tree, above):
        edits.drop_statement(whole)
    else:
        return False
    return True


def _is_read(tree: Tree, assign: cst.Assign) -> bool:
    """Return whether a variable that a statement sets is read anywhere in the program."""
    names = [target.target for target in assign.targets if isinstance(target.target, cst.Name)]
    return len(names) < len(assign.targets) or any(tree.reads_of(name) for name in names)
