"""What the assembler says about lines that it cannot read, whole."""

from __future__ import annotations

import functools
import tracemalloc

import numpy as np
import pytest

from anytpu.chip.assembly import assemble, disassemble
from anytpu.errors import AssemblyError
from anytpu.units import format_bytes
from chip_samples import service_image

NINES = "9" * 400

REFUSED = [
    (
        "halt\n  matrix_mulitply 0, 0, 1",
        (2, 3),
        "there is no instruction 'matrix_mulitply'. Did you mean matrix_multiply?",
    ),
    (
        "jump 3",
        (1, 1),
        "there is no instruction 'jump'. There are: nop, halt, debug_tag, interrupt_host, set_configuration, sync, "
        "read_host_memory, write_host_memory, read_weights, matrix_multiply, convolve, activate.",
    ),
    ("matrix_multiply 0, 0, 1, repeat=256  ; too often", (1, 33), "repeat must be a number from 1 to 255, not 256."),
    ("matrix_multiply 0, rows=4", (1, 1), "matrix_multiply needs accumulator."),
    ("activate.scale 0", (1, 1), "activate needs target and rows."),
    ("convolve 0, 0, 1, address=5", (1, 19), "address is given twice."),
    ("convolve 0, 0, row=1", (1, 16), "convolve has no operand 'row'. Did you mean rows?"),
    ("sync read, write, 3", (1, 19), "sync has 2 operands: waiting, finished."),
    ("halt 3", (1, 6), "halt has no operands."),
    ("halt x=3", (1, 6), "halt has no operands."),
    ("set_configuration PICTH, 8", (1, 19), "there is no register PICTH. Did you mean PITCH?"),
    (
        "set_configuration 0x14, 8",
        (1, 19),
        "there is no register 0x14. There are: PITCH, PLANE_STRIDE, HIGH_OFFSET, LANES, BATCH, IN_HEIGHT, IN_WIDTH, "
        "OUT_WIDTH, FIRST_ROW, KERNEL_HEIGHT, KERNEL_WIDTH, STRIDE_HEIGHT, STRIDE_WIDTH, DILATION_HEIGHT, "
        "DILATION_WIDTH, PAD_TOP, PAD_LEFT, TAPS, FIRST_TAP, ZERO_POINT, SECOND_PITCH, SECOND_ROWS, "
        "SECOND_HIGH_OFFSET, SECOND_ZERO_POINT, OUT_PITCH, OUT_HIGH_OFFSET, OUT_ZERO_POINT, LOW, HIGH, SCALE, "
        "SECOND_SCALE, OUT_SCALE, TABLE, SOURCE_LANE, OUT_UNITS.",
    ),
    ("set_configuration LOW, 40000", (1, 24), "register LOW must be a number from -32768 to 32767, not 40000."),
    ("set_configuration SCALE, 1e-60", (1, 26), "register SCALE must be a float32 number above 0, not 0.0."),
    (
        "set_configuration SCALE, 1e60",
        (1, 26),
        "register SCALE must be a float32 number above 0, and 1e+60 is greater than all of them.",
    ),
    ("set_configuration PITCH, 0.5", (1, 26), "value must be an integer, not 0.5."),
    ("sync matrix, activat|read", (1, 14), "there is no unit 'activat'. Did you mean activate?"),
    ('sync matrix, "read"', (1, 14), "finished must name units, like read|activate."),
    ("sync 0, read", (1, 6), "waiting must be a number from 1 to 31, not 0."),
    ("debug_tag one", (1, 11), "tag must be an integer, not one."),
    (
        "matrix_multiply.keep.acumulate 0, 0, 1",
        (1, 22),
        "matrix_multiply has no suffix '.acumulate'. Did you mean accumulate?",
    ),
    ("halt.now", (1, 6), "halt has no suffix '.now'. It has none."),
    ("convolve.keep.keep 0, 0, 1", (1, 15), "the suffix '.keep' is given twice."),
    ("activate.max.average 0, 0, 1", (1, 14), "the suffix '.average' does not go with '.max'."),
    (
        "activate.keep 0, 0, 1",
        (1, 1),
        "activate needs one of .scale, .copy, .add, .subtract, .multiply, .max, .average.",
    ),
    ("12 nop", (1, 1), "a line begins with an instruction, or with a directive, like .batch."),
    (".bacth 4", (1, 1), "there is no directive '.bacth'. Did you mean .batch?"),
    (".batch 0", (1, 8), "examples must be a number from 1 to 4294967295, not 0."),
    (".host_bytes -1", (1, 13), "bytes must be a number from 0 to 1099511627776, not -1."),
    (
        ".host_bytes 4294967296",
        (1, 13),
        "a host's buffer of 4,294,967,296 bytes is too large: it unpacks from 22 B to 4 GiB, and above 1 GiB a file "
        "may unpack to 100 times its size.",
    ),
    (".name mlp", (1, 7), 'text must be a text, like "text", not mlp.'),
    ('.name "mlp', (1, 7), "a text begins here and does not end. It ends with a second quotation mark."),
    ('.name "m\\lp"', (1, 7), 'the text "m\\lp" cannot be read: it is written as in JSON.'),
    (".design clock=7", (1, 9), ".design has no operand 'clock'. Did you mean clock_hz?"),
    (".design array=8, clock_hz=0", (1, 27), "clock_hz of a chip must be a number from 0.001 to 1e18, not 0."),
    (
        '.input "x", [1, 3], 0, 1',
        (1, 13),
        "a shape is [height, width, channels] of one example, each above 0, not [1, 3].",
    ),
    ('.input "x", 3, 0, 1', (1, 13), "shape must be a list of integers, like [1, 1, 10]."),
    ('.input "x", [a], 0, 1', (1, 14), "a list holds numbers, separated by commas, and ends with ']'."),
    (
        '.input "x", [1, 1, 3], 0, 1, lanes=[2, 2]',
        (1, 36),
        "lanes are those of each plane: they must be above 0 and add up to 3, unlike [2, 2].",
    ),
    ('.output "x", [1, 1, 3], 0, -0.5', (1, 28), "a scale is a float32 number above 0, not -0.5."),
    ('.output "x", [1, 1, 3], 0, 1, bits=4', (1, 36), "bits must be 8 or 16, not 4."),
    ('.output "x", [1, 1, 3], 0, 1, 200', (1, 31), "a zero point of 8 bits is an integer from -128 to 127, not 200."),
    ('.output "x", [1, 1, 3], 8, 1', (1, 25), "host_address must be 0 or a positive multiple of 32, not 8."),
    (".zero 2049\n.block 1", (2, 8), "block 1 is filled; the next that is free is 2."),
    (".int8 1, 128", (1, 10), "a number of int8 is an integer from -128 to 127."),
    (".float32 1e39", (1, 10), "1e39 is no float32 number."),
    (".int8 a", (1, 7), ".int8 takes numbers, separated by commas."),
    ('.base64 "AAA"', (1, 9), "the text is not in base64."),
    (
        '.service "{"',
        (1, 10),
        "the description is no JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1).",
    ),
    (
        'halt\n.service "{}"',
        (2, 1),
        "what the host does cannot be read. Its description is invalid (TypeError: Service.__init__() missing 3 "
        "required positional arguments: 'step', 'inputs', and 'output').",
    ),
    ('.array "int8", [3], "AAA="', (1, 8), "the array cannot be read: cannot reshape array of size 2 into shape (3,)."),
    ('.array "O", [1], "AAAAAAAAAAA="', (1, 8), "the array cannot be read: object is no kind of numbers."),
    (
        '.array "int8", [99999999999999999999], "AAA="',
        (1, 8),
        "the array cannot be read: Maximum allowed dimension exceeded.",
    ),
    (
        ".zero 2147483648",
        (1, 7),
        "there is no room for 2,147,483,648 bytes of 0: it unpacks from 0 B to 2 GiB, and above 1 GiB a file "
        "may unpack to 100 times its size.",
    ),
    (
        ".zero 32\n.zero 99999999999999",
        (2, 7),
        "the Weight Memory has 8,589,934,592 bytes, and this would fill 100,000,000,000,031. A larger one is asked "
        "for before: .design weight_memory_bytes=...",
    ),
    (
        ".design weight_memory_bytes=4096\n.block 2\n.block 3",
        (3, 8),
        "the Weight Memory has 4,096 bytes, and this would fill 6,144. A larger one is asked for before: .design "
        "weight_memory_bytes=...",
    ),
    (
        ".zero 999999999999999999999999",
        (1, 7),
        "bytes must be a number from 0 to 9223372036854775807, not 999999999999999999999999.",
    ),
    ('.tag "a", macs=-1', (1, 16), "macs must be a number from 0 to 9223372036854775807, not -1."),
    (
        '.left_out "8 bytes of weights"',
        (1, 11),
        (
            "this text leaves out 8 bytes of weights, so it is no whole program. Write it with weights: anytpu chip "
            "disasm --weights, or disassemble(weights=True)."
        ),
    ),
]
"""Lines, the place of the fault, and what is said of it; the line is shown with a mark under the place."""

