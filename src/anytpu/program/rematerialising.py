"""`rematerialised`: a traced training step that computes parts of its forward pass again in its backward pass.

Idea: the forward pass is cut into blocks where the fewest bytes cross. Of each block its inputs are kept. Just before
the backward pass reads a value of the block, the equations that make it are repeated. A loop over layers is a block for
each iteration: its reverse loop repeats the body.

Rule: the numbers are the same; `jax.checkpoint` does the same to a function before it is differentiated. An
optimization barrier ties the inputs of a block to the gradient that has been computed last. Without it XLA would merge
the repeated equations with the first ones, or run them early. The block before the loss is kept: nothing comes between.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var
from jax.extend.core import Literal as LiteralAtom

from anytpu.program.jaxprs import aval_of, calling, function_of, level_of, scan_arguments
from anytpu.program.passes import StepPasses, best_blocks, bytes_of, inlined, passes_of

Remat = Literal["", "products kept", "by block"]
"""What a step computes again: "": nothing. "products kept": all but products with weights and convolutions, as the
policy `jax.checkpoint_policies.dots_with_no_batch_dims_saveable`. "by block": the inside of each block."""

REMATS: tuple[Remat, ...] = ("products kept", "by block")
"""The forms, the least computation first."""

REPEATED = "rematted_computation"
"""JAX's own name in the paths of repeated operations."""

_LOOPS = ("scan", "while", "cond")


def rematerialised(trace: ClosedJaxpr, states: int, remat: Remat) -> ClosedJaxpr:
    """Return a traced training step that keeps less for its backward pass.

    Args:
        trace: the trace: the leaves of the state come first, then those of the batch.
        states: number of leaves of the state.
        remat: the part that it computes again.

    Example:
        >>> block = lambda w, x: jnp.sin(x @ w)
        >>> loss = lambda w, x: block(w, block(w, block(w, block(w, x)))).sum()
        >>> traced = jax.make_jaxpr(jax.grad(loss))(jnp.ones((4, 4)), jnp.ones((8, 4)))
        >>> again = rematerialised(traced, 1, "by block")
        >>> [sum(each.primitive.name == "sin" for each in jaxpr.eqns) for jaxpr in (traced.jaxpr, again.jaxpr)]
        [4, 6]
    """
    if not remat:
        return trace
    flat = inlined(trace.jaxpr)
    flat = _rematerialised_loops(flat, states, remat)
    return trace.replace(jaxpr=_Blocks(flat, passes_of(flat, states), remat).rewritten())


def live_bytes(trace: ClosedJaxpr, states: int) -> int:
    """Return the maximum of the activations that are live at once in a step, bytes by their shapes, over all devices.

    The equations run in their order, and nothing is fused. So it is an upper bound, whose ratios are of use.

    Args:
        trace: the trace: the leaves of the state come first, then those of the batch.
        states: number of leaves of the state.
    """
    flat = inlined(trace.jaxpr)
    return _live_bytes(flat, set(flat.invars[states:]))


def _live_bytes(jaxpr: Jaxpr, growing: set[Any]) -> int:
    # 1. The last reader of each value.
    last: dict[Any, int] = {}
    for index, equation in enumerate(jaxpr.eqns):
        last.update((atom, index) for atom in equation.invars if not isinstance(atom, LiteralAtom))
    results = {atom for atom in jaxpr.outvars if not isinstance(atom, LiteralAtom)}
    # 2. Run the equations. A value is live from the equation that makes it to its last reader; arguments do not
    # count.
    live = most = 0
    for index, equation in enumerate(jaxpr.eqns):
        if growing.isdisjoint(atom for atom in equation.invars if not isinstance(atom, LiteralAtom)):
            continue
        growing.update(equation.outvars)
        live += sum(map(bytes_of, equation.outvars))
        most = max(most, live + _inside_bytes(equation))
        ended = {atom for atom in equation.invars if not isinstance(atom, LiteralAtom) and last[atom] == index}
        ended.update(variable for variable in equation.outvars if variable not in last)
        live -= sum(bytes_of(atom) for atom in ended & growing - results if atom not in jaxpr.invars)
    return most


