from __future__ import annotations

import pytest

from anytpu import units


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1,023 B"),
        (1024, "1 KiB"),
        (64 * units.MIB, "64 MiB"),
        (-2048, "-2 KiB"),
        (1.5 * 1024**4, "1.5 TiB"),
        (5000 * 1024**5, "5,000 PiB"),
    ],
)
def test_bytes(size_bytes: float, text: str):
    assert units.format_bytes(size_bytes) == text


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [
        (0, "0 s"),
        (2e-10, "0.2 ns"),
        (5e-06, "5 µs"),
        (0.9999, "1 s"),
        (1.0, "1 s"),
        (59.9, "59.9 s"),
        (60, "1 min 0 s"),
        (59.97, "1 min 0 s"),
        (3599.6, "1 h 0 min"),
        (86400 * 50, "1,200 h 0 min"),
        (-75, "-1 min 15 s"),
    ],
)
def test_seconds(duration_s: float, text: str):
    assert units.format_seconds(duration_s) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0"), (9999, "9,999"), (10_000, "10 k"), (999_999, "1 M"), (1.5e9, "1.5 G"), (-3, "-3")]
)
def test_counts(count: float, text: str):
    assert units.format_count(count) == text


def test_rates():
    assert units.format_rate(0.5, "steps") == "0.5 steps/s"
    assert units.format_rate(12.34, "steps") == "12.3 steps/s"
    assert units.format_rate(92e12, "OP") == "92 TOP/s"
    assert units.format_hertz(1.05e9) == "1.05 GHz"
    assert units.format_flops(0) == "0 FLOP"
