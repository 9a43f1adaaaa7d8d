"""Augmentation: what is cut, mirrored, scaled, and that the random numbers are the element's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import anytpu as tpu
from anytpu.errors import DataError, SettingError
from anytpu.pipeline import normalize, random_crop, random_flip, resize, standardize

IMAGE = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)


def drawn(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@given(
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    padding=st.integers(0, 5),
    seed=st.integers(0, 100),
    data=st.data(),
)
def test_a_crop_is_a_piece_of_the_padded_image(height: int, width: int, padding: int, seed: int, data: Any):
    image = 1 + np.arange(height * width, dtype=np.int32).reshape(height, width, 1)
    size = (
        data.draw(st.integers(1, height + 2 * padding)),
        data.draw(st.integers(1, width + 2 * padding)),
    )
    piece = random_crop(image, drawn(seed), size, padding)
    padded = np.pad(image, ((padding, padding), (padding, padding), (0, 0)))
    places = np.lib.stride_tricks.sliding_window_view(padded, (*size, 1)).reshape(-1, *size, 1)
    assert piece.dtype == image.dtype
    assert (places == piece).all(axis=(1, 2, 3)).any()


def test_a_crop_reaches_every_place():
    image = np.array([[[1], [2]]], np.uint8)
    assert {random_crop(image, drawn(seed), padding=1).tobytes() for seed in range(100)} == {
        bytes(pair) for pair in ([0, 0], [0, 1], [1, 2], [2, 0])
    }


def test_half_of_the_images_are_mirrored():
    flipped = [np.array_equal(random_flip(IMAGE, drawn(seed)), IMAGE[:, ::-1]) for seed in range(200)]
    assert 70 < sum(flipped) < 130
    assert all(
        flip or np.array_equal(random_flip(IMAGE, drawn(seed)), IMAGE)
        for seed, flip in zip(range(200), flipped, strict=True)
    )


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_scaling(dtype: str, channels: int):
    ramp = np.repeat(np.arange(0, 160, 10, dtype=dtype).reshape(1, 16, 1), 8, 0).repeat(channels, 2)
    small = resize(ramp, (4, 8))
    assert small.shape == (4, 8, channels)
    assert small.dtype == dtype
    means = ramp.reshape(4, 2, 8, 2, channels).mean((1, 3))
    assert np.abs(small[:, 1:-1] - means[:, 1:-1]).max() <= 1
    assert np.array_equal(resize(ramp, (8, 16)), ramp)
    assert resize(ramp, (3, 40)).shape == (3, 40, channels)


def test_scaling_without_antialiasing_and_to_the_nearest_pixel_as_tensorflow_does():
    row = np.arange(0, 80, 10, dtype="float32").reshape(1, 8, 1)
    # tf.image.resize(row, (1, 3)) and (1, 13, method="nearest") of TensorFlow 2.15
    assert np.allclose(resize(row, (1, 3), antialias=False).ravel(), [8.333333, 35, 61.666668], atol=1e-4)
    nearest = [0, 0, 10, 20, 20, 30, 40, 40, 50, 50, 60, 70, 70]
    assert resize(row, (1, 13), method="nearest").ravel().tolist() == nearest
    assert resize(row.astype(int), (1, 13), method="nearest").ravel().tolist() == nearest


def test_normalize_and_standardize():
    assert normalize(IMAGE).dtype == np.float32
    assert normalize(np.array([[[0, 255, 128]]]), mean=[0, 255, 128], deviation=[1, 2, 4]).tolist() == [[[0, 0, 0]]]
    even = standardize(IMAGE)
    assert even.dtype == np.float32
    assert abs(float(even.mean())) < 1e-6
    assert abs(float(even.std()) - 1) < 1e-6
    assert standardize(np.full((2, 2, 1), 7)).tolist() == np.zeros((2, 2, 1)).tolist()
    batch = np.stack([IMAGE, IMAGE // 2])
    np.testing.assert_array_equal(standardize(batch), np.stack([standardize(image) for image in batch]))


REFUSED = {
    "too large": (
        lambda: random_crop(IMAGE, drawn(), (20, 7), padding=1),
        SettingError,
        (
            "a window of 20 x 7 does not fit into an image of 5 x 7 with a padding of 1: use a smaller size, or a "
            "padding of at least 8"
        ),
    ),
    "a batch": (
        lambda: random_flip(IMAGE[None], drawn()),
        DataError,
        (
            "an image must be an array (height, width, channels), not one of shape (1, 5, 7, 3): for a batch, call "
            "map before batch; for a grey image, add the channel with image[..., None]"
        ),
    ),
    "no channels": (
        lambda: standardize(np.ones((2, 2))),
        DataError,
        (
            "an image must be an array (height, width, channels), not one of shape (2, 2): for a batch, call map "
            "before batch; for a grey image, add the channel with image[..., None]"
        ),
    ),
    "another method": (
        lambda: resize(IMAGE, (2, 2), method="bicubic"),
        SettingError,
        'method must be "bilinear" or "nearest", not \'bicubic\'',
    ),
    "no size": (
        lambda: resize(IMAGE, (0, 3)),
        SettingError,
        "size must be a height and a width of at least 1, not (0, 3)",
    ),
    "wide": (
        lambda: resize(IMAGE.astype("float64"), (2, 2)),
        DataError,
        'an image to resize must be uint8 or float32, not float64: pass image.astype("float32")',
    ),
    "no deviation": (
        lambda: normalize(IMAGE, deviation=[1, 0, 1]),
        SettingError,
        "deviation must not contain 0, as [1, 0, 1] does: the image is divided by it",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str):
    use, kind, message = REFUSED[name]
    with pytest.raises(kind) as caught:
        use()
    assert str(caught.value) == message


def augment(image: Any, random: np.random.Generator) -> Any:
    return random_flip(random_crop(image, random, padding=2), random)


def test_threads_change_no_crop_and_passes_do():
    images = np.tile(IMAGE, (12, 1, 1, 1))

    def batches(threads: int) -> list[np.ndarray]:
        rows = tpu.pipeline.Dataset.from_arrays(images).random_map(augment, seed=1).batch(4)
        rows = rows.prefetch(threads=threads) if threads else rows.prefetch(0)
        return [*rows, *rows]

    alone, many = batches(0), batches(4)
    assert all(np.array_equal(one, other) for one, other in zip(alone, many, strict=True))
    assert not np.array_equal(alone[:3], alone[3:])
    assert len({row.tobytes() for row in alone[0]}) > 1, "each element its own"


def test_several_images_are_resized_alike():
    images = np.random.default_rng(1).integers(0, 256, (2, 6, 4, 3), "uint8")
    resized = tpu.pipeline.resize(images, (3, 8), antialias=False)
    assert (resized == [tpu.pipeline.resize(image, (3, 8), antialias=False) for image in images]).all()


def test_colors_of_integers_are_changed_as_shares_of_their_range():
    image = np.random.default_rng(1).integers(0, 256, (4, 5, 3), "uint8")
    share = image.astype("float32") / 255
    for change, limits in (
        (tpu.pipeline.random_brightness, (0.3,)),
        (tpu.pipeline.random_contrast, (0.5, 1.5)),
        (tpu.pipeline.random_saturation, (0.5, 1.5)),
        (tpu.pipeline.random_hue, (0.2,)),
    ):
        changed = change(image, np.random.default_rng(2), *limits)
        expected = change(share, np.random.default_rng(2), *limits)
        assert (changed.dtype, expected.dtype) == ("uint8", "float32")
        np.testing.assert_allclose(changed / 255, expected.clip(0, 1), atol=1 / 255)
    assert (tpu.pipeline.random_brightness(image, np.random.default_rng(0), 0.0) == image).all()


def test_saturation_and_hue_are_those_of_hsv():
    import colorsys

    image = np.random.default_rng(1).random((3, 3, 3))
    saturated = tpu.pipeline.random_saturation(image, np.random.default_rng(0), 1.6, 1.6)
    turned = tpu.pipeline.random_hue(image, np.random.default_rng(0), 0.2)
    delta = np.random.default_rng(0).uniform(-0.2, 0.2)
    for row, column in np.ndindex(3, 3):
        hue, saturation, value = colorsys.rgb_to_hsv(*image[row, column])
        wanted = colorsys.hsv_to_rgb(hue, min(saturation * 1.6, 1), value)
        np.testing.assert_allclose(saturated[row, column], wanted, atol=1e-6)
        np.testing.assert_allclose(turned[row, column], colorsys.hsv_to_rgb(hue + delta, saturation, value), atol=1e-6)


def test_a_window_of_stacked_images():
    stacked = np.arange(2 * 4 * 4 * 3).reshape(2, 4, 4, 3)
    assert tpu.pipeline.random_crop(stacked, np.random.default_rng(0), [2, 2, 2, 3], padding=0).shape == (2, 2, 2, 3)
