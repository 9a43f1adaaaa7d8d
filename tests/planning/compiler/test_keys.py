"""That an answer is found again only by the same question: each part of the question changes the key."""

from __future__ import annotations

from typing import Any

import jax
import pytest

from anytpu import _env
from anytpu.planning.compiler.compilation import key_of
from anytpu.planning.compiler.request import request_of
from anytpu.planning.target import target_named
from compiler_samples import SQUARE, program_of, train

VERSION = "0.0.42.1"


def key(target: str = "v3-8", options: dict[str, str] | None = None, libtpu: str = VERSION, batch: Any = SQUARE) -> str:
    request = request_of(program_of(train, batch=batch), target_named(target), options or {})
    return key_of(request, libtpu)


def test_the_same_question_has_the_same_key():
    assert key() == key()


def test_every_part_of_the_question_counts():
    keys = [
        key(),
        key("v2-8"),
        key("v3-32"),
        key(options={"xla_tpu_scoped_vmem_limit_kib": "65536"}),
        key(options={"xla_tpu_scoped_vmem_limit_kib": "98304"}),
        key(libtpu="0.0.51"),
        key(batch=jax.ShapeDtypeStruct((128, 64), "float32")),
    ]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LIBTPU_INIT_ARGS", "--xla_tpu_enable_latency_hiding_scheduler=false"),
        ("LIBTPU_INIT_ARGS", "--xla_tpu_enable_latency_hiding_scheduler=true"),
        ("XLA_IR_DEBUG", "1"),
        ("MEGASCALE_NUM_SLICES", "2"),
    ],
)
def test_what_the_environment_tells_the_compiler_counts(name: str, value: str, monkeypatch: pytest.MonkeyPatch):
    before = key()
    monkeypatch.setenv(name, value)
    assert _env.compiler_environment()[name] == value
    assert key() != before
    monkeypatch.delenv(name)
    assert key() == before


def test_what_does_not_reach_the_compiler_does_not_count(monkeypatch: pytest.MonkeyPatch):
    """XLA_FLAGS are those of this process: the compiler's own are LIBTPU_INIT_ARGS, and options."""
    before = key()
    for name, value in (("XLA_FLAGS", "--xla_force_host_platform_device_count=8"), ("JAX_LOG_COMPILES", "1")):
        monkeypatch.setenv(name, value)
        assert name not in _env.compiler_environment()
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    assert key() == before


def test_the_version_of_jax_counts(monkeypatch: pytest.MonkeyPatch):
    before = key()
    monkeypatch.setattr(jax, "__version__", "0.99.0")
    assert key() != before
