"""`TPUClusterResolver`: finds a TPU or a GPU, or makes a virtual TPU.

Idea: `TPUClusterResolver(tpu="")` finds the best available system on any machine; a program that needs a certain system
names it. The search runs a list of probes. The first success wins, and the reasons of the failed probes are kept.

Rule: a wrong value in the environment is kept as a reason; a wrong argument of the caller is an error.
"""

from __future__ import annotations

import dataclasses
import functools
import numbers
from collections.abc import Iterator
from typing import Any, get_args

from anytpu import _env
from anytpu._calls import explain_methods
from anytpu.errors import HostsError, SettingError, TPUNotFoundError, UnknownTPUError
from anytpu.system.cores import Address, Numerics
from anytpu.system.joining import join_found_job
from anytpu.system.launchers import find_job
from anytpu.system.machine import topology_at
from anytpu.system.probes import (
    GETTING_A_TPU,
    Probe,
    Reason,
    probe_gpu,
    probe_hosts,
    probe_tpu,
    probe_variable,
    slice_address,
    virtual_address,
)
from anytpu.system.topologies import Topology, did_you_mean, known_slices
from anytpu.system.workers import parse_worker

MAX_VIRTUAL_CORES = 4096
"""Maximum number of cores in the row of a virtual TPU."""


@explain_methods
class TPUClusterResolver:
    """A TPU system, found by the constructor.

    Attributes:
        address: address of the system.
        reasons: the reasons of the probes that failed before it, in order; `print(*resolver.reasons, sep="\\n")`.

    Example:
        >>> TPUClusterResolver("virtual", cores=3).num_accelerators()
        {'TPU': 3}
    """

    def __init__(self, tpu: str | None = "", cores: int | None = None, *, numerics: Numerics = "machine") -> None:
        """Find a TPU system.

        Args:
            tpu: "" or None searches, in this order: the environment variables TPU_NAME, COLAB_TPU_ADDR and
                KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS; this machine's TPU; its GPU. Without any of them it makes a virtual TPU
                of 8 cores. "local" is only this machine's TPU or GPU. In a job of several processes both are the
                devices of all hosts: where `anytpu launch`, Slurm, Open MPI or a TPU pod started this process, or after
                `join_hosts`. "virtual" is a virtual TPU; "v2-8", "v3-32", "v5e-16" are virtual TPUs of that shape.
                "grpc://host:port" is the system of a worker on another machine, as `anytpu worker` prints it. "twin" is
                the tests' in-memory twin.
            cores: number of cores to use; None means all existing ones, or those of the shape.
            numerics: "machine" computes float32 products as this machine's compiler does; "tpu" rounds their operands
                to bfloat16, as a TPU's matrix units do.

        Raises:
            HostsError: the hosts of a job cannot join, or `tpu` names a system for one process in one of several.
            SettingError: `cores` is not a positive integer, or differs from the number of the shape; `numerics` is
                neither of the two; `tpu` is "pathways://..." or "proxy://...".
            TPUNotFoundError: "local", and this machine has no usable TPU or GPU. A `ValueError`.
            UnknownTPUError: `tpu` is not the name of an existing system.
        """
        name = _checked_name(tpu)
        _check_numerics(numerics)
        count = _checked_cores(cores, may_be_virtual=name.lower() in ("", "virtual", "twin"))
        self.reasons: tuple[Reason, ...] = ()
        # JAX starts its devices in the probes, and must know the other hosts before.
        hosts = [probe_hosts] if name.lower() in ("", "local") and join_found_job() else []
        if name == "":
            self.address, self.reasons = _first_found(
                hosts or [*_variable_probes(), probe_tpu, probe_gpu, virtual_address], count
            )
        elif name.lower() == "local":
            self.address, self.reasons = _first_found(hosts or [probe_tpu, probe_gpu], count)
        else:
            self.address = _named_address(name, count)
            _check_is_alone(name)
        self.address = dataclasses.replace(self.address, numerics=numerics)

    @classmethod
    def from_address(cls, address: Address) -> TPUClusterResolver:
        """Return a resolver for a known address."""
        resolver = cls.__new__(cls)
        resolver.address, resolver.reasons = address, ()
        return resolver

    @functools.cached_property
    def topology(self) -> Topology:
        """The cores and their coordinates. For a local system this starts JAX."""
        return topology_at(self.address)

    @property
    def is_virtual(self) -> bool:
        """True when the cores are simulated on this machine's CPU."""
        return self.address.kind in ("virtual", "twin")

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """Return the session target: "grpc://host:port" of a worker; "" for a system in this process.

        The arguments are those of TensorFlow's resolvers; they are ignored.
        """
        return f"grpc://{self.address.worker.target}" if self.address.worker else ""

    def get_master(self) -> str:
        """Return the same as `master()`."""
        return self.master()

    def cluster_spec(self) -> dict[str, list[str]]:
        """Return the addresses of each job: `{"worker": [address]}`, or `{}` for a system in this process."""
        return {"worker": [self.address.worker.target]} if self.address.worker else {}

    def get_job_name(self) -> str:
        """Return "worker", the job whose tasks hold the cores."""
        return "worker"

    def num_accelerators(self) -> dict[str, int]:
        """Return the number of cores by type: `{"TPU": 8}`, or `{"GPU": 1}` if GPUs replace a TPU."""
        cores = self.topology.cores
        return {"GPU" if cores[0].platform == "gpu" else "TPU": len(cores)}

    def __repr__(self) -> str:
        address = self.address
        if address.worker:
            return f"TPUClusterResolver({self.master()})"
        count = "" if address.cores is None else f"{address.cores} {'virtual ' * self.is_virtual}cores"
        shape = f", shape {address.shape}" if address.shape else ""
        numerics = "" if address.numerics == "machine" else f", numerics {address.numerics}"
        return f"TPUClusterResolver({address.kind}: {count}{shape}{numerics})"


