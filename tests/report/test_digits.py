from __future__ import annotations

import numpy as np

from anytpu.report.digits import gallery, picture

CORNER = np.array([[1.0, 0.0], [0.0, 0.0]])


def test_a_line_holds_two_rows():
    assert picture(CORNER) == ["██  ", "    "]


def test_half_blocks():
    image = np.array([[1.0, 1.0], [0.4, 0.4]])  # enlarged, the rows are 1, 0.85, 0.55, 0.4
    assert picture(image) == ["████", "▀▀▀▀"]


def test_a_channel_axis_is_no_matter():
    assert picture(CORNER[..., np.newaxis]) == picture(CORNER)


def test_pictures_side_by_side_with_captions():
    images = np.stack([CORNER, np.ones((2, 2))])
    assert gallery(images, predicted=[3, 9], truth=[3, 4]) == [
        "██                 ████",
        "                   ████",
        "read as 3, right   read as 9, is 4",
    ]
