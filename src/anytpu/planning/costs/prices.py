"""The price of an hour of each chip: the included table `prices.csv`, and the user's own.

Idea: prices change, differ between regions and depend on contracts. So each has its date and source, and the user may
give a file with the prices that he pays.

Rule: a row of the user's file replaces the whole row of the table. An empty cell means that there is no such offer, or
that its price is not known; never 0.
"""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from anytpu.errors import SettingError
from anytpu.files.opening import read_text
from anytpu.planning.records.cost import Price
from anytpu.planning.records.quoting import quoted
from anytpu.system.chips import CHIPS

COLUMNS = tuple(field.name for field in dataclasses.fields(Price))
"""The columns of a table of prices, in any order; only "chip" must be there."""

_NUMBERS = ("usd_per_chip_hour", "spot_usd_per_chip_hour", "preemptions_per_hour")
_TABLE = Path(__file__).with_name("prices.csv")
_EXAMPLE = "chip,usd_per_chip_hour,spot_usd_per_chip_hour,date"


def read_prices(path: str | Path | None = None) -> dict[str, Price]:
    """Return the price of each chip.

    Args:
        path: a CSV file of the user. Its first line has the column names, such as
            "chip,usd_per_chip_hour,spot_usd_per_chip_hour,date". Then comes a row for each chip with another price.
            None: the included table.

    Raises:
        SettingError: the file cannot be read, or one of its lines is malformed; the message names the line.

    Example:
        >>> read_prices()["v3"].usd_per_chip_hour
        2.0
    """
    known = {price.chip: price for price in _rows(_lines(_TABLE), _TABLE.name)}
    if path is None:
        return known
    if not isinstance(path, str | Path):
        raise SettingError(f"prices must be the path of a CSV file whose first line is {_EXAMPLE}, not {path!r}")
    own = {price.chip: price for price in _rows(_lines(Path(path)), str(path))}
    return known | own


def _lines(path: Path) -> list[str]:
    try:
        return read_text(path, "utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SettingError(
            f"the prices cannot be read from {str(path)!r}: {why}. Give a CSV file whose first line is {_EXAMPLE}"
        ) from error


def _rows(lines: Iterable[str], name: str) -> Iterator[Price]:
    try:
        yield from _prices(csv.DictReader(lines), name)
    except csv.Error as error:
        raise SettingError(f"the table of prices {name!r} cannot be read as CSV: {error}") from error


def _prices(reader: csv.DictReader[str], name: str) -> Iterator[Price]:
    unknown = [column for column in reader.fieldnames or () if column not in COLUMNS]
    if unknown or "chip" not in (reader.fieldnames or ()):
        wrong = f"has the unknown column {quoted(unknown[0])}" if unknown else "has no column 'chip' in its first line"
        raise SettingError(f"the table of prices {name!r} {wrong}; its columns are {', '.join(COLUMNS)}")
    seen: set[str] = set()
    for row in reader:
        price = _price(row, f"line {reader.line_num} of the prices in {name!r}", name)
        if price.chip in seen:
            raise SettingError(
                f"line {reader.line_num} of the prices in {name!r} is the second for {price.chip!r}: keep one"
            )
        seen.add(price.chip)
        yield price


def _price(row: dict[str, str | None], where: str, name: str) -> Price:
    if None in row:
        raise SettingError(f"{where} has more cells than the first line has columns: put a text with commas in quotes")
    cells = {column: (text or "").strip() for column, text in row.items()}
    chip = cells["chip"]
    if chip not in CHIPS:
        raise SettingError(f"{where} names the chip {quoted(chip)}; the chips are {', '.join(CHIPS)}")
    numbers = {column: _number(cells.get(column, ""), column, where) for column in _NUMBERS}
    return Price(
        chip, **numbers, date=cells.get("date", ""), source=cells.get("source") or name, note=cells.get("note", "")
    )


def _number(text: str, column: str, where: str) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (0 <= value < math.inf):
        raise SettingError(
            f"{where} has {quoted(text)} for {column}, which must be a number, 0 or more, without a currency; leave "
            "the cell empty where there is none"
        )
    return value