def _inside_bytes(equation: JaxprEqn) -> int:
    """Return the bytes that are live inside an iteration of a loop."""
    if equation.primitive.name != "scan":
        return 0
    body = inlined(level_of(equation.params["jaxpr"]))
    return _live_bytes(body, set(body.invars))


def _is_kept(equation: JaxprEqn, remat: Remat) -> bool:
    """Return whether the results of a forward equation are kept: loops, and products with weights if so chosen."""
    if equation.effects or equation.primitive.name in _LOOPS:
        return True
    if remat == "by block":
        return False
    if equation.primitive.name == "dot_general":
        _, (batch, _) = equation.params["dimension_numbers"]
        return not batch
    return equation.primitive.name == "conv_general_dilated"


class _Blocks:
    """The rewriting of a step without calls.

    Args:
        jaxpr: the step.
        passes: its passes.
        remat: the part that it computes again.
    """

    def __init__(self, jaxpr: Jaxpr, passes: StepPasses, remat: Remat) -> None:
        self._jaxpr, self._passes = jaxpr, passes
        self._remat: Remat = remat
        # 1. Cut the forward pass where the fewest bytes cross. The part after the last residual has nothing to repeat.
        forward = passes.forward
        kept = {index: sum(map(bytes_of, passes.kept(each))) for index, each in enumerate(forward)}
        cuts, _ = best_blocks(kept, passes.crossing())
        last = max((index for index, count in kept.items() if count), default=0)
        self._blocks: list[list[JaxprEqn]] = [[]]
        for index, equation in enumerate(forward):
            if index in cuts and index <= last:
                self._blocks.append([])
            self._blocks[-1].append(equation)
        # 2. The residuals to compute again, each with its block. The last block ends at the loss and is kept.
        self._block_of = {
            variable: number
            for number, block in enumerate(self._blocks[:-1])
            for equation in block
            if not _is_kept(equation, remat)
            for variable in passes.kept(equation)
        }

    def rewritten(self) -> Jaxpr:
        """Return the step with repeated equations."""
        # Invariants: a block is repeated once, before the first backward equation that reads it; `known` has the new
        # names of its values, which all later equations read.
        known: dict[Any, Any] = {}
        equations: list[JaxprEqn] = []
        backward = {id(equation) for equation in self._passes.backward}
        done, made = set[int](), set[Any]()
        latest = None
        for equation in self._jaxpr.eqns:
            if id(equation) not in backward:
                equations.append(equation)
                continue
            read = (self._block_of.get(atom) for atom in equation.invars if not isinstance(atom, LiteralAtom))
            # The gradient that meets the value of the block, which keeps sums of weights' gradients out of its way.
            met = (atom for atom in equation.invars if not isinstance(atom, LiteralAtom) and atom in made)
            trigger = next(met, latest)
            # The last of them first, as the backward pass reads blocks.
            for number in sorted({block for block in read if block is not None} - done, reverse=True):
                done.add(number)
                equations += self._repeated(number, trigger, known)
            equations.append(equation.replace(invars=[_renamed(known, atom) for atom in equation.invars]))
            made.update(out for out in equation.outvars if self._is_gradient(out))
            latest = next((out for out in equation.outvars if out in made), latest)
        return self._jaxpr.replace(eqns=equations)

    def _is_gradient(self, variable: Any) -> bool:
        return variable in self._passes.growing and _is_plain(variable) and bool(aval_of(variable).shape)

    def _repeated(self, number: int, trigger: Any, known: dict[Any, Any]) -> list[JaxprEqn]:
        wanted = [variable for variable, block in self._block_of.items() if block == number]
        block = [equation for equation in self._blocks[number] if not _is_kept(equation, self._remat)]
        block = [equation for equation in block if not self._passes.growing.isdisjoint(equation.outvars)]
        return list(_repeat(block, wanted, trigger, known))


