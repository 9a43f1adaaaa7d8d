"""`ScriptEnd`: whether the script of this process ended by `sys.exit` with a status of failure.

Idea: Python calls exit handlers without the status, and `sys.excepthook` is not called for SystemExit. So `sys.exit`
is wrapped, and remembers its argument. The script may catch the SystemExit and continue. Then its last instruction is
the return of its module.
"""

from __future__ import annotations

import dis
import sys
from types import FrameType
from typing import Any

from anytpu._restarts import STOPPED_STATUS

_RETURNS = {dis.opmap[name] for name in ("RETURN_VALUE", "RETURN_CONST") if name in dis.opmap}


class ScriptEnd:
    """The end of the script that runs in this process; made within the script's own call of this package."""

    def __init__(self) -> None:
        self._frame = _module_frame()
        self._status: Any = None
        self._exit = sys.exit

    def watch(self) -> None:
        """Remember the argument of each call of `sys.exit`."""
        sys.exit = self._remember

    def failure(self) -> str | None:
        """Return the call that ended the script, "sys.exit(1)"; None for success and for a saved run that stopped."""
        if self._frame is None or self._frame.f_code.co_code[self._frame.f_lasti] in _RETURNS:
            return None
        is_success = self._status is None or (isinstance(self._status, int) and self._status in (0, STOPPED_STATUS))
        return None if is_success else f"sys.exit({self._status!r})"

    def _remember(self, status: Any = None, /) -> Any:
        self._status = status
        self._exit(status)


def _module_frame() -> FrameType | None:
    """Return the frame of the script's module; None if no script calls this."""
    frame = sys._getframe()
    while frame is not None and (frame.f_globals.get("__name__") != "__main__" or frame.f_code.co_name != "<module>"):
        frame = frame.f_back
    return frame
