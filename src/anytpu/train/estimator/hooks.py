"""Hooks: code that runs on the host between the loops of an estimator.

Rule: a loop of many steps is to a hook what one `session.run` was: `before_run` and `after_run` are called around it.
There is no session and no graph, so `session` and `coord` are None.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any


class SessionRunHook:
    """Does nothing; override what you need.

    Any object with these methods will do.
    """

    def begin(self) -> None:
        """Begin a train, evaluate or predict."""

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Go on when everything is compiled and the first loop is about to run."""

    def before_run(self, run_context: RunContext) -> Any:
        """Look before a loop; what is returned has no effect."""

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """Look after a loop; `run_context.request_stop()` makes it the last."""

    def end(self, session: Any) -> None:
        """End; not called after an error."""


class RunContext:
    """What a hook may say about the run.

    Attributes:
        session: None.
        original_args: None.
        stop_requested: True once a hook has asked to stop.
    """

    session: Any = None
    original_args: Any = None

    def __init__(self) -> None:
        self.stop_requested = False

    def request_stop(self) -> None:
        """Make the loop that ran last the last one."""
        self.stop_requested = True


@dataclasses.dataclass(frozen=True)
class RunValues:
    """What a loop gave.

    Attributes:
        results: "global_step" after the loop, and "loss" of its last step, where the mode has one.
    """

    results: dict[str, Any]


class Hooks:
    """The hooks of one run, called in order.

    Args:
        hooks: objects with the methods of `SessionRunHook`.
    """

    def __init__(self, hooks: Iterable[Any]) -> None:
        self._hooks = list(hooks)
        self.context = RunContext()

    def begin(self) -> None:
        """Begin."""
        for hook in self._hooks:
            hook.begin()

    def ready(self) -> None:
        """Say that the first loop is about to run."""
        for hook in self._hooks:
            hook.after_create_session(None, None)

    def before(self) -> None:
        """Call the hooks before a loop."""
        for hook in self._hooks:
            hook.before_run(self.context)

    def after(self, **results: Any) -> bool:
        """Call the hooks after a loop, and say whether one asks to stop."""
        values = RunValues(results)
        for hook in self._hooks:
            hook.after_run(self.context, values)
        return self.context.stop_requested

    def end(self) -> None:
        """End."""
        for hook in self._hooks:
            hook.end(None)
