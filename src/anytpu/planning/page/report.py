"""`PlanReport`: shows plans. `anytpu.showing` loads it by name.

Rule: pages and files of pictures are imported on use; the terminal needs none of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from anytpu.planning.page.terminal import print_plan
from anytpu.planning.records import Plan
from anytpu.report import output
from anytpu.report.terminal import open_console


class PlanReport:
    """Output of plans in the terminal, as a page, in a notebook, as pictures."""

    def show(self, record: Plan) -> None:
        """Print a plan."""
        print_plan(open_console(), record)

    def to_html(self, record: Plan, path: str | Path) -> Path:
        """Write a plan as one page and return its path.

        Raises:
            SettingError: the file cannot be written.
        """
        from anytpu.planning.page.page import page

        return output.write(page(record), path, "the page")

    def to_fragment(self, record: Plan) -> str:
        """Return a plan as an HTML fragment, for a notebook."""
        from anytpu.planning.page.page import fragment

        return fragment(record)

    def to_images(self, record: Plan, folder: str | Path, form: Literal["svg", "png"]) -> list[Path]:
        """Write each plot of a plan to a folder, which is created if missing, and return the paths.

        Raises:
            SettingError: the files cannot be written.
        """
        from anytpu.planning.page.pictures import drawings
        from anytpu.report.drawing import files

        return files.write(drawings(record), folder, form)


PLAN_REPORT = PlanReport()
"""The report that `anytpu.showing` loads."""
