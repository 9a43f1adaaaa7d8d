"""`ChipReport`: shows chip programs. `anytpu.showing` loads it by name.

Rule: traces, pages and pictures are imported on use; the terminal needs none of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from anytpu.chip.chip_program import ChipProgram
from anytpu.chip.image.image import Image
from anytpu.chip.page.record import page_of
from anytpu.chip.page.text import print_page, print_timing
from anytpu.chip.timing.record import Timing
from anytpu.report.terminal import open_console


class ChipReport:
    """Output of chip programs in the terminal, as a trace, as a page, in a notebook, as pictures."""

    def show(self, record: ChipProgram) -> None:
        """Print the description of a program, and a predicted run of it."""
        print_page(open_console(), page_of(record))

    def show_timing(self, timing: Timing) -> None:
        """Print a predicted run."""
        print_timing(open_console(), timing)

    def to_trace(self, timing: Timing, path: str | Path, image: Image | None = None) -> Path:
        """Write a predicted run as a trace for Perfetto and return its path.

        Args:
            timing: a timing with events.
            path: destination; compressed if the name ends in ".gz".
            image: the program, for a counter of the Unified Buffer; None: no such counter.

        Raises:
            SettingError: the timing has no events, or the trace cannot be written.
        """
        from anytpu.chip.page.trace import write_trace

        return write_trace(timing, path, image)

    def to_html(self, record: ChipProgram, path: str | Path) -> Path:
        """Write a program as one page and return its path.

        Raises:
            SettingError: the file cannot be written.
        """
        from anytpu.chip.page.page import write_page

        return write_page(page_of(record), path)

    def to_fragment(self, record: ChipProgram) -> str:
        """Return a program as an HTML fragment, for a notebook."""
        from anytpu.chip.page.page import fragment

        return fragment(page_of(record))

    def to_images(self, record: ChipProgram, folder: str | Path, form: Literal["svg", "png"]) -> list[Path]:
        """Write each plot of a program to a folder, which is created if missing, and return the paths.

        Raises:
            SettingError: the files cannot be written.
        """
        from anytpu.chip.page.pictures import drawings
        from anytpu.report.drawing import files

        return files.write(drawings(page_of(record)), folder, form)


CHIP_REPORT = ChipReport()
"""The report that `anytpu.showing` loads."""
