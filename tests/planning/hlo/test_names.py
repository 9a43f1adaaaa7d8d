import pytest

from anytpu.planning.hlo import layer_of


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
