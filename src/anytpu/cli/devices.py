"""`anytpu devices`: the cores that are found here, and why each other place has none."""

from __future__ import annotations

import argparse

from anytpu.cli.command import Command, add_system_arguments


def run(arguments: argparse.Namespace) -> int:
    """Find a system, start it, and print its cores."""
    import anytpu
    from anytpu.report.devices import device_lines, headline, numerics_lines, reason_lines
    from anytpu.report.terminal import open_console, say

    resolver = anytpu.TPUClusterResolver(arguments.tpu, cores=arguments.cores)
    topology = anytpu.initialize_tpu_system(resolver)
    devices = [one for one in anytpu.list_logical_devices() if one.device_type != "CPU"]
    console = open_console()
    say(console, headline(topology), style="bold")
    lines = ["", *device_lines(devices, topology.cores), *numerics_lines(topology.cores, console.width)]
    if resolver.reasons:
        lines += ["", "Looked for before, and not found:", *reason_lines(resolver.reasons, console.width)]
    say(console, "\n".join(lines))
    return 0


COMMAND = Command(
    name="devices",
    summary="show the cores found on this machine, and why there are no others",
    description="""\
Show the cores that a program gets here, in the order in which anytpu looks: what
the environment names (TPU_NAME and its like), this machine's TPU, its GPU, and a
virtual TPU of the CPU. For each place that had none, say why.
""",
    add_arguments=add_system_arguments,
    run=run,
)
