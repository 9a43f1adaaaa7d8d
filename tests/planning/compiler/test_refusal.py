from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from anytpu.planning.compiler.places import OperationPlace
from anytpu.planning.compiler.refusal import describe_refusal, find_place, first_sentence
from compiler_samples import line_of


def step(x: Any) -> Any:
    with jax.named_scope("layer"):
        return jnp.fft.fft(x) @ x


JAXPR = jax.make_jaxpr(step)(jnp.ones((4, 4), "complex64"))
LINE = line_of(step, "jnp.fft")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("INVALID_ARGUMENT: Custom emitter for f not found\n\t\n\nSuspected Python", "Custom emitter for f not found"),
        ("INVALID_ARGUMENT: during context [pre-optimization]: Unexpected type.", "Unexpected type"),
        (
            'UNIMPLEMENTED: no: %dot = s64[4]{0} dot(%a), metadata={op_name="jit(f)/dot" stack_frame_id=8}',
            "no: %dot = s64[4]{0} dot(%a)",
        ),
        (
            "RESOURCE_EXHAUSTED: E1001: CompileTimeScopedVmemOom:\nRan out of memory in memory space vmem. Scoped "
            "allocation with size 16.50M and limit 16.00M exceeded scoped vmem limit by 512.0K. It should not be",
            "Scoped allocation with size 16.50M and limit 16.00M exceeded scoped vmem limit by 512.0K",
        ),
    ],
)
def test_reasons(said: str, expected: str):
    assert first_sentence(said) == expected


def test_an_operation_is_found_by_its_line_and_name():
    said = f'INVALID: bad, metadata={{op_name="jit(s)/jit(step)/layer/dot_general"}}\n\n  {LINE}:3 [step]\n'
    assert find_place(said, JAXPR) == OperationPlace("dot_general", "layer", f"{LINE} (step)")


def test_an_operation_is_found_by_what_the_compiler_calls_it():
    assert find_place("Unexpected operand type for FFT: c64[4,4]{1,0}", JAXPR) == OperationPlace(
        "fft", "layer", f"{LINE} (step)"
    )


def test_what_the_traced_step_does_not_know():
    said = 'INVALID: bad, metadata={op_name="jit(s)/jit(step)/block/dot"}\n\n  /elsewhere/model.py:7:3 [call]\n'
    assert find_place(said, JAXPR) == OperationPlace("dot", "block", "/elsewhere/model.py:7 (call)")


def test_an_operation_that_is_not_said():
    assert describe_refusal("INTERNAL: something is off.", "step/train", "v3-8", JAXPR) == (
        "The TPU compiler refuses 'step/train' for v3-8: something is off. It does not say of which operation. Write "
        "that part with other operations of jax.numpy, or compute it outside of the step."
    )
