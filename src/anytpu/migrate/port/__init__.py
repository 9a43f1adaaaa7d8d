"""Rewrite programs for TensorFlow's TPUs to anytpu.

Idea: names are resolved through the program's scopes, so a call is recognised under any alias. First every edit is
planned, then all are applied at once. A line that has no automatic rewrite is listed with the code to type.

Rule: the replacements are one table, `anytpu/migrate/replaced/table.toml`; this package only applies it.
"""

from anytpu.migrate.port.files import PortedFile, ported_file, program_files, write
from anytpu.migrate.port.finding import Finding
from anytpu.migrate.port.program import ported
from anytpu.migrate.port.trial import Trial, tried

__all__ = ["Finding", "PortedFile", "Trial", "ported", "ported_file", "program_files", "tried", "write"]
