"""`TextTable`, `TableReport`: a table of texts, and the report of a record with one table, in the terminal and as HTML.

Idea: the rows of a table are made once. The terminal and a page show the same ones, with the same remarks around them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table
from rich.text import Text

from anytpu.errors import SettingError
from anytpu.report import output
from anytpu.report.html import Markup, element, joined, whole
from anytpu.report.html import table as html_table
from anytpu.report.terminal import compact_table, hang, open_console, say, table_width


class TextTable(NamedTuple):
    """A table of texts.

    Attributes:
        titles: titles of the columns.
        rows: cells of each row.
        left: titles of the columns of words, which are aligned left; the others have numbers.
        wrapped: titles of the columns that may take several lines of a terminal.
        faults: indices of the rows whose last cell is a fault, shown in red.
    """

    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Collection[str] = ()
    wrapped: Collection[str] = ()
    faults: Collection[int] = ()

    def without(self, title: str) -> TextTable:
        """Return the table without a column."""
        index = list(self.titles).index(title)
        titles, *rows = ((*cells[:index], *cells[index + 1 :]) for cells in (self.titles, *self.rows))
        return self._replace(titles=titles, rows=rows)

    def within(self, width: int) -> TextTable:
        """Return the table without its last columns, as far as a terminal has no room for them."""
        table = self
        while len(table.titles) > 2 and table_width(table.to_terminal()) > width:
            table = table.without(table.titles[-1])
        return table

    def to_terminal(self) -> Table:
        """Return the table for a terminal."""
        shown = compact_table(self.titles, self.left, self.wrapped, "fold" if self.wrapped else "ellipsis")
        for index, (*cells, last) in enumerate(self.rows):
            shown.add_row(*cells, Text(last, "red") if index in self.faults else last)
        return shown

    def to_html(self, class_: str) -> Markup:
        """Return the table for a page."""
        numbers = [index for index, title in enumerate(self.titles) if title not in self.left]
        rows = [
            (*cells, element("b", last, class_="bad") if index in self.faults else last)
            for index, (*cells, last) in enumerate(self.rows)
        ]
        return html_table(self.titles, rows, class_, numbers)


class Remark(NamedTuple):
    """A paragraph around a table.

    Attributes:
        text: the text.
        start: its beginning; further lines of a terminal are indented by its width.
        is_dim: whether it only explains the table.
    """

    text: str
    start: str = ""
    is_dim: bool = False


class TableReport:
    """A renderer of a record with one table, without plots."""

    def caption(self, record: Any) -> str:
        """Return the title of the report."""
        raise NotImplementedError

    def table(self, record: Any) -> TextTable:
        """Return the table."""
        raise NotImplementedError

    def before(self, record: Any) -> Sequence[Remark]:
        """Return the remarks above the table."""
        return ()

    def after(self, record: Any) -> Sequence[Remark]:
        """Return the remarks below the table."""
        raise NotImplementedError

    def show(self, record: Any) -> None:
        """Print the report; a table without rows is left out."""
        console, table = open_console(), self.table(record)
        say(console, self.caption(record), style="bold")
        _print(console, self.before(record))
        if table.rows:
            console.print(table.to_terminal())
        _print(console, self.after(record))

    def to_fragment(self, record: Any) -> str:
        """Return the report as HTML for a notebook."""
        above, below = (
            [element("p", remark.start, remark.text) for remark in remarks]
            for remarks in (self.before(record), self.after(record))
        )
        title = element("p", element("b", self.caption(record)))
        return element("div", title, *above, joined(self.table(record).to_html("")), *below)

    def to_html(self, record: Any, path: str | Path) -> Path:
        """Write the report as one page and return its path.

        Raises:
            SettingError: the file cannot be written.
        """
        return output.write(whole(self.caption(record), Markup(self.to_fragment(record))), path, "the page")

    def to_images(self, record: Any, folder: str | Path, form: str) -> list[Path]:
        """Refuse: the record has no plots of its own."""
        raise SettingError(f"{self.caption(record)}: a table has no plots; write its page: to_html(path)")


def _print(console: Any, remarks: Sequence[Remark]) -> None:
    for remark in remarks:
        for line in hang(remark.start, remark.text, console.width):
            console.print(Text(line, "dim" if remark.is_dim else ""), soft_wrap=True)