def _repeat(
    block: Sequence[JaxprEqn], wanted: Iterable[Any], trigger: Any, known: dict[Any, Any]
) -> Iterator[JaxprEqn]:
    """Yield a barrier, and the equations of a block that make some of its values, again.

    Args:
        block: equations.
        wanted: the values; `known` gets their new names.
        trigger: value after which they may run, or None.
        known: new names of values so far.
    """
    # 1. The equations to repeat, and the values that they read from outside.
    equations = _needed(block, set(wanted))
    made = {variable for equation in equations for variable in equation.outvars}
    read = dict.fromkeys(atom for each in equations for atom in each.invars if not isinstance(atom, LiteralAtom))
    inputs = [atom for atom in read if atom not in made and _is_plain(atom)]
    if not equations:
        return
    # 2. A barrier on those values and the trigger. Later equations read the trigger behind the barrier.
    inside = dict[Any, Any]()
    barrier = [*inputs, *([] if trigger is None else [_renamed(known, trigger)])]
    if barrier:
        results = [Var(aval_of(atom)) for atom in barrier]
        inside.update(zip(inputs, results, strict=False))
        if trigger is not None:
            known[trigger] = results[-1]
        made_barrier = jax.make_jaxpr(jax.lax.optimization_barrier)([_spec(atom) for atom in barrier]).jaxpr.eqns[0]
        yield made_barrier.replace(invars=barrier, outvars=results, source_info=equations[0].source_info)
    # 3. The equations under new names: an equation that binds a variable again would be no valid jaxpr.
    for equation in equations:
        results = [Var(aval_of(variable)) for variable in equation.outvars]
        source = equation.source_info
        source = source.replace(name_stack=source.name_stack.extend(REPEATED))
        operands = [_renamed(inside, atom) for atom in equation.invars]
        inside.update(zip(equation.outvars, results, strict=True))
        yield equation.replace(invars=operands, outvars=results, source_info=source)
    # 4. Later equations of the backward pass read the new values.
    known.update({variable: inside[variable] for variable in wanted})


def _needed(block: Sequence[JaxprEqn], wanted: set[Any]) -> list[JaxprEqn]:
    """Return the equations of a block that some values depend on, in order."""
    needed, equations = set(wanted), []
    for equation in reversed(block):
        if not needed.isdisjoint(equation.outvars):
            equations.append(equation)
            needed.update(atom for atom in equation.invars if not isinstance(atom, LiteralAtom))
    return equations[::-1]


def _renamed(known: dict[Any, Any], atom: Any) -> Any:
    return atom if isinstance(atom, LiteralAtom) else known.get(atom, atom)


def _is_plain(atom: Any) -> bool:
    """Return whether a value is an array of numbers: a barrier takes no keys of random numbers."""
    return hasattr(aval_of(atom), "shape") and not jnp.issubdtype(aval_of(atom).dtype, jax.dtypes.extended)


def _spec(atom: Any) -> Any:
    aval = aval_of(atom)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))


# Loops


@dataclasses.dataclass(frozen=True)
class _LoopPair:
    """A loop of the forward pass and the loop of the backward pass that reads its stacked results.

    Attributes:
        first: the forward loop.
        reverse: the backward loop.
        stacked: positions of stacked results of `first`, and of the same values among the operands of `reverse`.
    """

    first: JaxprEqn
    reverse: JaxprEqn
    stacked: tuple[tuple[int, int], ...]


def _rematerialised_loops(jaxpr: Jaxpr, states: int, remat: Remat) -> Jaxpr:
    """Return a step whose reverse loops repeat the bodies of their forward loops."""
    passes = passes_of(jaxpr, states)
    replaced: dict[int, list[JaxprEqn]] = {}
    for pair in _pairs(jaxpr, passes):
        first, reverse = _rewritten_loops(pair, remat)
        replaced[id(pair.first)], replaced[id(pair.reverse)] = first, reverse
    equations = [new for equation in jaxpr.eqns for new in replaced.get(id(equation), [equation])]
    return inlined(jaxpr.replace(eqns=equations))


