"""The error text for a program that the compiler refused, with the operation, its layer and its line.

Idea: the compiler's message names some of these, and the traced step knows the others. The operation is found in the
step by the line in the message, or else by its name.
"""

from __future__ import annotations

import dataclasses
import re

from jax.extend.core import ClosedJaxpr

from anytpu.errors import PlanError
from anytpu.planning.compiler.places import OperationPlace, TracedOperation, is_users, operations
from anytpu.planning.hlo import layer_of

_FRAME = re.compile(r"^ +(?P<file>/.*?):(?P<line>\d+):\d+ \[(?P<function>[^\]]*)\]", re.MULTILINE)
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_LOWERING = re.compile(r"primitive '([\w-]+)'|[Pp]allas.* lowering for \w+: ([\w-]+)")
_SCOPED = re.compile(r"Scoped allocation with size \S+ and limit \S+ exceeded scoped vmem limit by \S+")
_OPTION = re.compile(r"While setting option|No such compile option")
_DEVICE = re.compile(r"Unsupported TPU device kind")
_MESH = 'AbstractMesh(sizes, names, abstract_device=jax.sharding.AbstractDevice("TPU v5 lite", 1, "tpu"))'
_HOW = "Write that part with other operations of jax.numpy, or compute it outside of the step"


def refusal_of(said: str, program: str, target: str, jaxpr: ClosedJaxpr) -> PlanError:
    """Return the error for a program that the compiler refused; see `describe_refusal`."""
    error = PlanError(describe_refusal(said, program, target, jaxpr))
    place = find_place(said, jaxpr)
    error.compiler_message, error.place = said, "" if place is None else str(place)
    return error


def describe_refusal(said: str, program: str, target: str, jaxpr: ClosedJaxpr) -> str:
    """Return the error text for a program that the compiler refused.

    Args:
        said: the compiler's message.
        program: the program's name.
        target: the target's name.
        jaxpr: the traced step.
    """
    # These two messages are about no operation of the step.
    if _OPTION.search(said):
        reason = first_sentence(said)
        return f"The TPU compiler does not take these options: {reason}. Change or leave out what options= says."
    if _DEVICE.search(said):
        return (
            f"A Pallas kernel of {program!r} has an operation that is lowered for one kind of TPU, and the mesh of the "
            f"step does not name it. Give it one: {_MESH}."
        )
    place = find_place(said, jaxpr)
    about = f"It is about {place}. {_HOW}." if place else f"It does not say of which operation. {_HOW}."
    return f"The TPU compiler refuses {program!r} for {target}: {first_sentence(said)}. {about}"


def first_sentence(said: str) -> str:
    """Return the first sentence of the compiler's message, without its codes and its notation."""
    if match := _SCOPED.search(said):
        return match[0].rstrip(".")
    first = said.split("\n", 1)[0]
    first = re.sub(r"^[A-Z_]+: ", "", first).split(" Please file an issue")[0]
    first = re.sub(r"^during context \[[^\]]*\]: ", "", first)
    first = re.sub(r" with MLIR module name `[^`]*` HLO name `[^`]*`", "", first)  # From JAX 0.12 on.
    first = re.sub(r",? (?:metadata|backend_config|frontend_attributes)=\{.*", "", first)
    return first.strip().rstrip(".")


def find_place(said: str, jaxpr: ClosedJaxpr) -> OperationPlace | None:
    """Return the origin of the operation that the message is about, or None if it is not known."""
    frames = [(match["file"], int(match["line"]), match["function"]) for match in _FRAME.finditer(said)]
    match = _OP_NAME.search(said)
    operation, layer = (match[1].rpartition("/")[2], layer_of(match[1]).layer) if match else ("", "")
    file, line, function = next((frame for frame in frames if is_users(frame[0])), frames[0] if frames else ("", 0, ""))
    if at := _operation(said, jaxpr, operation, frames[0] if frames else None):
        return dataclasses.replace(at.place, layer=at.place.layer or layer)
    if operation or file:
        return OperationPlace(operation or "?", layer, f"{file}:{line} ({function})" if file else "")
    return None


def _operation(said: str, jaxpr: ClosedJaxpr, name: str, frame: tuple[str, int, str] | None) -> TracedOperation | None:
    """Return the operation at the innermost line of the message, or the first one with a name in it."""
    known = list(operations(jaxpr))
    # 1. A line in the message is exact. Several operations may share it, so the name decides among them.
    if frame is not None:
        here = [operation for operation in known if operation.passes(frame[0], frame[1])]
        named = [operation for operation in here if operation.name == name]
        return next(iter(named or here), None)
    # 2. An error of JAX's lowering names the primitive.
    if match := _LOWERING.search(said):
        return next((operation for operation in known if operation.name == (match[1] or match[2])), None)
    # 3. Else the first operation whose name is a word of the message.
    words = set(re.findall(r"[a-z_]+", said.lower()))
    return next((operation for operation in known if operation.name in words), None)
