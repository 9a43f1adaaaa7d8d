"""Trainers of Tunix as Programs. Tunix is not installed for the tests: scripts/check_frameworks runs these."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import anytpu as tpu
from anytpu.errors import ProgramError

peft_trainer = pytest.importorskip("tunix.sft.peft_trainer")

pytestmark = pytest.mark.filterwarnings("ignore")

SHAPE = (8, 32)


class Words(nnx.Module):
    """A small model with the interface that Tunix's default loss calls."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embedding = nnx.Embed(256, 64, rngs=rngs)
        self.hidden = nnx.LoRALinear(64, 64, lora_rank=4, rngs=rngs)
        self.out = nnx.Linear(64, 256, rngs=rngs)

    def __call__(self, tokens: Any, positions: Any, cache: Any, mask: Any) -> Any:
        return self.out(jax.nn.relu(self.hidden(self.embedding(tokens)))), cache


def trainer() -> Any:
    config = peft_trainer.TrainingConfig(eval_every_n_steps=10, max_steps=10)
    return peft_trainer.PeftTrainer(Words(nnx.Rngs(0)), optax.adamw(1e-2), config)


def batch() -> dict[str, Any]:
    tokens = np.random.default_rng(0).integers(0, 256, SHAPE).astype("int32")
    mask = np.ones((SHAPE[0], SHAPE[1], SHAPE[1]), bool)
    return {"input_tokens": tokens, "input_mask": np.ones_like(tokens), "positions": tokens * 0, "attention_mask": mask}


def test_a_step_is_that_of_the_trainer():
    own, rows = trainer(), batch()
    program = tpu.program.of(own, (rows,), tensors=True)
    assert (program.name, program.rows) == ("PeftTrainer/train", 8)
    kinds = dict(zip(program.state_names, program.state_kinds, strict=True))
    assert kinds["model/hidden/lora/lora_a"] == "weights" and kinds["model/hidden/kernel"] == "frozen"
    state, losses, step = program.tensors, [], jax.jit(program.step)
    for _ in range(3):
        state, outputs = step(state, {"inputs": jax.tree.map(jnp.asarray, rows)})
        losses.append(float(outputs[0]))
    train_step = own.create_train_step_fn()
    expected = [float(train_step(own.model, own.optimizer, rows)[0]) for _ in range(3)]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_allclose(state["model/hidden/lora/lora_b"], own.model.hidden.lora.lora_b.get_value(), rtol=1e-3)


def test_it_is_planned():
    specs = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), batch())
    plan = tpu.plan(trainer(), 64, ["v5e-1", "v5e-8"], input_specs=specs, layout="fsdp")
    assert plan["v5e-8"].fits and "out" in {op.layer for op in plan["v5e-1"].time.ops}
    with pytest.raises(ProgramError) as caught:
        tpu.plan(trainer(), 64, "v5e-1", mode="infer", input_specs=specs)
    assert str(caught.value) == (
        "'PeftTrainer' cannot be planned with mode='infer'. A trainer is a training step: leave mode=\"infer\" out, or "
        "give its model"
    )
