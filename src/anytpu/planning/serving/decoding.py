"""`decoding_steps`: the two steps in which a language model answers, as Programs.

Idea: prefill computes the prompts at once and fills the cache of keys and values. A decode step computes one token of
each sequence, and reads all weights and the whole cache. The cache is a part of the state.

Rule: the model is one of KerasHub's: `call_with_cache` computes tokens with a cache. Its own code is traced.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from anytpu import program as programs
from anytpu.errors import ProgramError
from anytpu.program.program import Program


def decoding_steps(model: Any, batch_size: int, prompt_tokens: int, new_tokens: int) -> tuple[Program, Program]:
    """Return the prefill step and the decode step of a language model, that of the last token.

    Args:
        model: a CausalLM of KerasHub, also one without values.
        batch_size: number of sequences that are answered at once.
        prompt_tokens: tokens of a prompt.
        new_tokens: tokens of an answer.

    Raises:
        ProgramError: the model has no `call_with_cache`.
    """
    import keras

    if not (callable(getattr(model, "call_with_cache", None)) and callable(getattr(model, "_build_cache", None))):
        raise ProgramError(
            f"{getattr(model, 'name', model)!r} has no call_with_cache, which computes tokens with a cache. Give a "
            "CausalLM of KerasHub, such as that of tpu.language_model, or plan your own decode step with tpu.plan"
        )
    weights = {variable.path: jax.ShapeDtypeStruct(variable.shape, variable.dtype) for variable in model.variables}

    def bound(values: dict[str, Any]) -> Any:
        return keras.StatelessScope([(variable, values[variable.path]) for variable in model.variables])

    def prefill(state: Any, tokens: Any) -> tuple[Any, Any]:
        with bound(state["weights"]):
            return state, model._build_cache(tokens, **_absent(model._build_cache, tokens))[-1]

    def decode(state: Any, tokens: Any) -> tuple[Any, Any]:
        with bound(state["weights"]):
            logits, _, cache = model.call_with_cache(tokens, state["cache"], state["position"])
        after = {"weights": state["weights"], "cache": cache, "position": state["position"] + 1}
        return after, jnp.argmax(logits[:, -1], axis=-1)

    def tokens_of(length: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((batch_size, length), "int32")

    # The cache has room for the prompt and the answer; only its shape is computed here.
    _, cache = jax.eval_shape(prefill, {"weights": weights}, tokens_of(prompt_tokens + new_tokens))
    state = {"weights": weights, "cache": cache, "position": jax.ShapeDtypeStruct((), "int32")}
    return (
        _program_of(f"{model.name}/prefill", prefill, {"weights": weights}, tokens_of(prompt_tokens)),
        _program_of(f"{model.name}/decode", decode, state, tokens_of(1)),
    )


def _program_of(name: str, step: Callable[..., Any], state: Any, batch: Any) -> Program:
    program = programs.of(step, (state, batch), "infer", batch_axis=0)
    kinds = {"weights": "frozen", "cache": "cache"}
    return dataclasses.replace(
        program,
        name=name,
        state_kinds=tuple(kinds.get(array.partition("/")[0], "other") for array in program.state_names),
    )


def _absent(build_cache: Callable[..., Any], tokens: Any) -> dict[str, Any]:
    """Return the arguments of `_build_cache` beside the tokens: a mask of whole prompts, and no images."""
    _, *others = inspect.signature(build_cache).parameters
    return {name: jnp.ones_like(tokens) if name == "padding_mask" else None for name in others}
