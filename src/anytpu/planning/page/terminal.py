"""The report of a plan in the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from anytpu.planning.page import content, phrases
from anytpu.planning.page.content import Block, Listed, Named, Sentence, Tabled
from anytpu.planning.page.lists import ListRow
from anytpu.planning.records import Plan, Prediction
from anytpu.report.terminal import bar, hang

_COLOURS = ("blue", "cyan", "yellow", "red", "magenta", "green", "white", "bright_black")
_STYLES = {"bold": "bold", "dim": "dim", "predicted": "yellow", "warning": "red", "": ""}
_SOURCE_WIDTH = 20
_MAX_ROWS, _MAX_BRIEF = 10, 3


def print_plan(console: Console, plan: Plan) -> None:
    """Print a plan."""
    is_full = len(plan) == 1
    console.print(Text(phrases.one_line(plan.job), "bold"), soft_wrap=True)
    _print(console, content.head(plan))
    for prediction in plan.predictions:
        blocks = [block for block in content.system(prediction, is_full) if not _is_empty(block)]
        if blocks:
            console.print()
            console.print(_title(prediction), soft_wrap=True)
        for block in blocks:
            for line in _lines(block, console.width, is_full):
                console.print(line, soft_wrap=True)
    tail = [*content.tail(plan), *([] if is_full else [Sentence(phrases.ONE_BY_ONE, style="dim")])]
    _print(console, [block for block in tail if not isinstance(block, Sentence) or block.text == phrases.HOSTS])
    console.print()
    _print(console, [block for block in tail if isinstance(block, Sentence) and block.text != phrases.HOSTS])


def _print(console: Console, blocks: Iterator[Block] | list[Block]) -> None:
    for block in blocks:
        if isinstance(block, Tabled):
            if block.title:
                console.print()
                console.print(Text(block.title, "bold underline"), soft_wrap=True)
            console.print((block.narrow or block.table).within(console.width).to_terminal())
        elif isinstance(block, Sentence):
            for line in _sentence(block, console.width):
                console.print(line, soft_wrap=True)


def _sentence(block: Sentence, width: int) -> Iterator[Text]:
    start, text = phrases.one_line(block.start), phrases.one_line(block.text)
    if block.style == "bold":  # A chosen system.
        name, comma, why = text.partition(",")
        yield Text(f"{start} ").append(name, "bold").append(f"{comma}{why}")
        return
    first, text = (f"{start:<9}", text) if 0 < len(start) < 9 else ("", f"{start}: {text}" if start else text)
    yield from (Text(line, _STYLES[block.style]) for line in hang(first, text, width))


def _title(prediction: Prediction) -> Text:
    compiler_name = phrases.one_line(prediction.target.compiler_name)
    words = f"  {phrases.devices(prediction)} ({compiler_name}), {phrases.step(prediction)}"
    return Text(phrases.one_line(prediction.target.name), "bold underline").append(words, "not underline")


def _is_empty(block: Block) -> bool:
    if isinstance(block, Named):
        return not block.sentences
    return not isinstance(block, Listed) or not block.rows


def _lines(block: Block, width: int, is_full: bool) -> Iterator[Text]:
    """Yield the lines of a block of one system."""
    if isinstance(block, Listed) and block.word and not is_full:
        yield from _in_words(block, width)
    elif isinstance(block, Listed):
        yield Text("")
        yield _heading(block.title, width)
        most = _MAX_ROWS if is_full else _MAX_BRIEF
        rows = block.rows if block.is_drawn else block.rows[:most]
        total = sum(length for row in rows for length, *_ in row.parts) or 1.0
        for place, row in enumerate(rows):
            yield _bar(row, place, total, width) if block.is_drawn else _row(row, width)
        if len(rows) < len(block.rows):
            yield Text(f"  and {len(block.rows) - len(rows)} more", "dim")
        if block.remark:
            yield from _hung("  ", block.remark, width, "dim")
    elif isinstance(block, Named) and not is_full:
        for place, sentences in enumerate(block.sentences[: block.most]):
            more = len(block.sentences) - block.most if place == block.most - 1 else 0
            text = " ".join(sentence.text for sentence in sentences) + (f"; and {more} more" if more > 0 else "")
            yield from _hung(f"  {'' if place else block.word:<9}", text, width)
    elif isinstance(block, Named):
        yield Text("")
        yield _heading(block.title, width)
        mark = "  > " if block.sentences[0][0].style == "bold" else "  - "
        for sentences in block.sentences:
            for place, sentence in enumerate(sentences):
                yield from _hung("    " if place else mark, sentence.text, width, _STYLES[sentence.style])


def _in_words(block: Listed, width: int) -> Iterator[Text]:
    """Yield a list as a sentence."""
    rows = block.rows if block.is_drawn else block.rows[:_MAX_BRIEF]
    if block.word == "time":
        words = ", ".join(f"{row.share} {row.name}" for row in rows)
    elif block.word == "longest":
        words = ", ".join(f"{row.name} {row.share}{f' ({row.source})' if row.source else ''}" for row in rows)
    else:
        words = ", ".join(f"{row.name} {row.amount}" for row in rows)
    yield from _hung(f"  {block.word:<9}", words, width)


def _heading(title: str, width: int) -> Text:
    return Text(f"  {title}"[:width], "bold")


def _bar(row: ListRow, place: int, total: float, width: int) -> Text:
    line = Text(f"  {row.name:<16}")
    line.append(bar(sum(length for length, *_ in row.parts) / total, width - 42), _COLOURS[place % len(_COLOURS)])
    return line.append(f"  {row.share}  {row.amount}")


def _row(row: ListRow, width: int) -> Text:
    """Return a line of a list: name, line of the user's program, share, amount."""
    room = width - 2 - _SOURCE_WIDTH - 2 - 8 - 10
    name, detail = phrases.one_line(row.name), phrases.one_line(row.detail)
    # The middle of a name is cut out, so that its end and what follows it stay.
    left = max(room - len(detail) - 1, 12)
    if detail and len(name) > left:
        front = (left - 3) // 2
        name = f"{name[:front]}...{name[len(name) - (left - 3 - front) :]}"
    line = Text(f"  {_shortened(f'{name} {detail}'.rstrip(), room):<{room}}")
    line.append(f"  {_shortened(row.source, _SOURCE_WIDTH, from_left=True):<{_SOURCE_WIDTH}}", "dim")
    return line.append(f"{row.share:>8}{row.amount:>10}")


def _shortened(text: str, width: int, from_left: bool = False) -> str:
    flat = phrases.one_line(text)
    if len(flat) <= width:
        return flat
    return f"...{flat[-(width - 3) :]}" if from_left else f"{flat[: width - 3]}..."


def _hung(start: str, text: str, width: int, style: str = "") -> Iterator[Text]:
    for line in hang(start, phrases.one_line(text), width):
        yield Text(line, style)
