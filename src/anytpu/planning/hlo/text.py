"""`parse`: read what the compiler prints.

Idea: a module of a large model is tens of megabytes, of which a question needs little. So the text is cut at its
computations, and the instructions of one are read when somebody looks at it.

Rule: a line that is not what it should be is a `PlanError` that quotes it, never something left out in silence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from anytpu.errors import PlanError
from anytpu.planning.hlo.frames import Frames
from anytpu.planning.hlo.instruction import Computation, Instruction
from anytpu.planning.hlo.module import Module
from anytpu.planning.hlo.shapes import shapes_of

_HEADER = re.compile(r"(ENTRY )?%?([^\s(]+) \(.*\) -> .*\{$")
_INSTRUCTION = re.compile(
    r"\s*(?:(ROOT) )?%?(?P<name>[^\s=]+) = "
    r"(?P<shape>\((?:.*?\))?|\S+) (?P<opcode>[a-z][a-z0-9\-]*)\((?P<operands>.*?)\)(?=,|$| )"
)
_OPERAND = re.compile(r"%([^\s,()]+)")
_CALLED = re.compile(
    r" (?:calls|to_apply|condition|body|select|scatter|comparator|true_computation|false_computation)=%?([^\s,{}]+)"
    r"| (?:calls|branch_computations|called_computations)=\{([^}]*)\}"
)
_CYCLES = re.compile(r'"estimated_cycles":"?(\d+)')
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_PARTITIONS = re.compile(r"num_partitions=(\d+)")
_METADATA = re.compile(r"kernel_metadata=\{\n[^\n]*\n\}")
_TESTED = "libtpu 0.0.51"


def parse(text: str) -> Module:
    """Read a module.

    Args:
        text: what `compiled.as_text()` gives.

    Raises:
        PlanError: it is no module. A line inside a computation that cannot be read is an error when that computation is
            looked at.

    Example:
        >>> module = parse('''HloModule twice, is_scheduled=true
        ...
        ... ENTRY %main (x: f32[8,128]) -> f32[8,128] {
        ...   %x = f32[8,128]{1,0:T(8,128)} parameter(0)
        ...   ROOT %add = f32[8,128]{1,0:T(8,128)} add(%x, %x), backend_config={"estimated_cycles":"96"}
        ... }
        ... ''')
        >>> [(one.name, one.opcode, one.cycles) for one in module.entry.instructions.values()]
        [('x', 'parameter', None), ('add', 'add', 96)]
    """
    if not text.startswith("HloModule "):
        start = text[:60].split("\n")[0]
        raise PlanError(
            f"the compiler's text starts with {start!r}, not with 'HloModule'; compile the program again, and if that "
            f"does not help install the compiler that anytpu was tested with, {_TESTED}"
        )
    text = _joined(text)
    header = text[: text.find("\n")] if "\n" in text else text
    computations = _Computations(text)
    partitions = _PARTITIONS.search(header)
    return Module(
        name=header.removeprefix("HloModule ").split(",")[0].strip(),
        header=header,
        num_partitions=int(partitions[1]) if partitions else 1,
        is_scheduled="is_scheduled=true" in header,
        computations=computations,
        entry_name=computations.entry_name,
        frames=Frames(text[: computations.start]),
    )


def _joined(text: str) -> str:
    """Return the text with each instruction on one line: what a Pallas kernel says of itself is written on several."""
    return _METADATA.sub(lambda match: match[0].replace("\n", ""), text) if "kernel_metadata={\n" in text else text


class _Computations(Mapping[str, Computation]):
    """Computations by name, each read when first looked at."""

    def __init__(self, text: str) -> None:
        self._text, self._read = text, dict[str, Computation]()
        self._spans: dict[str, tuple[int, int]] = {}
        self.entry_name, self.start = "", len(text)
        place = _first_computation(text)
        while place < len(text):
            place = self._span(place)
        if not self.entry_name:
            raise PlanError(
                f"the compiler's text has no ENTRY computation: it may have been cut off; compile the program again "
                f"({_TESTED} was tested)"
            )

    def _span(self, place: int) -> int:
        """Note where the computation at a place starts and ends; return where the next one starts."""
        text = self._text
        end_of_line = text.find("\n", place)
        match = _HEADER.match(text[place : end_of_line if end_of_line > 0 else len(text)])
        end = text.find("\n}", end_of_line - 1)
        if not match or end < 0:
            raise _unreadable(text, place, "%name (x: f32[8]) -> f32[8] {")
        self.start = min(self.start, place)
        self._spans[match[2]] = (end_of_line + 1, end)
        if match[1]:
            self.entry_name = match[2]
        after = text.find("\n", end + 1)
        return _skip_blank(text, after if after > 0 else len(text))

    def __getitem__(self, name: str) -> Computation:
        if name not in self._read:
            if name not in self._spans:
                raise PlanError(f"the compiler's text calls a computation {name!r}, which is not in it")
            start, end = self._spans[name]
            self._read[name] = _computation(name, self._text, start, end)
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._spans)

    def __len__(self) -> int:
        return len(self._spans)

    def __contains__(self, name: object) -> bool:
        return name in self._spans


def _first_computation(text: str) -> int:
    match = re.compile(r"^(?:ENTRY |%\S+ \()", re.MULTILINE).search(text)
    return match.start() if match else len(text)


def _skip_blank(text: str, place: int) -> int:
    while place < len(text) and text[place] in "\n\r ":
        place += 1
    return place


def _computation(name: str, text: str, start: int, end: int) -> Computation:
    instructions: dict[str, Instruction] = {}
    root = ""
    place = start
    for line in text[start:end].split("\n"):
        match = _INSTRUCTION.match(line)
        if match:
            one = _instruction(match, line)
            instructions[one.name] = one
            root = one.name if match[1] else root
        elif line.strip():
            raise _unreadable(text, place, "%name = f32[8]{0} opcode(%operand)")
        place += len(line) + 1
    return Computation(name, instructions, root or next(reversed(instructions), ""))


def _instruction(match: re.Match[str], line: str) -> Instruction:
    metadata = line.find(", metadata={", match.end())
    config = line.find(", backend_config=", match.end())
    # Names of computations stand before both; searching the rest would take longer and find what the user wrote.
    attributes = line[match.end() : min((x for x in (metadata, config) if x >= 0), default=len(line))]
    cycles = _CYCLES.search(line, config) if config >= 0 else None
    op_name = _OP_NAME.search(line, metadata) if metadata >= 0 else None
    frame = _FRAME.search(line, metadata) if metadata >= 0 else None
    opcode = match["opcode"]
    return Instruction(
        name=match["name"],
        opcode=opcode,
        shapes=shapes_of(match["shape"]),
        operands=() if opcode == "constant" else tuple(_OPERAND.findall(match["operands"])),
        called=_called(attributes) if "=" in attributes else (),
        cycles=int(cycles[1]) if cycles else None,
        op_name=op_name[1] if op_name else "",
        frame=int(frame[1]) if frame else None,
        text=line[match.start("shape") :],
    )


def _called(attributes: str) -> tuple[str, ...]:
    names: list[str] = []
    for one, many in _CALLED.findall(attributes):
        names += [one] if one else [name.strip().removeprefix("%") for name in many.split(",") if name.strip()]
    return tuple(names)


def _unreadable(text: str, place: int, expected: str) -> PlanError:
    number = text.count("\n", 0, place) + 1
    end = text.find("\n", place)
    line = text[place : end if end > 0 else len(text)].strip()
    shown = line if len(line) <= 160 else f"{line[:160]}..."
    return PlanError(
        f"line {number} of the compiler's text cannot be read: {shown!r}; it should look like {expected!r}. Install "
        f"the compiler that anytpu was tested with, {_TESTED}, or report the line"
    )
