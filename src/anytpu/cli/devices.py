"""`anytpu devices`: the cores of this machine, and the reason why each other system was not found."""

from __future__ import annotations

import argparse

import anytpu
from anytpu.cli.command import Command, add_system_arguments


def run(arguments: argparse.Namespace) -> int:
    """Find a system, start it, and print its cores."""
    from anytpu.report.devices import device_lines, headline, numerics_lines, reason_lines
    from anytpu.report.terminal import open_console, say

    resolver = anytpu.TPUClusterResolver(arguments.tpu, cores=arguments.cores)
    topology = anytpu.initialize_tpu_system(resolver)
    devices = [device for device in anytpu.list_logical_devices() if device.device_type != "CPU"]
    console = open_console()
    say(console, headline(topology), style="bold")
    lines = ["", *device_lines(devices, topology.cores), *numerics_lines(topology.cores, console.width)]
    if resolver.reasons:
        lines += ["", "Tried before, and not found:", *reason_lines(resolver.reasons, console.width)]
    say(console, "\n".join(lines))
    return 0


COMMAND = Command(
    name="devices",
    summary="show the cores of this machine, and why other systems were not found",
    description="""\
Show the cores that a program gets on this machine. anytpu looks in this order: the
system that the environment names (TPU_NAME and similar), this machine's TPU, its
GPU, and a virtual TPU of the CPU. Each system that was not found has a reason.
""",
    add_arguments=add_system_arguments,
    run=run,
)
