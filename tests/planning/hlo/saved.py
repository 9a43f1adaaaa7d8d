"""What libtpu 0.0.51 printed, shortened.

The stack frames are those that are referred to, with shortened file names, and of `backend_config` only what is read is
left; "_entry" has the ENTRY computation alone.
"""

from pathlib import Path

from anytpu.planning import hlo

FOLDER = Path(__file__).parent / "snippets"


def text(name: str) -> str:
    return (FOLDER / f"{name}.hlo").read_text()


def module(name: str) -> hlo.Module:
    return hlo.parse(text(name))
