"""Grouping of parts into layers: the time steps of a recurrent layer become one layer.

Idea: a part is named by its path in the model ("lstm/lstm_cell/dense_4"). If there are more parts than can be shown,
those with the same name up to the first slash are merged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TypeVar

from anytpu.chip.timing.record import PartTiming
from anytpu.report.chip.layers import ProgramLayer

PartT = TypeVar("PartT", PartTiming, ProgramLayer)


def grouped_parts(parts: Sequence[PartTiming], max_parts: int) -> list[PartTiming]:
    """Return the parts of a run, summed by layer if there are more than `max_parts`."""
    if len(parts) <= max_parts:
        return list(parts)
    summed = [field.name for field in dataclasses.fields(PartTiming) if field.name != "name"]
    return [
        PartTiming(_title(name, len(own)), **{field: sum(getattr(part, field) for part in own) for field in summed})
        for name, own in _groups(parts)
    ]


def grouped_layers(layers: Sequence[ProgramLayer], max_parts: int) -> list[ProgramLayer]:
    """Return the layers of a program, merged by the user's layer if there are more than `max_parts`.

    Layers on the host are not merged.
    """
    if len(layers) <= max_parts:
        return list(layers)
    merged = []
    for name, own in _groups([layer for layer in layers if not layer.on_host]):
        cells = sum(layer.macs / layer.utilisation for layer in own if layer.utilisation)
        known = [layer.sqnr_db for layer in own if layer.sqnr_db is not None]
        merged.append(
            dataclasses.replace(
                own[-1],
                title=_title(name, len(own)),
                kind=own[-1].kind if len(own) == 1 else "several",
                note=own[-1].note if len(own) == 1 else "",
                macs=sum(layer.macs for layer in own),
                weight_bytes=sum(layer.weight_bytes for layer in own),
                passes=sum(layer.passes for layer in own),
                rows=sum(layer.rows for layer in own),
                packed=max(layer.packed for layer in own),
                utilisation=sum(layer.macs for layer in own) / cells if cells else None,
                sqnr_db=known[-1] if known else None,
            )
        )
    return [*merged, *(layer for layer in layers if layer.on_host)]


def _title(name: str, count: int) -> str:
    return name if count == 1 else f"{name} ({count:,} parts)"


def _groups(parts: Iterable[PartT]) -> list[tuple[str, list[PartT]]]:
    groups: dict[str, list[PartT]] = {}
    for part in parts:
        groups.setdefault(part.name.partition("/")[0], []).append(part)
    return list(groups.items())
