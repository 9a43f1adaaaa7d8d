"""Cases of fattorib/transformer_shmap: decoders on v2 and v3 pods."""

from __future__ import annotations

from plan_cases.case import Case
from plan_cases.decoder import Model
from plan_cases.megatron import Megatron


def _case(name: str, target: str, layers: int, tera: float) -> Case:
    training = Megatron(Model(layers, 4096, 16, 16, 256, 16384, 50304), dp=4, mp=8, rows=32, parts=32)
    tokens = training.dp * training.rows * training.length
    flops = (6 * training.parameters() + 12 * layers * 4096 * training.length) * tokens
    return Case(
        name=f"{name}_{target}",
        family="shmap",
        kind="step",
        target=target,
        measured_s=flops / (tera * 1e12),
        arithmetic=f"{flops / 1e12:.0f} TFLOP, as its script counts them, at {tera} TFLOP/s of all chips",
        source="fattorib/transformer_shmap README.md, Results; benchmark_tpu.py",
        trust="B",
        build=training.build,
        stack="JAX 0.4",
        year=2023,
        differs="layers are scanned, and gradients and update are one call; the mesh of 4 x 8 is stated for v3 only",
    )


CASES = (
    _case("shmap_2.8b", "v2-32", 12, 454.0),
    _case("shmap_6.9b", "v3-32", 32, 867.0),
)
"""Training steps."""