LONG = {
    "a knob beyond all floats": (
        f".design array={NINES}",
        f"""\
Line 1, column 15: array of a chip must be an integer from 1 to 2,048, not {NINES}.
    .design array={NINES[:106]} ...
                  ^""",
    ),
    "a scale beyond all floats": (
        f'.input "x", [1, 1, 1], 0, {NINES}',
        f"""\
Line 1, column 27: a scale is a float32 number above 0, not {NINES}.
    .input "x", [1, 1, 1], 0, {NINES[:94]} ...
                              ^""",
    ),
    "a register beyond all floats": (
        f"set_configuration SCALE, {NINES}",
        f"""\
Line 1, column 26: register SCALE must be a float32 number above 0, and {NINES} is greater than all of them.
    set_configuration SCALE, {NINES[:95]} ...
                             ^""",
    ),
    "a description that is too deep": (
        f'.service "{"[" * 100_000}"',
        f"""\
Line 1, column 10: the description is no JSON: it nests too deeply.
    .service "{"[" * 110} ...
             ^""",
    ),
    "a long line": (
        f'.base64 "{"A" * 500}", 1',
        f"""\
Line 1, column 513: .base64 has 1 operand: text.
    .base64 "{"A" * 500}", 1
{" " * 516}^""",
    ),
    "a long line with an early error": (
        f'.base65 "{"A" * 500}"',
        f"""\
Line 1, column 1: there is no directive '.base65'. Did you mean .base64?
    .base65 "{"A" * 111} ...
    ^""",
    ),
}


