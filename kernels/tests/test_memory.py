"""Huge pages: asked for in large buffers of jaxlib, and nowhere else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("anytpu_kernels", reason="the kernels are not installed: scripts/venv builds them where g++ is")

PROGRAM = """
import jax.numpy as jnp
from anytpu_kernels import use_huge_pages

def is_advised(array):
    place, is_here = array.unsafe_buffer_pointer() + array.nbytes // 2, False
    for line in open("/proc/self/smaps"):
        first, *others = line.split()
        if not first.endswith(":"):
            start, end = (int(address, 16) for address in first.split("-"))
            is_here = start <= place < end
        elif is_here and first == "VmFlags:":
            return "hg" in others

def made(megabytes):
    return (jnp.zeros(megabytes * 2**18) + 1).block_until_ready()

before = made(64)
assert use_huge_pages() and use_huge_pages()
print(is_advised(before), is_advised(made(64)), is_advised(made(1)), float(made(64).sum()))
"""


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this kernel was built without huge pages"
)
def test_large_buffers_are_advised_from_then_on():
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, timeout=100)
    assert run.stdout == "False True False 16777216.0\n", run.stderr
