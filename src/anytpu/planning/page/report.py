"""`PlanReport`: shows plans. `anytpu.showing` loads it by name.

Rule: pages and pictures are imported on use; the terminal needs none of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.text import Text

from anytpu.planning.page import costs, host_loads, phrases
from anytpu.planning.page.details import detail_lines, named_kinds
from anytpu.planning.page.sweeps import curve_tables
from anytpu.planning.page.table import chosen_lines, remarks, speed_table
from anytpu.planning.records import Plan, Prediction
from anytpu.report.terminal import hang, open_console


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
        from anytpu.report import html

        return html.write(page(record), path)

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


def print_plan(console: Console, plan: Plan) -> None:
    """Print a plan."""
    width = console.width
    console.print(Text(phrases.one_line(plan.job), "bold"), soft_wrap=True)
    _wrapped(console, phrases.subtitle(plan))
    _wrapped(console, f"{phrases.NOT_MEASURED[:-1]}; by {phrases.predictors(plan)}.", "yellow")
    console.print(speed_table(plan, width))
    if (costing := costs.table(plan)) is not None:
        # Columns are dropped rather than amounts truncated; the page has all of them. Beside the names are 72 columns.
        console.print(costing.within(72).to_terminal())
    _wrapped(console, costs.wanted(plan))
    for line in chosen_lines(plan):
        console.print(line, soft_wrap=True)
    for name, sentence in remarks(plan):
        names = phrases.one_line(name)
        start, text = (f"{names:<9}", sentence) if len(names) < 9 else ("", f"{names}: {sentence}")
        for line in hang(start, phrases.one_line(text), width):
            console.print(Text(line), soft_wrap=True)
    if (held := costs.holding_table(plan)) is not None:
        console.print()
        _wrapped(console, costs.HOLDING)
        console.print(held.to_terminal())
    for prediction in plan.predictions:
        lines = list(detail_lines(prediction, width, brief=len(plan) > 1))
        if lines:
            _title(console, prediction)
        for line in lines:
            console.print(line, soft_wrap=True)
    tables = curve_tables(plan)
    if (hosts := host_loads.narrow_table(plan)) is not None:
        tables.append(("load of one host", hosts))
    for title, table in tables:
        console.print()
        console.print(Text(title, "bold underline"), soft_wrap=True)
        console.print(table.to_terminal())
    if hosts is not None:
        _wrapped(console, phrases.HOSTS, "dim")
    console.print()
    for sentence in (*named_kinds(plan), phrases.MFU_FORMULA, costs.price_source(plan), phrases.RENTING):
        _wrapped(console, sentence, "dim")


def _title(console: Console, prediction: Prediction) -> None:
    console.print()
    compiler_name = phrases.one_line(prediction.target.compiler_name)
    words = f"  {phrases.devices(prediction)} ({compiler_name}), {phrases.step(prediction)}"
    console.print(
        Text(phrases.one_line(prediction.target.name), "bold underline").append(words, "not underline"), soft_wrap=True
    )


def _wrapped(console: Console, text: str, style: str = "") -> None:
    for line in hang("", phrases.one_line(text), console.width) if text else []:
        console.print(Text(line, style), soft_wrap=True)
