"""`parse`: read the compiler's HLO text.

Idea: the module of a large model is tens of megabytes, of which a question needs little. So the text is split into
computations, and the instructions of each are read at first use. A walk over a module takes the first operand of a
slice or the body of a loop without checking that it exists. HLO's guarantees are checked here, once for each line.

Rule: a malformed line is a `PlanError` that quotes it; no line is skipped silently. Operands and called computations
are defined before their users, so no walk loops forever. For an unknown opcode only that is checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from anytpu.errors import PlanError
from anytpu.planning.hlo.instruction import Computation, HloInstruction, element_span
from anytpu.planning.hlo.module import Module
from anytpu.planning.hlo.origin import Frames
from anytpu.planning.hlo.shapes import shapes_of
from anytpu.planning.records.quoting import quoted

_FIRST = re.compile(r"^(?:ENTRY |%\S+ \()", re.MULTILINE)
_BLANK = re.compile(r"[\n\r ]*")
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
_NO_CYCLES = str(2**63 - 1)
"""The compiler's word for a fusion whose cycles it cannot estimate, seen with libtpu 0.0.42 for v5e."""
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_FRAME = re.compile(r"stack_frame_id=(\d{1,9})\b")
_MAX_DIGITS = 18
_METADATA = re.compile(r"kernel_metadata=\{\n[^\n]*\n\}")
_TESTED = "libtpu 0.0.51"
_ONE_ARRAY = (
    *("bitcast", "copy", "copy-done", "convert", "reshape", "transpose", "broadcast", "negate"),
    *("slice", "dynamic-slice", "gather", "reverse", "pad", "reduce", "reduce-window", "select-and-scatter"),
)
_TWO_ARRAYS = ("dot", "convolution", "compare", "add", "subtract", "multiply", "dynamic-update-slice")
_MIN_ARRAYS = {**dict.fromkeys(_ONE_ARRAY, 1), **dict.fromkeys(_TWO_ARRAYS, 2), "scatter": 3}
"""The opcodes that return at least one array, each with its minimum number of array operands."""
_MIN_OPERANDS = {**_MIN_ARRAYS, "get-tuple-element": 1, "while": 1, "conditional": 1}
_MIN_CALLED = {"while": 2, "fusion": 1, "call": 1, "conditional": 1, "async-start": 1}


def parse(text: str) -> Module:
    """Read a module.

    Args:
        text: the result of `compiled.as_text()`.

    Raises:
        PlanError: it is not a module. A malformed line inside a computation is an error when that computation is used.

    Example:
        >>> module = parse('''HloModule twice, is_scheduled=true
        ...
        ... ENTRY %main (x: f32[8,128]) -> f32[8,128] {
        ...   %x = f32[8,128]{1,0:T(8,128)} parameter(0)
        ...   ROOT %add = f32[8,128]{1,0:T(8,128)} add(%x, %x), backend_config={"estimated_cycles":"96"}
        ... }
        ... ''')
        >>> [(each.name, each.opcode, each.cycles) for each in module.entry.instructions.values()]
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
    return Module(
        header=header,
        computations=computations,
        entry_name=computations.entry_name,
        frames=Frames(text[: computations.start]),
    )


def _joined(text: str) -> str:
    """Return the text with each instruction on one line: a Pallas kernel's own description spans several."""
    return _METADATA.sub(lambda match: match[0].replace("\n", ""), text) if "kernel_metadata={\n" in text else text