def _checked_cores(cores: Any, may_be_virtual: bool) -> int | None:
    if cores is None:
        return None
    if isinstance(cores, bool) or not isinstance(cores, numbers.Integral) or int(cores) < 1:
        raise SettingError(f"cores must be a positive integer, or None for all that there are, not {cores!r}")
    count = int(cores)
    if may_be_virtual and count > MAX_VIRTUAL_CORES:
        raise SettingError(f"cores must be at most {MAX_VIRTUAL_CORES} for a virtual TPU, not {count}")
    return count


def _check_is_alone(name: str) -> None:
    """Reject a system of one process in a process that is one of several.

    Raises:
        HostsError: each process would train a model of its own.
    """
    job = find_job()
    if job is not None:
        raise HostsError(
            f"this process is one of {job.processes} ({job.source}), and {name.partition('?')[0]!r} is a system for "
            "one process: each would train a model of its own. Write tpu.connect(), which uses the devices of all"
        )


def _check_numerics(numerics: Any) -> None:
    if numerics not in get_args(Numerics):
        raise SettingError(
            'numerics must be "machine", for float32 products as this machine computes them, or "tpu", for operands '
            f"rounded to bfloat16 as on a TPU, not {numerics!r}"
        )


def _checked_name(tpu: Any) -> str:
    if tpu is None:
        return ""
    if not isinstance(tpu, str):
        raise SettingError(f'tpu must be a string such as "", "local", "virtual" or "v2-8", not {tpu!r}')
    return tpu.strip()


def _variable_probes() -> Iterator[Probe]:
    return (functools.partial(probe_variable, name, value) for name, value in _env.tpu_settings())


def _first_found(probes: list[Probe], cores: int | None) -> tuple[Address, tuple[Reason, ...]]:
    reasons: list[Reason] = []
    for probe in probes:
        result = probe(cores)
        if isinstance(result, Address):
            return result, tuple(reasons)
        reasons.append(result)
    listed = "\n".join(f"  {reason}" for reason in reasons)
    raise TPUNotFoundError(
        f"no accelerator was found on this machine.\n{listed}\n"
        'For a virtual TPU write "virtual" in the place of "local": tpu.connect("virtual"), or --tpu virtual. '
        f"{GETTING_A_TPU}"
    )


def _named_address(name: str, cores: int | None) -> Address:
    """Return the address of the system with an explicit name."""
    if name.lower() == "virtual":
        return virtual_address(cores)
    if name.lower() == "twin":
        return Address("twin", cores or 8)
    if worker := parse_worker(name):
        return Address("grpc", cores, worker=worker)
    name = name.partition("?")[0]  # A token may follow, and belongs in no message.
    if "-" not in name or not name.rpartition("-")[2].isdigit():
        raise UnknownTPUError(
            f'{name!r} is not a TPU that anytpu knows. {did_you_mean(name)}Known are: "" to look for one, "local", '
            f'"virtual", the slices {known_slices()}, and the address of a worker, "grpc://host:port".'
        )
    address = slice_address(name)
    if cores not in (None, address.cores):
        raise SettingError(
            f"{name!r} has {address.cores} cores, so cores must be {address.cores} or left out, not {cores}; "
            f'for {cores} virtual cores write TPUClusterResolver("virtual", cores={cores})'
        )
    return address
