"""A program that needs more memory than the machine has: told in words, in a process that may have 4 GiB."""

from __future__ import annotations

import subprocess
import sys

import pytest

from anytpu.chip.assembly import assemble
from anytpu.chip.machine import check_room
from anytpu.errors import CapacityError
from refusals import refusal

SCRIPT = """\
import dataclasses
import resource
from anytpu.chip import machine
from anytpu.chip.assembly import assemble
from anytpu.errors import CapacityError

resource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32))
image = dataclasses.replace(assemble('.batch 4096\\nhalt', 'wide'), host_bytes=2**40)
try:
    machine.run(image, {})
except CapacityError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps to a limit of addresses")
def test_more_than_the_machine_has():
    environment = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, env=environment)
    assert ran.stdout == (
        "This machine lacks the memory to run 'wide': 1,099,511,627,776 bytes for the host's buffer and the inputs, "
        "plus the memories of the chip. Compile it for smaller batches than 4,096.\n"
    )


def test_the_inputs_of_a_batch_count_too():
    image = assemble(".batch 4000000000\nhalt", "wide")
    check_room(image)
    assert refusal(CapacityError, check_room, image, 2**20) == (
        f"This machine lacks the memory to run 'wide': {4 * 10**9 * 2**20:,} bytes for the host's buffer and the "
        "inputs, plus the memories of the chip. Compile it for smaller batches than 4,000,000,000."
    )
