from __future__ import annotations

from pathlib import Path

import pytest

from anytpu.errors import SettingError
from anytpu.planning.costs.prices import COLUMNS, read_prices
from anytpu.planning.records.cost import Price
from anytpu.system.chips import CHIPS

COLUMN_NAMES = "chip, usd_per_chip_hour, spot_usd_per_chip_hour, preemptions_per_hour, date, source, note"
CHIP_NAMES = "v1, v2, v3, v4i, v4, v5e, v5p, v6e, v7x"


def written(folder: Path, text: str) -> Path:
    path = folder / "own.csv"
    path.write_text(text)
    return path


def refusal(folder: Path, text: str) -> str:
    path = written(folder, text)
    with pytest.raises(SettingError) as caught:
        read_prices(path)
    return str(caught.value).replace(str(path), "own.csv")


def test_the_table_has_every_chip_with_a_date():
    prices = read_prices()
    assert list(prices) == list(CHIPS)
    assert all(price.date for price in prices.values())
    assert all(price.source for price in prices.values() if price.usd_per_chip_hour is not None)


def test_the_table_agrees_with_the_datasheets():
    on_demand = {name: price.usd_per_chip_hour for name, price in read_prices().items()}
    assert on_demand == {name: chip.usd_per_chip_hour for name, chip in CHIPS.items()}


def test_spot_is_cheaper():
    for price in read_prices().values():
        if price.usd_per_chip_hour is None:
            assert price.spot_usd_per_chip_hour is None
        else:
            assert price.spot_usd_per_chip_hour is not None
            assert 0 < price.spot_usd_per_chip_hour < price.usd_per_chip_hour


def test_what_is_not_offered_says_so():
    prices = read_prices()
    assert prices["v1"].note == "never sold: used inside Google only"
    assert prices["v7x"].note == "not listed: no public price was found"
    assert prices["v2"].note.startswith("an old generation")


def test_a_row_of_the_users_replaces_that_of_the_table(tmp_path: Path):
    path = written(tmp_path, "chip,usd_per_chip_hour,date\nv3,1.5,2026-10\nv6e,3,\n")
    prices = read_prices(path)
    assert prices["v3"] == Price("v3", 1.5, None, None, "2026-10", str(path))
    assert prices["v6e"] == Price("v6e", 3.0, None, None, "", str(path))
    assert prices["v2"] == read_prices()["v2"]


def test_columns_may_come_in_any_order_and_with_spaces_and_a_byte_order_mark(tmp_path: Path):
    path = tmp_path / "own.csv"
    path.write_bytes("\ufeffnote,chip,preemptions_per_hour\nby contract, v6e , 0.5 \n".encode())
    assert read_prices(path)["v6e"] == Price("v6e", None, None, 0.5, "", str(path), "by contract")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "chip,usd_per_chip_hour\nv3,2\nv9,1\n",
            f"line 3 of the prices in 'own.csv' names the chip 'v9'; the chips are {CHIP_NAMES}",
        ),
        (
            "chip,usd_per_chip_hour\nv3,-2\n",
            "line 2 of the prices in 'own.csv' has '-2' for usd_per_chip_hour, which must be a number, 0 or more, "
            "without a currency; leave the cell empty where there is none",
        ),
        (
            "chip,preemptions_per_hour\nv3,$2\n",
            "line 2 of the prices in 'own.csv' has '$2' for preemptions_per_hour, which must be a number, 0 or more, "
            "without a currency; leave the cell empty where there is none",
        ),
        (
            "chip,usd_per_chip_hour\nv3,2\nv4,1\nv3,3\n",
            "line 4 of the prices in 'own.csv' is the second for 'v3': keep one",
        ),
        (
            "chip,price\nv3,2\n",
            f"the table of prices 'own.csv' has the unknown column 'price'; its columns are {COLUMN_NAMES}",
        ),
        (
            "date\n2026\n",
            f"the table of prices 'own.csv' has no column 'chip' in its first line; its columns are {COLUMN_NAMES}",
        ),
        ("", f"the table of prices 'own.csv' has no column 'chip' in its first line; its columns are {COLUMN_NAMES}"),
        (
            "chip,note\nv3,cheap,really\n",
            "line 2 of the prices in 'own.csv' has more cells than the first line has columns: put a text with commas "
            "in quotes",
        ),
    ],
)
def test_bad_files(tmp_path: Path, text: str, message: str):
    assert refusal(tmp_path, text) == message


@pytest.mark.parametrize("cell", ["nan", "inf", "-0.1", "1,5"])
def test_numbers_that_are_no_prices(tmp_path: Path, cell: str):
    assert f"has {cell!r} for usd_per_chip_hour" in refusal(tmp_path, f'chip,usd_per_chip_hour\nv3,"{cell}"\n')


def test_a_file_that_is_not_there(tmp_path: Path):
    with pytest.raises(SettingError) as caught:
        read_prices(tmp_path / "none.csv")
    assert str(caught.value) == (
        f"the prices cannot be read from {str(tmp_path / 'none.csv')!r}: No such file or directory. Give a CSV file "
        "whose first line is chip,usd_per_chip_hour,spot_usd_per_chip_hour,date"
    )


def test_a_file_that_is_no_text(tmp_path: Path):
    (tmp_path / "own.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingError) as caught:
        read_prices(tmp_path / "own.csv")
    assert str(caught.value) == (
        f"the prices cannot be read from {str(tmp_path / 'own.csv')!r}: it is not text. Give a CSV file whose first "
        "line is chip,usd_per_chip_hour,spot_usd_per_chip_hour,date"
    )


def test_the_columns_are_those_of_the_record():
    assert ", ".join(COLUMNS) == COLUMN_NAMES


def test_the_example_in_the_documentation(tmp_path: Path):
    text = (Path(__file__).parents[2] / "docs/prices.md").read_text()
    example = text.split("```")[1].lstrip("\n")
    prices = read_prices(written(tmp_path, example))
    assert (prices["v5e"].usd_per_chip_hour, prices["v5e"].preemptions_per_hour) == (0.90, 0.05)
    assert prices["v6e"].spot_usd_per_chip_hour is None
    assert prices["v6e"].note == "one year committed"


def test_a_cell_that_no_table_has(tmp_path: Path):
    file = tmp_path / "prices.csv"
    file.write_text(f"chip,usd_per_chip_hour\nv3,{'9' * 200_000}\n")
    with pytest.raises(SettingError) as caught:
        read_prices(file)
    assert str(caught.value) == (
        f"the table of prices {str(file)!r} cannot be read as CSV: field larger than field limit (131072)"
    )
    file.write_text(f"chip,{'usd' * 100}\n")
    with pytest.raises(SettingError) as caught:
        read_prices(file)
    assert str(caught.value) == (
        f"the table of prices {str(file)!r} has the unknown column {('usd' * 100)[:80] + '...'!r}; its columns are "
        f"{COLUMN_NAMES}"
    )
