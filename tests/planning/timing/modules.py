"""Small modules as the compiler writes them, for tests of the time model."""

from __future__ import annotations

from anytpu.planning.hlo import Module, parse

REGION = """%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}
"""


def module_of(entry: str, *computations: str, partitions: int = 1) -> Module:
    """Return the module whose entry computation has these lines, and others beside it."""
    lines = "\n".join(f"  {line.strip()}" for line in entry.strip().splitlines())
    others = "\n".join(computations)
    return parse(
        f"HloModule test, is_scheduled=true, num_partitions={partitions}\n\n{others}\n"
        f"ENTRY %main (p: f32[8,128]) -> f32[8,128] {{\n{lines}\n}}\n"
    )


def computation(name: str, body: str) -> str:
    """Return a computation of these lines."""
    lines = "\n".join(f"  {line.strip()}" for line in body.strip().splitlines())
    return f"%{name} (p: f32[8,128]) -> f32[8,128] {{\n{lines}\n}}\n"


def cycles(count: int, model: str = "INVALID") -> str:
    """Return the attribute that says what an instruction takes."""
    window = f'"estimated_cycles":"{count}","cost_model_type":"COST_MODEL_TYPE_{model}"'
    return f'backend_config={{"window_config":{{{window}}}}}'
