"""Hooks: code that runs on the host between the loops of an estimator.

Rule: a loop of many steps takes the role of one `session.run`: `before_run` and `after_run` are called around it. There
is no session and no graph, so `session` and `coord` are None.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any


class SessionRunHook:
    """A hook whose methods do nothing; override those you need.

    Any object with these methods can be a hook.
    """

    def begin(self) -> None:
        """Run at the beginning of a train, evaluate or predict."""

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run once before the first loop, after everything is compiled."""

    def before_run(self, run_context: RunContext) -> Any:
        """Run before a loop; the return value has no effect."""

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """Run after a loop; `run_context.request_stop()` makes it the last loop."""

    def end(self, session: Any) -> None:
        """Run at the end; not called after an error."""


class RunContext:
    """The interface through which a hook controls the run.

    Attributes:
        session: None.
        original_args: None.
        stop_requested: whether a hook has requested a stop.
    """

    session: Any = None
    original_args: Any = None

    def __init__(self) -> None:
        self.stop_requested = False

    def request_stop(self) -> None:
        """Stop after the current loop."""
        self.stop_requested = True


@dataclasses.dataclass(frozen=True)
class RunValues:
    """The results of a loop.

    Attributes:
        results: "global_step" after the loop, and "loss" of its last step, if the mode has them.
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
        """Call the hooks at the beginning of a run."""
        for hook in self._hooks:
            hook.begin()

    def ready(self) -> None:
        """Call the hooks once before the first loop."""
        for hook in self._hooks:
            hook.after_create_session(None, None)

    def before(self) -> None:
        """Call the hooks before a loop."""
        for hook in self._hooks:
            hook.before_run(self.context)

    def after(self, **results: Any) -> bool:
        """Call the hooks after a loop, and return whether a hook has requested a stop."""
        values = RunValues(results)
        for hook in self._hooks:
            hook.after_run(self.context, values)
        return self.context.stop_requested

    def end(self) -> None:
        """Call the hooks at the end of a run."""
        for hook in self._hooks:
            hook.end(None)
