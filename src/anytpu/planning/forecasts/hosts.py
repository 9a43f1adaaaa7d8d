"""`host_load`: the input, the checkpoints and the traffic between slices of one host of a slice with several.

Idea: a host supplies the rows of its own devices. If a mesh splits the rows into fewer parts than there are hosts,
several hosts supply the same rows. Host 0 writes the whole state. The rates are the peaks of the network cards, so
times are minima.
"""

from __future__ import annotations

import dataclasses

import jax

from anytpu.planning.jobs.job import batch_parts
from anytpu.planning.records import HostLoad, Prediction
from anytpu.planning.timing.network import BETWEEN_SLICES
from anytpu.program.program import Program


def host_load(program: Program, prediction: Prediction) -> HostLoad | None:
    """Return the load of a host, or None for a slice of one host.

    Args:
        program: the program, with the shapes of its global state and batch.
        prediction: its prediction, without the load.
    """
    target, time = prediction.target, prediction.time
    if target.hosts == 1:
        return None
    # A host with several parts supplies all of them, so no more parts than hosts count.
    parts = min(batch_parts(program, target.devices), target.hosts)
    peak = target.chip.dcn_bytes_per_s and target.chip.dcn_bytes_per_s * target.chips / target.hosts
    load = HostLoad(peak)
    if program.mode == "train":
        state_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(program.state))
        load = dataclasses.replace(
            load, checkpoint_bytes=state_bytes, checkpoint_s=state_bytes / peak if peak else None
        )
    if time is None:
        return load
    if prediction.batch_size:
        batch_bytes = sum(
            leaf.size * leaf.dtype.itemsize / (1 if layout.axis is None else parts) for leaf, layout in program.leaves()
        )
        load = dataclasses.replace(
            load,
            examples_per_s=prediction.batch_size / parts / time.step_s,
            input_bytes_per_s=batch_bytes / time.step_s,
        )
    if target.slices == 1 or prediction.is_floor:
        return load
    sent_bytes = sum(op.bytes for op in time.ops if op.collective == BETWEEN_SLICES)
    return dataclasses.replace(load, slices_bytes=sent_bytes * target.devices / target.hosts)
