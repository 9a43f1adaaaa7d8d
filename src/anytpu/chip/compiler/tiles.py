"""Tiles: the weights in the cells of the array, pass by pass; and the parameters of a block of outputs.

Idea: two lists describe a pass: the input of the product for each row of the array, and the output for each column.
Input tap * channels + channel and output m determine the weight of a cell. If they are in different groups, there is
none.

Rule: -1 marks an unused row or column; its weights are 0.
"""

from __future__ import annotations

import numpy as np

from anytpu.chip.compiler.jobs import Feed
from anytpu.chip.compiler.planes import LaneRuns


def rows_of(feed: Feed, array: int) -> np.ndarray:
    """Return the inputs that the rows of the array take from a feed, `(passes, array)`."""
    lanes = numbers_of(feed.plane.runs, feed.first, feed.lanes)
    rows = np.full((feed.passes, array), -1, np.int64)
    for index in range(feed.passes):
        tap = np.arange(index * feed.taps, min((index + 1) * feed.taps, feed.all_taps))[:, None]
        taken = np.where(lanes >= 0, tap * feed.tap_step + lanes, -1).reshape(-1)
        rows[index, : len(taken)] = taken
    return rows


def numbers_of(runs: LaneRuns, first: int, lanes: int) -> np.ndarray:
    """Return the channel of each of `lanes` lanes, -1 where there is none."""
    numbers = np.full(lanes, -1, np.int64)
    for lane, count in runs:
        numbers[lane : lane + count] = np.arange(first, first + count)
        first += count
    return numbers


def tiles_of(weights: np.ndarray, groups: int, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return tiles of weights, int8 `(passes, array, array)`.

    Args:
        weights: `(kernel height, kernel width, input channels / groups, output channels)`.
        groups: number of groups of channels; weights between different groups are 0.
        rows: input of each row, `(passes, array)`, as from `rows_of`.
        columns: output of each column, `(array,)`, ascending.
    """
    depth, width = weights.shape[2:]
    flat = weights.reshape(-1, width)
    tap, channel = np.divmod(rows, depth * groups)
    group, place = np.divmod(channel, depth)
    tiles = np.zeros((*rows.shape, len(columns)), np.int8)
    used = np.flatnonzero(columns >= 0)
    outputs = columns[used]
    taken = flat[:, outputs[0] : outputs[-1] + 1].take(np.maximum(tap * depth + place, 0).reshape(-1), axis=0)
    taken = taken.reshape(*rows.shape, -1)[..., outputs - outputs[0]]
    meets = (rows >= 0)[..., None]
    if groups > 1:
        meets = meets & (group[..., None] == outputs // (width // groups))
    tiles[..., used] = np.where(meets, taken, 0)
    return tiles


def parameters_of(bias: np.ndarray, multipliers: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return a block of parameters, uint8 `(1, 8 * array)`: an int32 bias a lane, then a float32 multiplier a lane."""
    block = np.zeros((2, len(columns)), "<i4")
    used = columns >= 0
    block[0, used] = bias[columns[used]]
    block[1, used] = multipliers.astype("<f4").view("<i4")[columns[used]]
    return block.view(np.uint8).reshape(1, -1)


def folded_bias(weights: np.ndarray, bias: np.ndarray, zero_point: int) -> np.ndarray:
    """Return the bias minus the contribution of the input's zero point to each sum, int32, wrapping."""
    sums = weights.sum(axis=(0, 1, 2), dtype=np.int64)
    return (bias.astype(np.int64) - zero_point * sums).astype(np.int32)
