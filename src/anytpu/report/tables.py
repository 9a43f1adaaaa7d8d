"""`TableReport`: what the reports of records with one table share: HTML for a notebook, and no page of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anytpu.errors import SettingError
from anytpu.report.html import element


class TableReport:
    """A renderer without pages and plots.

    Attributes:
        no_page: the error text for a page, with what to do instead.
        no_plots: the error text for plots, with what to do instead.
    """

    no_page: str
    no_plots: str

    def caption(self, record: Any) -> str:
        """Return the title of the table."""
        raise NotImplementedError

    def titles(self, record: Any) -> Sequence[str]:
        """Return the titles of the columns."""
        raise NotImplementedError

    def rows(self, record: Any) -> Sequence[Sequence[str]]:
        """Return the cells of each row."""
        raise NotImplementedError

    def to_fragment(self, record: Any) -> str:
        """Return the table as HTML for a notebook."""
        head = element("tr", *(element("th", title) for title in self.titles(record)))
        rows = [element("tr", *(element("td", cell) for cell in row)) for row in self.rows(record)]
        caption = element("caption", self.caption(record))
        return element("table", caption, element("thead", head), element("tbody", *rows))

    def to_html(self, record: Any, path: str | Path) -> Path:
        """Refuse: the record has no page of its own."""
        raise SettingError(self.no_page)

    def to_images(self, record: Any, folder: str | Path, form: str) -> list[Path]:
        """Refuse: the record has no plots of its own."""
        raise SettingError(self.no_plots)
