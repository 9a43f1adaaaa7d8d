"""Formatting of quantities: bytes, seconds, counts, rates; and of the texts of other machines.

Idea: in the code a quantity is a bare number in one unit (bytes, seconds, Hz, flop/s), and its name states the unit.
Conversion to text happens only here, so a size reads the same in every report and every error.

Rule: three significant digits; memory sizes in powers of 1024 (KiB, MiB), everything else in powers of 1000.
"""

from __future__ import annotations

MAX_TEXT = 500
"""Maximum length of a text of another machine, in characters."""

KIB = 1024
MIB = 1024**2
GIB = 1024**3

_BINARY = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": 1024**4, "PiB": 1024**5}
_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_SECONDS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


def format_bytes(size_bytes: float) -> str:
    """Format a memory size.

    Example:
        >>> format_bytes(16 * GIB), format_bytes(1536), format_bytes(12)
        ('16 GiB', '1.5 KiB', '12 B')
    """
    return _format_scaled(size_bytes, _BINARY)


def format_seconds(duration_s: float) -> str:
    """Format a duration: below a minute with a unit, then as minutes and seconds, then as hours and minutes.

    Example:
        >>> format_seconds(0.00123), format_seconds(75), format_seconds(7322)
        ('1.23 ms', '1 min 15 s', '2 h 2 min')
    """
    if abs(duration_s) < 59.95:
        return _format_scaled(duration_s, _SECONDS)
    sign, whole_s = "-" if duration_s < 0 else "", round(abs(duration_s))
    if whole_s < 3600:
        return f"{sign}{whole_s // 60} min {whole_s % 60} s"
    minutes = round(abs(duration_s) / 60)
    return f"{sign}{minutes // 60:,} h {minutes % 60} min"


def format_count(count: float) -> str:
    """Format a count: as an integer up to 9,999, then with a prefix.

    Example:
        >>> format_count(1797), format_count(25_600_000)
        ('1,797', '25.6 M')
    """
    return f"{round(count):,}" if abs(count) < 9999.5 else _format_scaled(count, _PREFIXES)


def format_flops(flops: float) -> str:
    """Format a number of floating-point operations.

    Example:
        >>> format_flops(8.2e9)
        '8.2 GFLOP'
    """
    return _format_scaled(flops, {f"{prefix}FLOP": size for prefix, size in _PREFIXES.items()})


def format_rate(per_second: float, unit: str) -> str:
    """Format a rate: "45 TFLOP/s" for the unit "FLOP", "700 GB/s" for "B", "1,234 examples/s" for a word.

    Example:
        >>> format_rate(45e12, "FLOP"), format_rate(7e11, "B"), format_rate(23456, "examples")
        ('45 TFLOP/s', '700 GB/s', '23,456 examples/s')
    """
    if unit in ("B", "FLOP", "OP", "Hz"):
        return _format_scaled(per_second, {f"{prefix}{unit}": size for prefix, size in _PREFIXES.items()}) + "/s"
    digits = f"{round(per_second):,}" if abs(per_second) >= 100 else f"{per_second:.3g}"
    return f"{digits} {unit}/s"


def format_hertz(frequency_hz: float) -> str:
    """Format a frequency.

    Example:
        >>> format_hertz(940e6)
        '940 MHz'
    """
    return _format_scaled(frequency_hz, {f"{prefix}Hz": size for prefix, size in _PREFIXES.items()})


def printable(text: str, max_characters: int = MAX_TEXT) -> str:
    r"""Return the start of a text of another machine, with line ends and control characters escaped.

    Every text that arrived over a network passes here before it reaches a log, a terminal or an error. Otherwise it
    could forge lines of a log, or control the terminal. A text that passed here passes again unchanged.

    Example:
        >>> printable("box\x1b[2J\nrefused"), printable("\x07" * 300, 8)
        ('box\\x1b[2J\\nrefused', '\\x07\\x07')
    """
    shown = (char if char.isprintable() else char.encode("unicode_escape").decode() for char in text[:max_characters])
    return "".join(shown)[:max_characters]


def _format_scaled(value: float, scale: dict[str, float] | dict[str, int]) -> str:
    """Format a value in the largest unit that keeps it at least 1, or else in the smallest unit."""
    names = list(scale)
    fitting = [name for name in names if abs(value) >= 0.9995 * scale[name]]
    name = fitting[-1] if fitting else (_base_unit(scale) if value == 0 else names[0])
    return f"{_format_three_digits(value / scale[name])} {name}".rstrip()


def _base_unit(scale: dict[str, float] | dict[str, int]) -> str:
    return next(name for name, size in scale.items() if size == 1)


def _format_three_digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{float(f'{value:.3g}'):g}"
