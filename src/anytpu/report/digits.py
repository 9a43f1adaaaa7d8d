"""Handwritten digits drawn as text, with a model's predictions.

Idea: a half block is a square pixel, two per character, and every terminal can show it. A digit of 8 by 8 pixels is
easy to read when it is enlarged to twice its size by linear interpolation.

Rule: ink is the foreground colour, so that a picture is correct on dark and on light terminals.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

INK = 0.5
"""Threshold from which a pixel is drawn."""

_HALVES = {(False, False): " ", (True, False): "▀", (False, True): "▄", (True, True): "█"}
_GAP = "   "


def picture(image: np.ndarray) -> list[str]:
    """Return an image as lines of text at twice its size, two rows of pixels per line.

    Args:
        image: `(height, width)` or `(height, width, 1)`, from 0 (paper) to 1 (ink).

    Example:
        >>> picture(np.eye(2))
        ['██  ', '  ██']
    """
    is_ink = _enlarged(image.reshape(image.shape[:2])) >= INK
    return [
        "".join(_HALVES[bool(upper), bool(lower)] for upper, lower in zip(*rows, strict=True))
        for rows in zip(is_ink[::2], is_ink[1::2], strict=True)
    ]


def gallery(images: np.ndarray, predicted: Sequence[int], truth: Sequence[int]) -> list[str]:
    """Return pictures side by side, each with a caption: the predicted digit and the true one.

    Args:
        images: `(images, height, width)` or `(images, height, width, 1)`, from 0 to 1.
        predicted: the model's prediction for each image, 0 to 9.
        truth: the label of each image, 0 to 9.
    """
    pictures = [picture(image) for image in images]
    captions = [_caption(int(guess), int(label)) for guess, label in zip(predicted, truth, strict=True)]
    widths = [max(len(lines[0]), len(caption)) for lines, caption in zip(pictures, captions, strict=True)]
    rows = [*zip(*pictures, strict=True), captions]
    return [_GAP.join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def _caption(predicted: int, truth: int) -> str:
    return f"read as {predicted}, right" if predicted == truth else f"read as {predicted}, is {truth}"


def _enlarged(image: np.ndarray) -> np.ndarray:
    """Return an image of twice the height and width, by linear interpolation."""
    for axis in (0, 1):
        size = image.shape[axis]
        at = (np.arange(2 * size) + 0.5) / 2 - 0.5
        image = np.apply_along_axis(lambda line, at=at, size=size: np.interp(at, np.arange(size), line), axis, image)
    return image
