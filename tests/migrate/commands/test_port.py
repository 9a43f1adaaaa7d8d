from __future__ import annotations

from pathlib import Path

from cli.commands import anytpu

OLD = "import tensorflow as tf\nstrategy = tf.distribute.get_strategy()\n"
DIFF = """\
--- old.py
+++ old.py
@@ -1,2 +1,2 @@
-import tensorflow as tf
-strategy = tf.distribute.get_strategy()
+import anytpu as tpu
+strategy = tpu.get_strategy()

"""


def test_the_diff_is_shown_and_nothing_is_written(tmp_path: Path):
    (tmp_path / "old.py").write_text(OLD)
    run = anytpu("port", "--no-try", "old.py", folder=tmp_path)
    assert run.stdout == (
        DIFF + "1 of 1 program would change; nothing is left to port by hand; none was tried\n"
        "To change it: the same command with --write\n"
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["old.py"]
    assert (tmp_path / "old.py").read_text() == OLD


def test_it_is_written_and_a_second_time_changes_nothing(tmp_path: Path):
    (tmp_path / "old.py").write_text(OLD)
    run = anytpu("port", "--write", "old.py", folder=tmp_path)
    assert run.stdout == (
        f"{DIFF}old.py: the trial of the ported program\n  it ran to its end, cut to a few steps, without a failure\n\n"
        "The old file is kept as old.py.bak\n1 of 1 program changed; nothing is left to port by hand; 1 ran\n"
    )
    assert (run.returncode, run.stderr) == (0, "")
    again = anytpu("port", "--write", ".", folder=tmp_path)
    assert again.stdout == "0 of 1 program changed; nothing is left to port by hand\n"
    assert (again.returncode, again.stderr) == (0, "")


def test_what_is_left_is_listed_by_line_and_the_status_is_1(tmp_path: Path):
    (tmp_path / "old.py").write_text("import tensorflow as tf\n\nx = tf.placeholder('float')\n")
    run = anytpu("port", "old.py", folder=tmp_path)
    assert (
        run.stdout
        == """\

old.py: to port by hand
  line 3  tf.placeholder
          write `outputs = strategy.run(train_step, args=(x, y))` (a placeholder
          is an argument of the step)

0 of 1 program would change; 1 place is left to port by hand
"""
    )
    assert (run.returncode, run.stderr) == (1, "")


def test_a_program_that_fails_is_not_called_done(tmp_path: Path):
    (tmp_path / "main.py").write_text(f"{OLD}import part\nprint(part.strategy)\n{{}}['x']\n")
    (tmp_path / "part.py").write_text(OLD)
    run = anytpu("port", ".", folder=tmp_path)
    assert "main.py: the trial of the ported program\n  line 5  {}['x']\n          KeyError: 'x'\n" in run.stdout
    last = "2 of 2 programs would change; nothing is left to port by hand; 1 did not run, 1 only imported\n"
    assert last in run.stdout
    assert run.returncode == 1


def test_a_file_of_python_2_is_named_and_the_others_are_ported(tmp_path: Path):
    (tmp_path / "old.py").write_text(OLD)
    (tmp_path / "older.py").write_text("import tensorflow as tf\nprint 'x'\n")
    run = anytpu("port", "--no-try", ".", folder=tmp_path)
    assert DIFF in run.stdout
    assert "Left out: older.py, line 2: Missing parentheses in call to 'print'" in run.stdout
    assert run.returncode == 1


def test_what_cannot_be_read(tmp_path: Path):
    run = anytpu("port", "old.py", folder=tmp_path)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr == "anytpu: there is no file 'old.py'; name a program, a notebook or a folder of them\n"