def refusal(text: str) -> str:
    with pytest.raises(AssemblyError) as caught:
        assemble(text)
    return str(caught.value)


def test_what_cannot_be_read():
    wrong = []
    for text, (number, column), message in REFUSED:
        line = text.splitlines()[number - 1].rstrip()
        shown = f"Line {number}, column {column}: {message}\n    {line}\n    {' ' * (column - 1)}^"
        wrong += [(shown, said)] if (said := refusal(text)) != shown else []
    assert wrong == []


def test_long_lines_are_cut_around_the_mark():
    assert {name: refusal(text) for name, (text, _) in LONG.items()} == {name: said for name, (_, said) in LONG.items()}


NO_OPERANDS = (
    "the operands cannot be read. They are numbers (300, 0x12c, 0.5), names (read|activate), texts in quotation marks "
    "or lists in brackets, separated by commas; those with a name come last. A comment begins with ';' or '#'."
)
UNREADABLE = [
    ("convolve", "0, accumulator=0, 1"),
    ("convolve", "0 0"),
    ("convolve", "0, , 1"),
    ("convolve", "0, 1, ; go on"),
    ("sync", "matrix|, read"),
    ("sync", "matrix|2, read"),
    ("debug_tag", "0x1G"),
    ("debug_tag", "1.2.3"),
    ("debug_tag", "1j"),
    ("debug_tag", "\u00e9"),
    ("debug_tag", "len(x)"),
    ("debug_tag", "*x"),
    ("debug_tag", "1) (2"),
    ("debug_tag", "1) or f(2"),
    ("debug_tag", "9" * 5000),
    ("debug_tag", "(" * 5000),
    ("debug_tag", "-" * 9999 + "1"),
    ("debug_tag", "[x for x in y]"),
    ("debug_tag", 'f"a"'),
    ("halt", "\0"),
    ("halt", "@"),
    ("sync", "|".join(["read"] * 20_000) + "|1, read"),
    (".int8", "1 2"),
    (".int8", "1if 1else 1"),
    ("debug_tag", "(300)"),
    ("debug_tag", "'\\d'"),
]