def _pairs(jaxpr: Jaxpr, passes: StepPasses) -> Iterator[_LoopPair]:
    """Yield loops whose residuals one reverse loop reads, and nothing else does."""
    readers: dict[Any, list[JaxprEqn]] = {}
    for equation in jaxpr.eqns:
        for atom in equation.invars:
            if not isinstance(atom, LiteralAtom):
                readers.setdefault(atom, []).append(equation)
    # Only the reverse loop may read a residual: the rewritten forward loop does not stack it any more.
    results = set(atom for atom in jaxpr.outvars if not isinstance(atom, LiteralAtom))
    taken: set[int] = set()
    for first in passes.forward:
        if first.primitive.name != "scan" or first.effects:
            continue
        _, carried = scan_arguments(first)
        residuals = [
            variable
            for variable in passes.kept(first)
            if variable in first.outvars[carried:] and variable not in results and len(readers[variable]) == 1
        ]
        reverses = {id(readers[variable][0]): readers[variable][0] for variable in residuals}
        for reverse in reverses.values():
            if reverse.primitive.name != "scan" or reverse.effects or id(reverse) in taken:
                continue
            fixed = sum(scan_arguments(reverse))
            stacked = tuple(
                (first.outvars.index(variable), reverse.invars.index(variable))
                for variable in residuals
                if readers[variable][0] is reverse and variable in reverse.invars[fixed:]
            )
            if stacked and first.params["length"] == reverse.params["length"]:
                taken.add(id(reverse))
                yield _LoopPair(first, reverse, stacked)
                break


def _rewritten_loops(pair: _LoopPair, remat: Remat) -> tuple[list[JaxprEqn], list[JaxprEqn]]:
    """Return the equations of both loops: the first also stacks the inputs of its body, the reverse one repeats it."""
    first = pair.first
    # 1. The equations of the body to repeat, and the values that they read.
    body = inlined(level_of(first.params["jaxpr"]))
    constants, carried = scan_arguments(first)
    wanted = list(dict.fromkeys(body.outvars[out] for out, _ in pair.stacked))
    made = {variable for equation in body.eqns for variable in equation.outvars}
    repeatable = [equation for equation in body.eqns if not _is_kept(equation, remat)]
    equations = _needed(repeatable, {variable for variable in wanted if variable in made})
    repeated = {variable for equation in equations for variable in equation.outvars}
    read = dict.fromkeys(atom for each in equations for atom in each.invars if not isinstance(atom, LiteralAtom))
    # 2. The values of the body to keep: those that the repeated equations read, and residuals that none of them makes.
    kept = [variable for variable in wanted if variable not in repeated and not isinstance(variable, LiteralAtom)]
    inputs = [atom for atom in read if atom not in repeated]
    fixed = [atom for atom in inputs if atom in body.invars[:constants]]
    scanned = [atom for atom in inputs if atom in body.invars[constants + carried :]]
    kept = list(dict.fromkeys([*kept, *(atom for atom in inputs if atom not in fixed and atom not in scanned)]))
    # 3. The forward loop stacks these in place of its residuals.
    residual_outs = {out for out, _ in pair.stacked}
    outs = [out for out in range(len(first.outvars)) if out not in residual_outs]
    kept_stacked = [Var(_stacked_aval(variable, first.params["length"])) for variable in kept]
    new_body = body.replace(outvars=[*[body.outvars[out] for out in outs], *kept])
    new_first = _loop(
        new_body, first, first.invars, [*[first.outvars[out] for out in outs], *kept_stacked], constants, carried
    )
    # 4. The reverse loop reads them, and repeats.
    outer = dict(zip(body.invars, first.invars, strict=True))
    return [new_first], [
        _reverse_loop(
            pair,
            body,
            equations,
            wanted,
            [(atom, outer[atom]) for atom in fixed],
            [*((atom, outer[atom]) for atom in scanned), *zip(kept, kept_stacked, strict=True)],
        )
    ]


