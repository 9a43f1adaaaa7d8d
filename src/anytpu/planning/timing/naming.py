"""`user_name`: the user's name of an operation, for sentences that a user reads.

Idea: the compiler's own name, "fusion.312", is in no file of the user's. The path that JAX keeps with an operation
begins with the layers and ends with its primitive, or a kernel's function. The stack gives the line.

Rule: if none of these is known, the compiler's name is used.
"""

from __future__ import annotations

import re

from anytpu.planning.hlo import Instruction, Module, layer_of
from anytpu.planning.timing.mosaic import code_of

_PRIMITIVE = re.compile(r"[a-z][a-z0-9_-]*")
_NUMBER = re.compile(r"(\.\d+)+$")


def user_name(module: Module, instruction: Instruction) -> str:
    """Return the name of an operation: "sort of 'router' (moe.py:33)", "my_kernel (model.py:9)", or "fusion.312"."""
    layer, is_backward = layer_of(instruction.op_name)
    source = module.source_of(instruction)
    if not layer and source is None:
        return instruction.name
    what = instruction.op_name.rpartition("/")[2]
    if instruction.call_target == "tpu_custom_call":
        # The compiler names it by `pallas_call(name=...)`, else by the layer or the function around the call.
        code = code_of(instruction.text)
        what = code.name if code and code.name else _NUMBER.sub("", instruction.name)
    elif not _PRIMITIVE.fullmatch(what):
        what = instruction.name
    name, way, at = (
        f" of {layer!r}" if layer else "",
        ", backward" if is_backward else "",
        f" ({source})" if source else "",
    )
    return f"{what}{name}{way}{at}"


def counted(sentences: list[str]) -> tuple[str, ...]:
    """Return each distinct sentence with its number of occurrences.

    Example:
        >>> counted(["sort: a floor", "gather: a floor", "sort: a floor"])
        ('2 x sort: a floor', 'gather: a floor')
    """
    times = {sentence: sentences.count(sentence) for sentence in dict.fromkeys(sentences)}
    return tuple(f"{count:,} x {sentence}" if count > 1 else sentence for sentence, count in times.items())