class _Computations(Mapping[str, Computation]):
    """Computations by name, each read at first use."""

    def __init__(self, text: str) -> None:
        self._text, self._read = text, dict[str, Computation]()
        self._spans: dict[str, tuple[int, int]] = {}
        self.entry_name, self.start = "", len(text)
        first = _FIRST.search(text)
        place = first.start() if first else len(text)
        while place < len(text):
            place = self._span(place)
        if not self.entry_name:
            raise PlanError(
                f"the compiler's text has no ENTRY computation: it may have been cut off; compile the program again "
                f"({_TESTED} was tested)"
            )

    def _span(self, place: int) -> int:
        """Note the start and end of the computation at an offset; return the offset of the next one."""
        text = self._text
        end_of_line = text.find("\n", place)
        match = _HEADER.match(text[place : end_of_line if end_of_line > 0 else len(text)])
        end = text.find("\n}", end_of_line - 1)
        if not match or end < 0:
            raise _unreadable(text, place, "%name (x: f32[8]) -> f32[8] {")
        if match[2] in self._spans or (match[1] and self.entry_name):
            raise _faulty(text, place, "there is a computation of that name, or an ENTRY, before it")
        self.start = min(self.start, place)
        self._spans[match[2]] = (end_of_line + 1, end)
        if match[1]:
            self.entry_name = match[2]
        after = text.find("\n", end + 1)
        blank = _BLANK.match(text, after if after > 0 else len(text))
        return blank.end() if blank else len(text)

    def __getitem__(self, name: str) -> Computation:
        if name not in self._read:
            if name not in self._spans:
                raise PlanError(f"the compiler's text calls a computation {quoted(name)}, which is not in it")
            start, end = self._spans[name]
            self._read[name] = self._computation(name, start, end)
        return self._read[name]

    def _computation(self, name: str, start: int, end: int) -> Computation:
        instructions: dict[str, HloInstruction] = {}
        root: HloInstruction | None = None
        place = start
        # Invariant: `place` is the offset of `line` in the text, by which errors quote it.
        for line in self._text[start:end].split("\n"):
            match = _INSTRUCTION.match(line)
            if match:
                try:
                    instruction = self._instruction(match, line, place, instructions)
                except PlanError as error:
                    raise _faulty(self._text, place, str(error)) from error
                instructions[instruction.name] = instruction
                root = instruction if match[1] else root
            elif line.strip():
                raise _unreadable(self._text, place, "%name = f32[8]{0} opcode(%operand)")
            place += len(line) + 1
        if not instructions:
            raise _faulty(self._text, start - 1, "a computation has an instruction at least")
        return Computation(name, instructions, root or next(reversed(instructions.values())))

    def _instruction(
        self, match: re.Match[str], line: str, place: int, before: dict[str, HloInstruction]
    ) -> HloInstruction:
        """Return the checked instruction of a line at an offset of the text; add the elements it reads to those before.

        Raises:
            PlanError: it does not fit those before it. The text is a sentence about "it".
        """
        # 1. The attributes of the line.
        metadata = line.find(", metadata={", match.end())
        config = line.find(", backend_config=", match.end())
        # Names of computations come before both; searching the rest would take longer and match the user's own text.
        attributes = line[match.end() : min((x for x in (metadata, config) if x >= 0), default=len(line))]
        op_name = _OP_NAME.search(line, metadata) if metadata >= 0 else None
        frame = _FRAME.search(line, metadata) if metadata >= 0 else None
        opcode = match["opcode"]
        # 2. The instruction, whose operands are instructions before it.
        instruction = HloInstruction(
            name=match["name"],
            opcode=opcode,
            shapes=shapes_of(match["shape"]),
            operands=() if opcode == "constant" else _operands(match["operands"], before),
            called=_called(attributes) if "=" in attributes else (),
            computations=self,
            cycles=_cycles(line, config) if config >= 0 else None,
            op_name=op_name[1] if op_name else "",
            frame=int(frame[1]) if frame else None,
            text=line[match.start("shape") :],
        )
        # 3. The checks. Callees come before their callers, so that no walk loops forever.
        if instruction.name in before:
            raise PlanError(f"there is an instruction {quoted(instruction.name)} before it")
        for name in instruction.called:
            if name in self._spans and self._spans[name][1] > place:
                raise PlanError(f"the computation {quoted(name)} that it calls is not defined before it is used")
        _check(instruction)
        return instruction

    def __iter__(self) -> Iterator[str]:
        return iter(self._spans)

    def __len__(self) -> int:
        return len(self._spans)

    def __contains__(self, name: object) -> bool:
        return name in self._spans


