import weakref

from anytpu.planning.hlo.frames import Frames, SourceLine
from planning.hlo.saved import module

HERE = "/usr/lib/python3.11/site-packages"


def frames(*files: str, shift: int = 1) -> Frames:
    """Return the frames of one stack, the outermost file first."""
    rows = range(1, len(files) + 1)
    tables = (
        ("FileNames", [f'{row} "{file}"' for row, file in zip(rows, files, strict=True)]),
        ("FunctionNames", ['1 "f"']),
        ("FileLocations", [f"{row} {{file_name_id={row} function_name_id=1 line={row} column=3}}" for row in rows]),
        ("StackFrames", [f"{row} {{file_location_id={row} parent_frame_id={row - 1 + shift}}}" for row in rows]),
    )
    return Frames("HloModule m\n\n" + "\n\n".join("\n".join((name, *lines)) for name, lines in tables) + "\n\n\n")


def test_the_innermost_line_of_the_user():
    found = frames("/u/train.py", "/u/model.py", f"{HERE}/jax/numpy.py", "/usr/lib/python3.11/functools.py")
    assert found.source(4) == SourceLine("/u/model.py", 2, "f")
    assert str(found.source(4)) == "model.py:2"
    assert found.source(1) == SourceLine("/u/train.py", 1, "f")


def test_some_write_the_number_of_the_caller_itself():
    assert [line.line for line in frames("/u/a.py", "/u/b.py", "/u/c.py", shift=0).stack(3)] == [3, 2, 1]
    assert [line.line for line in frames("/u/a.py", "/u/b.py", "/u/c.py").stack(3)] == [3, 2, 1]


def test_who_asked_for_the_plan_is_not_the_program():
    ours = f"{HERE}/anytpu"
    assert frames("/u/plan.py", f"{ours}/program/lowering.py", f"{HERE}/keras/layer.py").source(3) is None
    mine = frames("/u/plan.py", f"{ours}/planning/planner.py", f"{ours}/program/lowering.py", "/u/model.py")
    assert mine.source(4) == SourceLine("/u/model.py", 4, "f")


def test_what_the_users_code_calls_of_anytpu_is_a_library():
    stack = ("/u/plan.py", "/opt/src/anytpu/program/lowering.py", "/u/model.py", "/opt/src/anytpu/strategy/reduce.py")
    assert frames(*stack).source(4) == SourceLine("/u/model.py", 3, "f")


def test_a_frame_that_is_not_listed_has_no_source():
    assert frames("/u/a.py").source(7) is None
    assert Frames("HloModule m\n\n").source(1) is None


def test_the_compilers_own_tables():
    read = module("nested_loops_v5e")
    sources = {str(read.source_of(one)) for one in read.entry.instructions.values()}
    assert sources == {"None", "probe.py:41"}


def test_frames_that_were_read_are_freed():
    found = frames("/u/train.py", "/u/model.py")
    assert found.source(1) is found.source(1)
    gone = weakref.ref(found)
    del found
    assert gone() is None
