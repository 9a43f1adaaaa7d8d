import csv
from pathlib import Path

import pytest

from anytpu.chip.timing import scalesim
from anytpu.chip.timing.scalesim import Layer, SystolicDesign
from anytpu.errors import FileError, SettingError

CASES = Path(__file__).parent / "scalesim_cases"
HEADING = "Layer name, IFMAP Height, IFMAP Width, Filter Height, Filter Width, Channels, Num Filter, Strides,\n"


def rows(name: str) -> list[dict[str, str]]:
    with (CASES / name).open() as file:
        return list(csv.DictReader(file))


def layer_of(row: dict[str, str]) -> Layer:
    return Layer(row["case"], int(row["M_rows"]), int(row["K"]), int(row["N"]))


@pytest.mark.parametrize("row", rows("cases.csv"), ids=lambda row: row["case"])
def test_cycles_are_those_of_scale_sim(row: dict[str, str]):
    assert scalesim.cycles(layer_of(row)) == int(row["scalesim_total_cycles_calc"])


@pytest.mark.parametrize(("file", "kind"), [("conv3.csv", "conv"), ("gemm3.csv", "gemm")])
def test_layers_of_its_files_are_the_layers_of_the_cases(file: str, kind: str):
    expected = {row["case"]: layer_of(row) for row in rows("cases.csv")}
    layers = scalesim.read_topology(CASES / file, kind)  # type: ignore[arg-type]
    assert len(layers) == 3
    assert [expected[layer.name] for layer in layers] == list(layers)
    assert scalesim.read_configuration(CASES / "tpu1_ws.cfg") == SystolicDesign(256, 256, "ws")


@pytest.mark.parametrize("dataflow", ["ws", "os", "is"])
def test_other_dataflows_on_an_array_that_is_no_square(dataflow: str):
    layers = scalesim.read_topology(CASES / "other_dataflows_topology.csv")
    expected = {row["layer"]: int(row[dataflow]) for row in rows("other_dataflows.csv")}
    design = SystolicDesign(8, 4, dataflow)  # type: ignore[arg-type]
    assert {layer.name: scalesim.cycles(layer, design) for layer in layers} == expected


def test_macs_of_a_layer():
    assert scalesim.read_topology(CASES / "conv3.csv")[0].macs == 14 * 14 * 3 * 3 * 64 * 256


BAD_LINES = [
    ("A, 5, 5, 3, 3,\n", "{}, line 2: expected a name and IFMAP Height, IFMAP Width, Filter Height, Filter Width, "
     "Channels, Num Filter, Strides, got 'A, 5, 5, 3, 3,'."),
    ("A, 5, 5, 3, 3, 2, 4, 1,\n\nB, 5, 5, 3, x, 2, 4, 1,\n",
     "{}, line 4: Filter Width must be a positive integer, not 'x'."),
    ("A, 5, 5, 3, 3, 2, 4, 0,\n", "{}, line 2: Strides must be a positive integer, not '0'."),
    ("A, 5, 2, 3, 3, 2, 4, 1,\n", "{}, line 2: a filter of 3 x 3 is larger than its input of 5 x 2; a topology has no "
     "padding, so add it to the input."),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "message"), BAD_LINES)
def test_a_line_that_is_no_layer(tmp_path: Path, lines: str, message: str):
    path = tmp_path / "net.csv"
    path.write_text(HEADING + lines)
    with pytest.raises(SettingError) as error:
        scalesim.read_topology(path)
    assert str(error.value) == message.format(path)


def test_a_product_of_the_wrong_kind(tmp_path: Path):
    with pytest.raises(SettingError) as error:
        scalesim.read_topology(CASES / "gemm3.csv", "dense")  # type: ignore[arg-type]
    assert str(error.value) == "kind of a topology must be 'conv' or 'gemm', not 'dense'."
    path = tmp_path / "net.csv"
    path.write_text("Layer Name, M, N, K,\nfc, 200, 256,\n")
    with pytest.raises(SettingError) as error:
        scalesim.read_topology(path, "gemm")
    assert str(error.value) == f"{path}, line 2: expected a name and M, N, K, got 'fc, 200, 256,'."


def test_files_that_cannot_be_read(tmp_path: Path):
    with pytest.raises(FileError) as error:
        scalesim.read_topology(tmp_path / "none.csv")
    assert str(error.value) == f"'{tmp_path}/none.csv' cannot be read: No such file or directory"
    (tmp_path / "picture.cfg").write_bytes(b"\x89PNG\xff")
    with pytest.raises(FileError) as error:
        scalesim.read_configuration(tmp_path / "picture.cfg")
    assert str(error.value) == f"'{tmp_path}/picture.cfg' cannot be read: it is no text"


BAD_CONFIGURATIONS = [
    ("[general]\nrun_name = x\n", "{} is no SCALE-Sim configuration: it has no section [architecture_presets]."),
    ("[architecture_presets]\nArrayHeight: 0\nArrayWidth: 8\nDataflow: ws\n",
     "{}, [architecture_presets]: ArrayHeight must be a positive integer, not '0'."),
    ("[architecture_presets]\nArrayHeight: 8\nDataflow: ws\n",
     "{}, [architecture_presets]: ArrayWidth must be a positive integer, not ''."),
    ("[architecture_presets]\nArrayHeight: 8\nArrayWidth: 8\nDataflow: rs\n",
     "{}, [architecture_presets]: Dataflow must be ws, os or is, not 'rs'."),
    ("ArrayHeight: 8\n", "{} is no SCALE-Sim configuration: File contains no section headers.\nfile: '{}', line: 1\n"
     "'ArrayHeight: 8\\n'"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BAD_CONFIGURATIONS)
def test_a_configuration_without_an_array(tmp_path: Path, text: str, message: str):
    path = tmp_path / "tpu.cfg"
    path.write_text(text)
    with pytest.raises(SettingError) as error:
        scalesim.read_configuration(path)
    assert str(error.value) == message.format(path, path)


def test_an_array_that_makes_no_sense():
    with pytest.raises(SettingError) as error:
        SystolicDesign(rows=0)
    assert str(error.value) == "rows of a systolic array must be a positive integer, not 0."
    with pytest.raises(SettingError) as error:
        SystolicDesign(dataflow="rs")  # type: ignore[arg-type]
    assert str(error.value) == "dataflow must be 'ws', 'os' or 'is', not 'rs'."
