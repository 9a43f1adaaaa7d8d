from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from anytpu.errors import PortError
from anytpu.migrate.port import ported_file, write
from error_texts import error_text


def cell(*lines: str, kind: str = "code") -> dict[str, Any]:
    return {"cell_type": kind, "metadata": {}, "outputs": [], "source": [*(f"{x}\n" for x in lines[:-1]), lines[-1]]}


NOTEBOOK = {
    "cells": [
        cell("# Train with tf.distribute.TPUStrategy", kind="markdown"),
        cell("%matplotlib inline", "!pip install tensorflow", "import tensorflow as tf"),
        cell("%%bash", "ls tf.distribute"),
        cell("if True:", "    %time tf.random.set_seed(1)", "    tf.random.set_seed(2)"),
        cell("x = 1  # \u00e9"),
        cell("strategy = tf.distribute.get_strategy()", "tf.placeholder('float')"),
    ],
    "metadata": {"kernelspec": {"name": "python3"}},
    "nbformat": 4,
    "nbformat_minor": 5,
}


def test_the_code_cells_are_one_program(tmp_path: Path):
    path = tmp_path / "old.ipynb"
    path.write_text(json.dumps(NOTEBOOK, indent=1, ensure_ascii=False) + "\n")
    file = ported_file(path)
    assert file.program.new == (
        "# cell 1\n%matplotlib inline\n!pip install tensorflow\nimport anytpu as tpu\nimport keras\n"
        "import tensorflow as tf\n"
        "# cell 2\nif True:\n    %time tf.random.set_seed(1)\n    keras.utils.set_random_seed(2)\n"
        "# cell 3\nx = 1  # \u00e9\n# cell 4\nstrategy = tpu.get_strategy()\ntf.placeholder('float')\n"
    )
    assert [finding.old for finding in file.program.by_hand] == ["tf.placeholder"]
    write([file])
    new = json.loads(path.read_text())
    expected = json.loads(json.dumps(NOTEBOOK))
    expected["cells"][1] = cell(
        "%matplotlib inline",
        "!pip install tensorflow",
        "import anytpu as tpu",
        "import keras",
        "import tensorflow as tf",
    )
    expected["cells"][3]["source"][2] = "    keras.utils.set_random_seed(2)"
    expected["cells"][5]["source"][0] = "strategy = tpu.get_strategy()\n"
    assert new == expected


def test_a_notebook_without_tensorflow_stays_as_it_is(tmp_path: Path):
    path = tmp_path / "old.ipynb"
    path.write_text('{"cells": [{"cell_type": "code", "source": "x=1"}]}')
    file = ported_file(path)
    assert not file.program.is_changed
    assert file.content == path.read_text()


CELLS = [1, ["a"], [{"cell_type": "code"}], [{"source": 1}], [{"source": ["a", 1]}], [{"source": "\ud800"}], [[]] * 3]


@pytest.mark.parametrize(
    "text", ["import tensorflow", "[]", '{"cells": 3}', *(json.dumps({"cells": cells}) for cells in CELLS)]
)
def test_what_is_no_notebook(text: str, tmp_path: Path):
    path = tmp_path / "old.ipynb"
    path.write_text(text)
    message = f"{path} is not a notebook: it must be JSON with a list of cells, as Jupyter writes it"
    assert error_text(lambda: ported_file(path), kind=PortError) == message


def test_a_cell_that_is_timed_is_ported(tmp_path: Path):
    path = tmp_path / "timed.ipynb"
    cells = [
        cell("import tensorflow as tf"),
        cell("%%time", "s = tf.distribute.get_strategy()"),
        cell("%%writefile a.py", "tf.x"),
    ]
    path.write_text(json.dumps({"cells": cells, "nbformat": 4}))
    file = ported_file(path)
    assert file.program.new == "# cell 1\nimport anytpu as tpu\n# cell 2\n%%time\ns = tpu.get_strategy()\n"
    assert [part["source"] for part in json.loads(file.content)["cells"][1:]] == [
        ["%%time\n", "s = tpu.get_strategy()"],
        ["%%writefile a.py\n", "tf.x"],
    ]
