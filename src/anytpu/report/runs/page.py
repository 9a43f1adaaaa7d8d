"""The page of one run or several: curves, where the time went, what happened, a card of the model, the environment.

Idea: the report and the live page show the same content. It is made from the records alone, without JAX or Keras, and
needs no script. With two runs or more, their differences come first.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

from anytpu import units
from anytpu.report.drawing import svg
from anytpu.report.drawing.axes import series_colour
from anytpu.report.html import Markup, cards, element, joined, remark, section, stacked, table
from anytpu.report.runs.plots import plots, values_of
from anytpu.report.wording import UNKNOWN, one_line, percent
from anytpu.train.record import RunReader

_MAX_EVENTS = 50
_MAX_TIME_S = 2**36
_PARTS = {
    "steps": "steps",
    "input": "waiting for input",
    "compile": "compiling",
    "save": "saving checkpoints",
    "evaluation": "evaluation",
    "callbacks": "callbacks",
}
_STATES = {
    "running": "is running",
    "ended": "ended",
    "failed": "failed",
    "stopped": "was stopped",
    "killed": "was killed, or its machine went away",
}
_FACTS = ("devices", "mfu", "machine", "host", "began", "begun_again", "checkpoints")


def content(runs: Sequence[RunReader], tail: int = 0) -> Markup:
    """Return the content of the page of runs; with `tail`, also so many of the last points of each record."""
    folders = [one_line(run.name) for run in runs]
    is_clear = len(set(folders)) == len(folders)
    names = folders if is_clear else [one_line(str(run.folder)) for run in runs]
    parts = [element("h1", names[0] if len(runs) == 1 else f"{len(runs)} runs"), *map(_headline, names, runs)]
    parts.append(
        _difference(names, runs) if len(runs) != 1 else cards([(*fact, "") for fact in _results(runs[0]).items()])
    )
    curves = [svg.captioned(plot) for plot in plots(names, runs)]
    parts.append(section("curves", "Curves", "over steps", element("div", *curves, class_="plots")))
    for name, run in zip(names, runs, strict=True):
        prefix = f"{name}: " if len(runs) > 1 else ""
        parts += [_times(prefix, run), _events(prefix, run)]
        if tail:
            lines = element("pre", "\n".join(map(_line, run.points[-tail:])), class_="said")
            parts.append(section("lines", f"{prefix}Last points", None, lines))
        parts += [_card(prefix, run), _environment(prefix, run)]
    return joined(*parts)


def _headline(name: str, run: RunReader) -> Markup:
    newest = [*run.points[-1:], *run.epochs[-1:], *run.events[-1:]]
    step = max([line["step"] for line in newest], default=0)
    time_s = max([line.get("time", 0) for line in newest], default=0)
    when = f", {datetime.datetime.fromtimestamp(time_s):%Y-%m-%d %H:%M:%S}" if 0 < time_s < _MAX_TIME_S else ""
    how = _STATES.get(run.state, "has no known state")
    text = f"{name} {how} at step {step:,}{when}. It ran on {run.about.get('devices', 'unknown devices')}."
    return element("p", text, class_="subtitle" if run.state in ("running", "ended") else "warning")


def _results(run: RunReader) -> dict[str, str]:
    """Return the last finite metrics, and the median rate and step time: the first points of a process are slow."""
    lines = sorted((*run.points, *run.epochs), key=lambda line: line["step"])
    texts = {f"last {name}": f"{value:.4g}" for line in lines for name, value in values_of(line).items()}
    for title, name, write in (
        ("usual examples/s", "examples_per_s", units.format_count),
        ("usual step time", "step_s", units.format_seconds),
    ):
        if values := sorted(point[name] for point in run.points if name in point):
            texts[title] = write(values[len(values) // 2])
    return texts


def _facts(run: RunReader) -> dict[str, str]:
    """Return the settings, the model, the data and the environment of a run by name."""
    parts = {part: run.about.get(part) for part in ("settings", "model", "data", "versions")}
    nested = {
        name if part == "settings" else f"{part}: {name}": str(value)
        for part, values in parts.items()
        for name, value in (values.items() if isinstance(values, dict) else ())
    }
    return nested | {name: str(run.about[name]) for name in _FACTS if run.about.get(name) is not None}


def _difference(names: Sequence[str], runs: Sequence[RunReader]) -> Markup:
    facts = [{**_results(run), **_facts(run)} for run in runs]
    known = dict.fromkeys(fact for own in facts for fact in own)
    rows = [(fact, *(own.get(fact, UNKNOWN) for own in facts)) for fact in known]
    differing = [row for row in rows if len(set(row[1:])) > 1]
    found = table(("", *names), differing) if differing else remark("Nothing differs.")
    return section("difference", "The difference", "what is equal is left out", found)


def _times(prefix: str, run: RunReader) -> Markup:
    """Return where the time of the epochs went, with what the epoch that runs has spent so far."""
    spent = [epoch["spent"] for epoch in run.epochs]
    last, ended = run.points[-1:], run.epochs[-1]["step"] if run.epochs else 0
    for now in [point["spent"] for point in last if "all" in point["spent"] and point["step"] > ended]:
        spent.append({**now, "steps": max(2 * now["all"] - sum(now.values()), 0.0)})
    sums = {name: sum(part.get(name, 0.0) for part in spent) for name in _PARTS}
    total_s = sum(sums.values())
    if total_s <= 0:
        return joined()
    parts = []
    for index, (name, text) in enumerate(_PARTS.items()):
        share = sums[name] / total_s
        parts.append((series_colour(index), share, text, f"{units.format_seconds(sums[name])}, {percent(share)}"))
    bar = stacked(parts, "Parts of the time")
    return section("time", f"{prefix}Where the time went", units.format_seconds(total_s), bar)


def _events(prefix: str, run: RunReader) -> Markup:
    """Return what happened: restarts, values that are not finite, spikes, the end."""
    rows = []
    for event in run.events[1:]:
        facts = {name: event[name] for name in ("names", "loss", "usual", "where", "reason") if event.get(name)}
        is_again = event["event"] == "began"
        text = "later steps are replaced" if is_again else ", ".join(f"{name} {value}" for name, value in facts.items())
        rows.append(("began again" if is_again else event["event"], f"{event['step']:,}", text))
    if run.unreadable:
        rows.append(("lines that cannot be read", f"{run.unreadable:,}", "cut by a kill, or changed"))
    small = f"the last {_MAX_EVENTS} of {len(rows)}" if len(rows) > _MAX_EVENTS else None
    shown = table(("", "step", ""), rows[-_MAX_EVENTS:], numbers=(1,))
    return section("events", f"{prefix}Events", small, shown) if rows else joined()


def _card(prefix: str, run: RunReader) -> Markup:
    """Return the model card: what was trained on what, its results, its licence, how to load it."""
    facts, folder = _facts(run), run.about.get("checkpoints")

    def listed(start: str, facts: dict[str, str]) -> str:
        return ", ".join(f"{n.removeprefix(start)} {text}" for n, text in facts.items() if n.startswith(start))

    load = f"tpu.Checkpointer({str(folder)!r}).load_weights(model)"
    rows = [
        ("model", listed("model: ", facts)),
        ("trained on", listed("data: ", facts)),
        ("results", listed("last ", _results(run))),
        ("licence", facts.get("licence", "not stated")),
        ("to load", element("code", load) if folder else "no checkpoint_dir: the record has no weights"),
    ]
    return section("card", f"{prefix}Model card", None, table(("", ""), rows, "list"))


def _environment(prefix: str, run: RunReader) -> Markup:
    rows = list(_facts(run).items())
    shown = element("details", element("summary", f"{len(rows)} settings and facts"), table(("", ""), rows, "list"))
    return section("environment", f"{prefix}Environment", None, shown)


def _line(point: dict[str, Any]) -> str:
    values = " ".join(f"{one_line(name)}={value:.5g}" for name, value in values_of(point).items())
    rate = f" {units.format_rate(point['examples_per_s'], 'examples')}" if "examples_per_s" in point else ""
    return f"step {point['step']:,} {values}{rate}"
