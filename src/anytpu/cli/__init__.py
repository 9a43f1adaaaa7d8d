"""The command line: one file a command; each parses, calls the public API and prints a report."""

from anytpu.cli.entry import main

__all__ = ["main"]
