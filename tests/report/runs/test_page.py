"""The page of runs: what the records say, with every text of a user escaped; looked at in a browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import anytpu as tpu
from anytpu.report.html import whole
from anytpu.report.runs.page import content
from anytpu.train.record import RunReader
from browser import BROWSER, browse
from cli.commands import anytpu

STRANGE = '<script>document.title="owned"</script> & "q" \N{PARTY POPPER} \x1b[2J'


def record(folder: Path, losses: list[float], **settings: Any) -> RunReader:
    with tpu.RunRecord(folder, settings=settings) as run:
        for step, loss in enumerate(losses, start=1):
            metrics: dict[str, Any] = {"loss": loss, STRANGE: loss / 2}
            run.log(step, examples=64, **metrics)
    return RunReader(folder)


def text_of(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page))


def test_a_page_of_one_run(tmp_path: Path):
    folder = tmp_path / STRANGE.replace("/", "")
    record(folder, [1.0] * 8 + [9.0, float("nan"), -2.0, 0.5], **{STRANGE: STRANGE, "licence": "CC BY 4.0"})
    page = whole("anytpu report", content([RunReader(folder)]))
    assert "<script" not in page
    assert STRANGE not in page
    assert "\x1b" not in page
    text = text_of(page)
    for said in (
        "ended at step 12",
        "last loss 0.5",
        "spike 9 loss 9.0, usual 1.0",
        "not finite 10",
        "licence CC BY 4.0",
        "no checkpoint_dir: the record has no weights",
    ):
        assert said in text, said
    assert page.count('<svg viewBox="0 0 480 290"') == 4  # two metrics, two rates


def test_two_runs_begin_with_their_difference(tmp_path: Path):
    first = record(tmp_path / "a" / "run", [1.0, 0.5], rate=0.1, batch=64)
    second = record(tmp_path / "b" / "run", [1.0, 0.25], rate=0.2, batch=64)
    page = content([first, second])
    assert page.index("The difference") < page.index("<svg")
    difference = text_of(page[page.index("The difference") : page.index("Curves")])
    assert "last loss 0.5 0.25" in difference
    assert "rate 0.1 0.2" in difference
    assert "batch" not in difference
    assert str(tmp_path / "a" / "run") in difference


def test_a_run_that_ends_in_nan_has_its_curve_and_its_last_loss(tmp_path: Path):
    with tpu.RunRecord(tmp_path) as run:
        for step in range(1, 6):
            run.log(step, loss=float("nan") if step > 3 else 1 / step)
    page = content([RunReader(tmp_path)])
    assert "last loss 0.3333" in text_of(page)
    assert page.count('<svg viewBox="0 0 480 290"') == 2  # the loss, and the time of a step


def test_the_last_loss_is_that_of_the_newest_line(tmp_path: Path):
    lines = ['{"step": 3, "loss": 9}', '{"event": "epoch", "step": 3, "metrics": {"loss": 9, "val_loss": 8}}']
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 4, "loss": 0.5}', ""]))
    text = text_of(content([RunReader(tmp_path)]))
    assert "last loss 0.5" in text
    assert "last val_loss 8" in text


@pytest.mark.parametrize("losses", [[5e-324, 1.0], [1e15, 1e15 + 0.125], [-1e299, 1e-300], [-5e-324], [1e-310, 0.0]])
def test_numbers_without_a_scale_have_a_page(tmp_path: Path, losses: list[float]):
    lines = [f'{{"step": {step}, "loss": {loss}}}\n' for step, loss in enumerate(losses)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    assert "<svg" in content([RunReader(tmp_path)])


def test_a_record_of_nothing_has_a_page(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 3}\n{"event": "epoch", "step": 3, "time": 1e99}\n')
    page = content([RunReader(tmp_path)], tail=5)
    assert "was killed, or its machine went away at step 3. It ran on unknown devices." in page


def test_the_command_writes_the_page(tmp_path: Path):
    record(tmp_path / "run7", [1.0, 0.5])
    run = anytpu("report", "run7", folder=tmp_path)
    assert (run.returncode, run.stdout, run.stderr) == (0, "report.html\n", "")
    assert "run7 ended at step 2" in (tmp_path / "report.html").read_text()
    run = anytpu("report", "run8", folder=tmp_path)
    assert (run.returncode, run.stderr) == (
        2,
        "anytpu: there is no record of a run in 'run8': pass the run_dir, or the checkpoint_dir, of a fit\n",
    )


@pytest.mark.skipif(BROWSER is None, reason="there is no browser")
def test_a_browser_shows_the_page_and_runs_nothing_of_it(tmp_path: Path):
    runs = [record(tmp_path / f"run {STRANGE.replace('/', '')} {n}", [1.0, 0.5], **{STRANGE: n}) for n in range(2)]
    (tmp_path / "page.html").write_text(whole("anytpu report", content(runs)))
    seen = browse(tmp_path, "--dump-dom", (tmp_path / "page.html").as_uri())
    assert "<title>anytpu report</title>" in seen.stdout
    assert seen.stdout.count("<polyline") > 8
    assert "CONSOLE" not in seen.stderr
