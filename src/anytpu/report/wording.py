"""Text formatting shared by the reports: names on one line, percentages, counts with nouns."""

from __future__ import annotations

from collections.abc import Sequence

UNKNOWN = "-"
"""Text for an unknown number."""


def one_line(text: str) -> str:
    """Return a text without line breaks, with "?" for every control character.

    Example:
        >>> one_line("conv\\n 1 \\x1b[2J")
        'conv 1 ?[2J'
    """
    return "".join(char if char.isprintable() else "?" for char in " ".join(text.split()))


def percent(fraction: float | None) -> str:
    """Format a fraction as a percentage.

    Example:
        >>> percent(0.1234), percent(0.004), percent(0.0001), percent(0), percent(12.5), percent(None)
        ('12 %', '0.4 %', '< 0.1 %', '0 %', '1,250 %', '-')
    """
    if fraction is None:
        return UNKNOWN
    value = 100 * fraction
    if 0 < value < 0.05:
        return "< 0.1 %"
    return f"{value:,.0f} %" if value >= 9.95 or value == 0 else f"{value:.1f} %"


def plural(count: int, noun: str) -> str:
    """Format a count with its noun.

    Example:
        >>> plural(1, "chip"), plural(2048, "core")
        ('1 chip', '2,048 cores')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table whose columns are aligned at the left.

    Example:
        >>> aligned([("step", "size"), ("12", "1 KiB")])
        ['step  size', '12    1 KiB']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