def _reverse_loop(
    pair: _LoopPair,
    first_body: Jaxpr,
    equations: list[JaxprEqn],
    wanted: list[Any],
    fixed: list[tuple[Any, Any]],
    stacked: list[tuple[Any, Any]],
) -> JaxprEqn:
    """Return the reverse loop with a body that repeats equations of the forward loop.

    Args:
        pair: the loops.
        first_body: body of the forward loop.
        equations: the equations to repeat.
        wanted: the values of them, and of `stacked`, that the reverse loop reads.
        fixed: values of the body that are the same in each iteration, each with its value outside.
        stacked: values of the body for each iteration, each with its stacked value outside.
    """
    reverse = pair.reverse
    body, (constants, carried) = inlined(level_of(reverse.params["jaxpr"])), scan_arguments(reverse)
    # 1. The operands that remain: without the stacked residuals, which the loop now computes.
    replaced = [position for _, position in pair.stacked]
    known = {body.invars[position]: first_body.outvars[out] for out, position in pair.stacked}
    others = [position for position in range(constants + carried, len(body.invars)) if position not in replaced]
    # New names: both bodies may be used elsewhere too.
    inside = {variable: Var(aval_of(variable)) for variable, _ in (*fixed, *stacked)}
    new_equations: list[JaxprEqn] = []
    # 2. Repeat the equations at the start of the body, behind a barrier that the carry ties to this iteration.
    trigger = next((atom for atom in body.invars[constants : constants + carried] if _is_plain(atom)), None)
    renamed: dict[Any, Any] = {}
    again = [equation.replace(invars=[_renamed(inside, atom) for atom in equation.invars]) for equation in equations]
    values = {variable for equation in again for variable in equation.outvars}
    new_equations += _repeat(again, [variable for variable in wanted if variable in values], trigger, renamed)

    # 3. The body reads the repeated values in place of the residuals.
    def value(atom: Any) -> Any:
        if isinstance(atom, LiteralAtom):
            return atom
        atom = known.get(atom, atom)
        return atom if isinstance(atom, LiteralAtom) else renamed.get(atom, inside.get(atom, atom))

    new_equations += [each.replace(invars=[value(atom) for atom in each.invars]) for each in body.eqns]
    # 4. Order body arguments and operands alike, as a scan does: constants, carry, scanned arrays.
    invars = [
        *[inside[variable] for variable, _ in fixed],
        *body.invars[: constants + carried],
        *[body.invars[position] for position in others],
        *[inside[variable] for variable, _ in stacked],
    ]
    new_body = body.replace(invars=invars, outvars=[value(atom) for atom in body.outvars], eqns=new_equations)
    operands = [
        *[atom for _, atom in fixed],
        *reverse.invars[: constants + carried],
        *[reverse.invars[position] for position in others],
        *[atom for _, atom in stacked],
    ]
    return _loop(new_body, reverse, operands, reverse.outvars, len(fixed) + constants, carried)


def _loop(
    body: Jaxpr, like: JaxprEqn, operands: Sequence[Any], results: Sequence[Any], constants: int, carried: int
) -> JaxprEqn:
    """Return a call of a scan with another body, of the length and direction of a scan."""
    function: Callable[..., Any] = function_of(body)

    def run(*leaves: Any) -> Any:
        fixed, leaves = leaves[:constants], leaves[constants:]
        carry, scanned = leaves[:carried], leaves[carried:]

        def turn(carry: Any, each: Any) -> Any:
            out = function(*fixed, *carry, *each)
            return out[:carried], out[carried:]

        params = {name: like.params[name] for name in ("length", "reverse", "unroll")}
        return jax.tree.leaves(jax.lax.scan(turn, list(carry), list(scanned), **params))

    return calling(run, operands, results, like)


def _stacked_aval(variable: Any, length: int) -> Any:
    aval = aval_of(variable)
    return aval.update(shape=(length, *aval.shape))
