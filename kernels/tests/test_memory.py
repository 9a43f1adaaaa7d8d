"""Huge pages and reuse: for large buffers of jaxlib, and nowhere else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("anytpu_kernels", reason="the kernels are not installed: scripts/venv builds them where g++ is")

if not Path("/sys/kernel/mm/transparent_hugepage").exists():
    pytest.skip("this kernel was built without huge pages", allow_module_level=True)

PROGRAM = """
import jax.numpy as jnp
from anytpu_kernels import use_huge_pages

def place_of(array):
    return array.unsafe_buffer_pointer() + array.nbytes // 2

def is_advised(place):
    is_here = False
    for line in open("/proc/self/smaps"):
        first, *others = line.split()
        if not first.endswith(":"):
            start, end = (int(address, 16) for address in first.split("-"))
            is_here = start <= place < end
        elif is_here and first == "VmFlags:":
            return "hg" in others

def made(megabytes):
    # One buffer: a temporary one might be freed, and kept, only after the hooks are in place.
    return jnp.ones(megabytes * 2**18).block_until_ready()

def advised():
    before = made(64)
    assert use_huge_pages() and use_huge_pages()
    print(*(is_advised(place_of(array)) for array in (before, made(64), made(1))), float(made(64).sum()))

def reused():
    use_huge_pages()
    first, second = jnp.zeros(2**24), jnp.ones(2**24)
    places = place_of(first), place_of(second)
    del first  # The second is in use and has its size.
    print(is_advised(places[0]), end=" ")
    del second
    print(is_advised(places[1]), end=" ")
    third = jnp.zeros(2**24 - 4)
    print(abs(place_of(third) - places[1]), float(third.sum()))
"""


def test_large_buffers_are_advised_from_then_on():
    assert output_of("advised()") == "False True False 16777216.0\n"


def test_one_freed_buffer_is_kept_for_requests_of_its_size():
    assert output_of("reused()") == "None True 8 0.0\n"


def output_of(call):
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", PROGRAM + call]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100)
    assert run.returncode == 0, run.stderr
    return run.stdout
