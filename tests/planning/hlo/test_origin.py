import weakref

import pytest

from anytpu.planning.hlo.origin import Frames, layer_of
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
    assert found.source(4) == "model.py:2"
    assert found.source(1) == "train.py:1"


def test_some_write_the_number_of_the_caller_itself():
    stack = ("/u/a.py", "/u/b.py", f"{HERE}/jax/c.py")
    for shift in (0, 1):
        assert [frames(*stack, shift=shift).source(number) for number in (3, 2, 1)] == ["b.py:2", "b.py:2", "a.py:1"]


def test_who_asked_for_the_plan_is_not_the_program():
    ours = f"{HERE}/anytpu"
    assert frames("/u/plan.py", f"{ours}/program/lowering.py", f"{HERE}/keras/layer.py").source(3) == ""
    mine = frames("/u/plan.py", f"{ours}/planning/planner.py", f"{ours}/program/lowering.py", "/u/model.py")
    assert mine.source(4) == "model.py:4"


def test_what_the_users_code_calls_of_anytpu_is_a_library():
    stack = ("/u/plan.py", "/opt/src/anytpu/program/lowering.py", "/u/model.py", "/opt/src/anytpu/strategy/reduce.py")
    assert frames(*stack).source(4) == "model.py:3"


def test_a_frame_that_is_not_listed_has_no_source():
    assert frames("/u/a.py").source(7) == ""
    assert Frames("HloModule m\n\n").source(1) == ""


def test_the_compilers_own_tables():
    read = module("nested_loops_v5e")
    sources = {read.source_of(instruction) for instruction in read.entry.instructions.values()}
    assert sources == {"", "probe.py:41"}


def test_frames_that_were_read_are_freed():
    found = frames("/u/train.py", "/u/model.py")
    assert found.source(1) == "train.py:1"
    gone = weakref.ref(found)
    del found
    assert gone() is None


@pytest.mark.parametrize(
    ("op_name", "layer", "is_backward"),
    [
        ("", "", False),
        ("leaves[3]", "", False),
        ("jit(step)/add", "", False),
        ("jit(run)/call_exported/jit(<lambda>)/jvp(conv1)/conv_general_dilated", "conv1", False),
        ("jit(run)/call_exported/jit(<lambda>)/transpose(jvp(conv1))/conv_general_dilated", "conv1", True),
        ("jit(step)/jvp(c1)/jit(relu)/max", "c1", False),
        ("jit(f)/jvp(compile_loss)/crossentropy/jit(log_softmax)/log", "compile_loss/crossentropy", False),
        ("jit(f)/jvp()/while/body/closed_call/attn/bsd,dhk->bshk/dot_general", "attn", False),
        (
            "jit(f)/transpose(jvp())/while/body/closed_call/checkpoint/rematted_computation/mlp/dot_general",
            "mlp",
            True,
        ),
        ("jit(f)/jvp(block1/dense)/dot_general", "block1/dense", False),
        ("jit(f)/vmap(jvp(block1))/dense/dot_general", "block1/dense", False),
        ("jit(f)/transpose(jvp(jit(gelu)))/mul", "", True),
        ("jit(f)/cond/branch_1_fun/head/dot_general", "head", False),
        ("jit(f)/transpose(jvp(while))/body/add", "", True),
        ("jit(step)/adam/mul", "adam", False),
        ("reduce_sum", "", False),
    ],
)
def test_layer_and_direction(op_name: str, layer: str, is_backward: bool):
    assert layer_of(op_name) == (layer, is_backward)