@pytest.mark.parametrize(("head", "operands"), UNREADABLE, ids=[f"{o[:12]}" for _, o in UNREADABLE])
def test_operands_that_are_none(head: str, operands: str):
    with pytest.raises(AssemblyError) as caught:
        assemble(f"halt\n{head} {operands}")
    line, _, shown = str(caught.value).partition("\n")
    assert line == f"Line 2, column {len(head) + 2}: {NO_OPERANDS}"
    assert shown.endswith(f"\n    {' ' * (len(head) + 1)}^")


def test_an_integer_that_python_does_not_print():
    with pytest.raises(AssemblyError) as caught:
        assemble(f"sync matrix, 0x{'f' * 5000}")
    assert str(caught.value).startswith("Line 1, column 14: an integer has at most 14,000 bits.")


@pytest.mark.parametrize(
    "operands", ["1" + "|a" * 200_000, "[" + "1," * 200_000 + "1]", "-" * 300_000 + "1", "_" * 300_000]
)
def test_a_line_of_more_syntax_than_it_may_have(operands: str):
    tracemalloc.start()
    try:
        with pytest.raises(AssemblyError) as caught:
            assemble(f".batch {operands}")
        assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    finally:
        tracemalloc.stop()
    assert str(caught.value).startswith(
        f"Line 1, column 8: a line has at most 262,144 characters outside of texts, and this one {len(operands):,}. "
        "Write data as .int8 or .base64.\n"
    )


def test_a_line_of_many_numbers_takes_little_memory():
    numbers = np.arange(10**5, dtype=np.uint64).astype(np.int8)  # 100 MB at once
    text = ".int8 " + ", ".join(map(str, numbers)) + "  ; a comment\nhalt"
    tracemalloc.start()
    try:
        image = assemble(text)
        assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(image.weights.view(np.int8), numbers)


def test_many_texts_are_refused_before_they_are_matched():
    tracemalloc.start()
    try:
        with pytest.raises(AssemblyError) as caught:
            assemble(".batch " + '"" ' * 500_000)
        assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    finally:
        tracemalloc.stop()
    assert "outside of texts, and this one 1,000,000. Write" in str(caught.value)


@pytest.mark.parametrize("count", [1, 4096, 8192])
def test_a_line_of_numbers_that_ends_with_a_comma(count: int):
    with pytest.raises(AssemblyError) as caught:
        assemble(".int8 " + "1," * count)
    assert str(caught.value).startswith(f"Line 1, column 7: {NO_OPERANDS}\n")


@pytest.mark.parametrize("broken", [4095, 4096, 4097])
@pytest.mark.parametrize(("written", "why"), [("", NO_OPERANDS), ("a", ".int8 takes numbers, separated by commas.")])
def test_a_fault_in_a_long_line_of_numbers(broken: int, written: str, why: str):
    numbers = ["1"] * 9000
    numbers[broken] = written
    with pytest.raises(AssemblyError) as caught:
        assemble(".int8 " + ",".join(numbers))
    message = str(caught.value).partition("\n")[0]
    assert message.startswith("Line 1, column ") and message.endswith(why)


def test_steps_of_an_earlier_release():
    text = disassemble(service_image(), weights=True).splitlines()
    (number,) = (number for number, line in enumerate(text) if line.startswith(".steps"))
    text[number] = '.steps "{\\"steps\\": []}"'
    with pytest.raises(AssemblyError) as caught:
        assemble("\n".join(text))
    assert str(caught.value).splitlines()[0] == (
        f"Line {number + 1}, column 1: what the host does cannot be read. The steps are in another form: compile the "
        "model again, and disassemble it."
    )


def test_a_step_of_the_host_that_is_too_large():
    text = disassemble(service_image(), weights=True)
    assemble(text)
    (steps,) = (line for line in text.splitlines() if line.startswith(".steps"))
    rows = {"[4, 8]": "[100000000, 8]", '\\"rows\\": 4': '\\"rows\\": 100000000'}
    large = text.replace(steps, functools.reduce(lambda line, pair: line.replace(*pair), rows.items(), steps))
    with pytest.raises(AssemblyError) as caught:
        assemble(large)
    assert (
        "what the host does cannot be read. The host's step 'negate/h' computes 100,000,000 rows at a time, which is "
        f"too much: it unpacks from {format_bytes(len(large))} to {format_bytes(4 * 32 * 10**8)}, and above 1 GiB a "
        "file may unpack to 100 times its size.\n"
    ) in str(caught.value)
