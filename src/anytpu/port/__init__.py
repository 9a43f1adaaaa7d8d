"""Programs written for TensorFlow's TPUs, rewritten to ours.

Idea: a program is read with its scopes, so that a call is known by what it is and not by how it is spelled. First
every edit is decided, then all are made at once. What cannot be decided is listed by line with what to type.

Rule: what replaces what stands in one table, `anytpu._replaced`; here is only how a program is rewritten by it.
"""

from anytpu.port.files import PortedFile, ported_file, program_files, write
from anytpu.port.finding import Finding
from anytpu.port.program import Ported, ported

__all__ = ["Finding", "Ported", "PortedFile", "ported", "ported_file", "program_files", "write"]
