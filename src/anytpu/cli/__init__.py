"""The command line. Each command has one file, which parses arguments, calls the public API and prints a report."""

from anytpu.cli.entry import main

__all__ = ["main"]
