"""Texts that several reports write: names on one line, parts of a whole, numbers of things."""

from __future__ import annotations

UNKNOWN = "-"
"""What stands for a number that is not known."""


def one_line(text: str) -> str:
    """Return a text without line breaks, and with "?" for every character that a terminal would obey.

    Example:
        >>> one_line("conv\\n 1 \\x1b[2J")
        'conv 1 ?[2J'
    """
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))


def percent(fraction: float | None) -> str:
    """Write a part of a whole.

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


def plural(number: int, noun: str) -> str:
    """Write a number of things with its noun.

    Example:
        >>> plural(1, "chip"), plural(2048, "core")
        ('1 chip', '2,048 cores')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
