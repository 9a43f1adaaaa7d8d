"""Plans of every size and oddity: nothing in them may break a report."""

from __future__ import annotations

import dataclasses
import io
import math
import random
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import plan_samples
from anytpu.planning.page.page import fragment, page
from anytpu.planning.page.pictures import common_drawings, system_drawings
from anytpu.planning.page.terminal import print_plan
from anytpu.planning.records import KINDS, Advice, Buffer, Cost, MemoryUse, OpTime, Plan, Prediction, Price, StepTime
from anytpu.planning.records.target import target_named
from anytpu.report.drawing import svg
from anytpu.report.terminal import open_console

NAMES = ("v2-8", "v2-32", "v3-8", "v3-2048", "v4-8", "v5e-1", "v5e-8", "v5p-8", "v6e-256", "v7x-8")
WORDS = ("", " ", "dense", "a b", "µ", "<b>", "x" * 90, "\n\x00\x1b\x7f", "\ud800", "日本", "%s {} [/]", "-" * 200)
AMOUNTS = (0.0, 1e-9, 3e-6, 0.02, 1.0, 77.7, 1e5)
SECONDS = (1e-7, 2.5e-4, 0.118, 1.0, 90.0, 4e4)
SIZES = (0, 1, 1000, 2**20, 2**34)


class Oddities:
    """Makes records of whatever their types allow, the same from the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.pick = self.random.choice

    def word(self) -> str:
        return self.pick(WORDS)

    def maybe(self, values: tuple[Any, ...]) -> Any:
        return self.pick((None, *values))

    def some(self, make: Callable[[], Any], most: int) -> tuple[Any, ...]:
        return tuple(make() for _ in range(self.random.randint(0, most)))

    def op(self) -> OpTime:
        return OpTime(
            name=self.word(),
            opcode=self.word(),
            kind=self.pick(KINDS),
            time_s=self.pick(AMOUNTS),
            count=self.random.randint(1, 3),
            flops=self.pick((0.0, 1.0, 1e9, 1e15)),
            bytes=self.pick((0.0, 1.0, 1e9)),
            layer=self.word(),
            source=self.word(),
            is_backward=self.pick((True, False)),
            bound=self.pick(("", "compute", "memory", "network")),
        )

    def buffer(self) -> Buffer:
        use = self.pick(("state", "batch", "temporary", "output", "code"))
        return Buffer(self.word(), use, self.pick(SIZES), self.pick(SIZES), self.word(), self.word(), self.word())

    def memory(self) -> MemoryUse:
        sizes = (self.pick(SIZES), self.pick(SIZES), self.maybe(SIZES))
        return MemoryUse(*sizes, self.some(self.buffer, 4), self.pick(SIZES), self.word())

    def time(self) -> StepTime:
        interval_s = (self.pick(SECONDS), self.pick(SECONDS))
        words = (self.some(self.word, 2), self.some(self.word, 2))
        return StepTime(self.some(self.op, 5), self.pick(SECONDS), interval_s, *words)

    def cost(self) -> Cost:
        price = Price("v3", *(self.maybe(AMOUNTS) for _ in range(3)), "2026-03", self.word(), self.word())
        return Cost(price, *(self.maybe(AMOUNTS) for _ in range(8)))

    def advice(self) -> Advice:
        return Advice(self.word(), self.word(), self.word(), self.word(), self.maybe(AMOUNTS), self.maybe(AMOUNTS))

    def prediction(self) -> Prediction:
        return Prediction(
            program=self.word(),
            mode=self.pick(("train", "infer")),
            target=target_named(self.pick(NAMES)),
            batch_size=self.maybe((1, 8, 1000, 1024, 2**20)),
            predicted_by=self.word(),
            memory=self.pick((None, self.memory())),
            time=self.pick((None, self.time())),
            flops=self.maybe(AMOUNTS),
            peak_flops_per_s=self.maybe((1e14,)),
            largest_batch=self.maybe((0, 1408)),
            cost=self.pick((None, self.cost())),
            advice=self.some(self.advice, 2),
            notes=self.some(self.word, 2),
            basis=self.pick(("compiled", "extrapolated", "floor")),
        )

    def plan(self) -> Plan:
        predictions = (self.some(self.prediction, 4), self.some(self.prediction, 6))
        return Plan(self.word(), *predictions, self.maybe((0, 60_000)), self.maybe((1, 90)))


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_nothing_breaks_a_report(first: int):
    for seed in range(first, first + 20):
        plan = Oddities(seed).plan()
        try:
            report(plan)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise


def report(plan: Plan) -> None:
    for text in (page(plan), fragment(plan)):
        text.encode()
    for encoding in ("utf-8", "ascii"):
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        print_plan(open_console(stream), plan)
        stream.flush()
    for drawing in (*common_drawings(plan), *(drawn for prediction in plan for drawn in system_drawings(prediction))):
        text = svg.document(drawing)
        ElementTree.fromstring(text.encode())
        assert not re.search(r'="[^"]*\b(nan|inf)\b', text)


@pytest.mark.parametrize("made", [plan_samples.five, plan_samples.swept, plan_samples.one])
def test_a_step_of_which_only_the_least_is_known(made: Callable[[], Plan], tmp_path: Path):
    plan = made()
    endless = dataclasses.replace(
        plan, predictions=tuple(map(_endless, plan.predictions)), sweep=tuple(map(_endless, plan.sweep))
    )
    text = page(endless)
    assert "at least " in text
    assert not re.search(r"\b(inf|nan)\b", text)
    assert endless.to_png(tmp_path)


def _endless(one: Prediction) -> Prediction:
    if one.time is None:
        return one
    return dataclasses.replace(one, time=dataclasses.replace(one.time, interval_s=(0.8 * one.time.step_s, math.inf)))


def test_nothing_breaks_a_painting(tmp_path: Path):
    plan = next(plan for seed in range(99) if len(plan := Oddities(seed).plan()) == 4 and plan.fastest)
    assert plan.to_png(tmp_path)
