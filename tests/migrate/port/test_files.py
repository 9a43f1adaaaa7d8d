from __future__ import annotations

import dataclasses
import functools
import os
from pathlib import Path

import pytest

from anytpu.errors import PortError
from anytpu.migrate.port import ported_file, program_files, write
from anytpu.migrate.port.files import imported
from error_texts import error_text

OLD = "import tensorflow as tf\nstrategy = tf.distribute.get_strategy()\n"
NEW = "import anytpu as tpu\nstrategy = tpu.get_strategy()\n"


message_of = functools.partial(error_text, kind=PortError)


def test_files_and_folders_are_found_once_and_in_order(tmp_path: Path):
    for name in ("b.py", "a.ipynb", "deep/c.py", "notes.txt", ".git/d.py", "venv/e.py", "__pycache__/f.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    found = program_files([tmp_path / "b.py", tmp_path, tmp_path / "notes.txt"])
    assert [str(path.relative_to(tmp_path)) for path in found] == ["b.py", "a.ipynb", "deep/c.py", "notes.txt"]


def test_what_is_not_there(tmp_path: Path):
    missing = tmp_path / "old.py"
    assert message_of(lambda: program_files([missing])) == (
        f"there is no file '{missing}'; name a program, a notebook or a folder of them"
    )
    assert message_of(lambda: program_files([tmp_path])) == (
        f"the folder '{tmp_path}' has no programs: it needs a file *.py or *.ipynb"
    )


def test_what_is_no_python(tmp_path: Path):
    path = tmp_path / "old.py"
    path.write_text("import tensorflow as tf\nprint tf.float32\n")
    assert message_of(lambda: ported_file(path)) == (
        f"{path}, line 2: Missing parentheses in call to 'print'. Did you mean print(...)?; a program has to be "
        "Python 3 to be ported"
    )
    path.write_bytes(b"\x00\xff\xfe")
    assert message_of(lambda: ported_file(path)).startswith(f"{path} is not text (")


def test_the_old_file_is_kept(tmp_path: Path):
    path = tmp_path / "old.py"
    path.write_text(OLD)
    path.chmod(0o755)
    assert write([ported_file(path)]) == [tmp_path / "old.py.bak"]
    assert path.read_text() == NEW
    assert (tmp_path / "old.py.bak").read_text() == OLD
    assert path.stat().st_mode & 0o777 == 0o755
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old.py", "old.py.bak"]
    assert write([ported_file(path)]) == []


def test_a_backup_is_never_overwritten(tmp_path: Path):
    first, second, backup = tmp_path / "a.py", tmp_path / "b.py", tmp_path / "b.py.bak"
    for path in (first, second):
        path.write_text(OLD)
    backup.write_text("mine")
    assert message_of(lambda: write([ported_file(first), ported_file(second)])) == (
        f"'{backup}' exists already: move it away and run the command again"
    )
    assert (first.read_text(), second.read_text(), backup.read_text()) == (OLD, OLD, "mine")


def test_text_that_its_encoding_lacks_leaves_the_file_as_it_was(tmp_path: Path):
    path = tmp_path / "old.py"
    path.write_text(OLD)
    file = dataclasses.replace(ported_file(path), content="name = '\u20ac'\n", encoding="latin-1")
    with pytest.raises(UnicodeEncodeError):
        write([file])
    assert path.read_text() == OLD
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old.py", "old.py.bak"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(tmp_path: Path):
    path = tmp_path / "old.py"
    path.write_text(OLD)
    tmp_path.chmod(0o555)
    try:
        assert message_of(lambda: write([ported_file(path)])) == (
            f"cannot write '{path}': Permission denied; it is unchanged"
        )
    finally:
        tmp_path.chmod(0o755)


def test_a_link_stays_a_link(tmp_path: Path):
    (tmp_path / "real").mkdir()
    real, link = tmp_path / "real" / "old.py", tmp_path / "link.py"
    real.write_text(OLD)
    link.symlink_to(real)
    write([ported_file(link)])
    assert link.is_symlink()
    assert real.read_text() == NEW


def test_line_ends_and_encodings_stay(tmp_path: Path):
    path = tmp_path / "old.py"
    text = "# -*- coding: latin-1 -*-\r\nimport tensorflow as tf\r\nname = 'Z\u00fcrich'\r\ntf.random.set_seed(1)\r\n"
    path.write_bytes(text.encode("latin-1"))
    write([ported_file(path)])
    assert path.read_bytes().decode("latin-1") == (
        "# -*- coding: latin-1 -*-\r\nimport anytpu as tpu\r\nimport keras\r\n"
        "name = 'Z\u00fcrich'\r\nkeras.utils.set_random_seed(1)\r\n"
    )
    path.write_bytes(b"\xef\xbb\xbf" + OLD.encode())
    (tmp_path / "old.py.bak").unlink()
    write([ported_file(path)])
    assert path.read_bytes() == b"\xef\xbb\xbf" + NEW.encode()


@pytest.mark.parametrize(
    "text", ["(" * 2000, "[" * 50_000 + "]" * 50_000, "x = " + "-" * 50_000 + "1", "not " * 900 + "x"]
)
def test_a_program_that_nests_too_deeply(tmp_path: Path, text: str):
    path = tmp_path / "deep.py"
    path.write_text(f"import tensorflow as tf\n{text}\n")
    with pytest.raises(PortError) as caught:
        ported_file(path)
    told = str(caught.value).replace(f"{path}, line 2: ", "").replace(f"{path}: ", "")
    assert told == "the code nests too deeply to be parsed; split it into named parts"


def test_programs_that_another_one_imports(tmp_path: Path):
    texts = {
        "main.py": "from pkg.model import go\nimport other",
        "other.py": "",
        "alone.py": "",
        "pkg/model.py": "from .net import net",
        "pkg/net.py": "",
        "pkg/train.py": "from . import net",
    }
    for name, text in texts.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    found = imported([ported_file(tmp_path / name) for name in texts])
    assert {str(path.relative_to(tmp_path)) for path in found} == {"other.py", "pkg/model.py", "pkg/net.py"}