def _operands(written: str, before: dict[str, HloInstruction]) -> tuple[HloInstruction, ...]:
    """Return the operands of a line. An element "fusion.5#2" of a tuple becomes an instruction of its own."""
    names = _OPERAND.findall(written)
    for name in names:
        if name not in before:
            source, mark, index = name.rpartition("#")
            if not mark or source not in before or not index.isdecimal():
                raise PlanError(f"its operand {quoted(name)} is not defined before it is used")
            before[name] = _element(name, before[source], int(index[:_MAX_DIGITS]))
    return tuple(before[name] for name in names)


def _element(name: str, source: HloInstruction, index: int) -> HloInstruction:
    """Return a get-tuple-element, which the compilers of JAX 0.12 leave out of their text."""
    if not _has_element(source, index):
        raise PlanError(f"its operand {quoted(name)} is not an element of {quoted(source.name)}")
    start, width = element_span(source.text, index)
    shapes = source.shapes[start : start + width]
    text = f"({', '.join(map(str, shapes))}) get-tuple-element(%{source.name}), index={index}"
    return HloInstruction(
        name, "get-tuple-element", shapes, (source,), (), source.computations, None, source.op_name, source.frame, text
    )


def _cycles(line: str, config: int) -> int | None:
    match = _CYCLES.search(line, config)
    if match is None or match[1] == _NO_CYCLES:
        return None
    if len(match[1]) > _MAX_DIGITS:
        raise PlanError(f"its estimated_cycles are {quoted(match[1])}")
    return int(match[1])


def _check(instruction: HloInstruction) -> None:
    """Check that an instruction has the operands, results and called computations that its opcode needs."""
    opcode, operands, called = instruction.opcode, instruction.operands, instruction.called
    needed = _MIN_OPERANDS.get(opcode, int(opcode.endswith(("-done", "-update"))))
    if len(operands) < needed:
        raise PlanError(f"{quoted(opcode)} takes {needed} operands at least, and it has {len(operands)}")
    calls = _MIN_CALLED.get(opcode, 0)
    if len(called) < calls:
        raise PlanError(f"{quoted(opcode)} calls {calls} computations, and it names {len(called)}")
    arrays = _MIN_ARRAYS.get(opcode, 0)
    if (arrays or opcode == "fusion") and not instruction.shapes:
        raise PlanError(f"{quoted(opcode)} gives an array, and it gives none")
    for operand in operands[:arrays]:
        if not operand.shapes:
            raise PlanError(f"its operand {quoted(operand.name)} is not an array")
    if opcode == "get-tuple-element" and not _has_element(operands[0], instruction.tuple_index):
        raise PlanError(f"{quoted(operands[0].name)} has no element of its index")
    if opcode == "parameter" and instruction.parameter_number is None:
        raise PlanError("a parameter has its number in parentheses")


def _has_element(operand: HloInstruction, index: int | None) -> bool:
    try:
        start, width = (0, 0) if index is None else element_span(operand.text, index)
    except IndexError:
        return False
    return index is not None and start + width <= len(operand.shapes)


def _called(attributes: str) -> tuple[str, ...]:
    names: list[str] = []
    for single, listed in _CALLED.findall(attributes):
        names += [single] if single else [name.strip().removeprefix("%") for name in listed.split(",") if name.strip()]
    return tuple(names)


def _unreadable(text: str, place: int, expected: str) -> PlanError:
    number, line = _line(text, place)
    return PlanError(
        f"line {number} of the compiler's text cannot be read: {quoted(line, 160)}; it should look like "
        f"{expected!r}. Install the compiler that anytpu was tested with, {_TESTED}, or report the line"
    )


def _faulty(text: str, place: int, why: str) -> PlanError:
    number, line = _line(text, place)
    return PlanError(
        f"line {number} of the compiler's text is damaged: {quoted(line, 160)}: {why}. Compile the "
        "program again, without what was kept: use_cache=False (--no-cache)"
    )


def _line(text: str, place: int) -> tuple[int, str]:
    """Return the number of the line at an offset, from 1, and the line."""
    end = text.find("\n", place)
    line = text[text.rfind("\n", 0, place) + 1 : end if end > 0 else len(text)].strip()
    return text.count("\n", 0, place) + 1, line
