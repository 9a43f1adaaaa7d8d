import csv
import sys
from pathlib import Path

import pytest

from source_tree import ROOT

sys.path.append(str(ROOT / "benchmarks"))

import scalesim_rules as scalesim
from scalesim_rules import Layer, SystolicDesign

CASES = Path(__file__).parent / "scalesim_cases"


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
