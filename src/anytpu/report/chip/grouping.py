"""Layers that are many parts, put together: the time steps of a recurrent layer are one layer of the user's.

Idea: a part is called by where it is in the model ("lstm/lstm_cell/dense_4"). Where there are more parts than can be
shown, those of one layer, the name up to its first slash, become one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TypeVar

from anytpu.chip.timing.record import PartTiming
from anytpu.report.chip.layers import Layer

_One = TypeVar("_One", PartTiming, Layer)


def grouped_parts(parts: Sequence[PartTiming], most: int) -> list[PartTiming]:
    """Return parts of a run, those of one layer added up if there are more than `most`."""
    if len(parts) <= most:
        return list(parts)
    summed = [field.name for field in dataclasses.fields(PartTiming) if field.name != "name"]
    return [
        PartTiming(_title(name, len(own)), **{field: sum(getattr(one, field) for one in own) for field in summed})
        for name, own in _groups(parts)
    ]


def grouped_layers(layers: Sequence[Layer], most: int) -> list[Layer]:
    """Return layers of a program, those parts of one layer put together if there are more than `most`.

    What is on the host stays by itself.
    """
    if len(layers) <= most:
        return list(layers)
    found = []
    for name, own in _groups([one for one in layers if not one.on_host]):
        cells = sum(one.macs / one.utilisation for one in own if one.utilisation)
        known = [one.sqnr_db for one in own if one.sqnr_db is not None]
        found.append(
            dataclasses.replace(
                own[-1],
                title=_title(name, len(own)),
                kind=own[-1].kind if len(own) == 1 else "several",
                note=own[-1].note if len(own) == 1 else "",
                macs=sum(one.macs for one in own),
                weight_bytes=sum(one.weight_bytes for one in own),
                passes=sum(one.passes for one in own),
                rows=sum(one.rows for one in own),
                packed=max(one.packed for one in own),
                utilisation=sum(one.macs for one in own) / cells if cells else None,
                sqnr_db=known[-1] if known else None,
            )
        )
    return [*found, *(one for one in layers if one.on_host)]


def _title(name: str, count: int) -> str:
    return name if count == 1 else f"{name} ({count:,} parts)"


def _groups(ones: Iterable[_One]) -> list[tuple[str, list[_One]]]:
    groups: dict[str, list[_One]] = {}
    for one in ones:
        groups.setdefault(one.name.partition("/")[0], []).append(one)
    return list(groups.items())
