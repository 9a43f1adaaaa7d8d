"""`EngineJob`: one program for the engine of other machines, and `job_file`, which writes it in the engine's own form.

Idea: an engine is data. Its table in `engines.toml` names a commented template and the tool that submits it. A
placeholder, `<hosts>` or `<words:json>`, is a value of the job, perhaps quoted. A block is a comment and the lines
below it; one with a value that the job does not have is left out. So the template also says which options its engine
takes, and its comments are the explanation.

Rule: the engine starts one process on each host, and the processes find each other (`system/launchers.py`).
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import shlex
import sys
import textwrap
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from anytpu._restarts import LOST_STATUS, STOPPED_STATUS
from anytpu.errors import SettingError
from anytpu.system.topologies import Topology

NOTICE_S = 120
"""Seconds from SIGTERM to the end of the job, in which the program saves its run."""
WAIT_S = 300
"""Seconds from the first end of a process to that of the job. JAX waits as long for the others when a process ends."""

_FOLDER = Path(__file__).parent
_TABLES = tomllib.loads((_FOLDER / "engines.toml").read_text(encoding="utf-8"))
_CHIPS: dict[str, dict[str, str]] = _TABLES.pop("chips")
ENGINES = tuple(_TABLES)
"""The engines of other machines."""

_PLACEHOLDER = re.compile(r"<([a-z_]+)((?::[a-z]+)*)>")
_BLOCK = re.compile(r"(?P<comment>(?:^ *# .*\n)*)(?P<lines>(?:(?! *# ).+\n)+)\n?", re.MULTILINE)
_QUOTES: dict[str, Callable[[Any], Any]] = {
    "json": functools.partial(json.dumps, ensure_ascii=False),
    "python": repr,
    # Kubernetes replaces $(NAME) and $$ in arguments and in variables.
    "kube": lambda value: value.replace("$", "$$") if isinstance(value, str) else [_QUOTES["kube"](x) for x in value],
    "sh": lambda value: shlex.quote(value) if isinstance(value, str) else shlex.join(value),
}
_OF_OPTION = {
    "-n": "hosts",
    "--tpu": "topology",
    "--spot": "spot",
    "--checkpoint-dir": "checkpoint_dir",
    "--max-preemptions": "restarts",
    "--image": "image",
    "--on": "place",
    "--zone": "zone",
}
"""The value of a job that each option sets."""
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_PLACES = {
    "slurm": (re.compile(r"[\w.-]+(,[\w.-]+)*", re.ASCII), "letters, digits, _, - and . (several with commas)"),
    "jobset": (re.compile(r"[a-z0-9]([-.a-z0-9]{0,61}[a-z0-9])?"), "lower-case letters, digits, dashes and dots"),
}
"""The rule of a name after --on, where it is not that of a TPU VM and of a cluster."""
_ZONE = re.compile(r"[a-z]+-[a-z]+[0-9]+-[a-z]")
_UNPRINTABLE = re.compile(r"[\0-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")
"""Characters that end a line or a text for one of the engines, and those that YAML or UTF-8 does not have."""
_MAX_NAME = 39  # xpk's limit; that of Kubernetes, 63, includes the suffixes of the pods.


@dataclasses.dataclass(frozen=True)
class Engine:
    """A table of `engines.toml`, which explains the fields; `key` is the table's name."""

    key: str
    name: str
    template: str
    tool: str
    install: str
    submit: str
    check: str
    needs: Sequence[str]
    script: Sequence[str] = ()
    shares_disk: bool = False
    max_preemptions: int | None = None

    @functools.cached_property
    def text(self) -> str:
        """The template."""
        return (_FOLDER / "engines" / self.template).read_text(encoding="utf-8")

    @functools.cached_property
    def placeholders(self) -> frozenset[str]:
        """The values of a job that the template has."""
        return frozenset(name for name, _ in _PLACEHOLDER.findall(self.text))

    @property
    def options(self) -> list[str]:
        """The options that the engine takes."""
        return [
            option
            for option, name in _OF_OPTION.items()
            if self.placeholders & {name, f"{name}_option", "slice" if name == "topology" else name}
        ]


@dataclasses.dataclass(frozen=True)
class EngineJob:
    """A program, and how an engine runs it.

    Attributes:
        words: the script and its arguments, or -m, a module and its arguments.
        topology: the slice of TPUs, or None.
        hosts: number of hosts; None: that of the slice.
        spot: whether the machines may be taken back at any time.
        checkpoint_dir: the folder or the URL that the program finds in CHECKPOINT_DIR.
        restarts: number of restarts after pre-emptions; None: the engine's default.
        image: the container image.
        place: the TPU VM, the cluster, the queue or the partition.
        zone: the zone.
    """

    words: Sequence[str]
    topology: Topology | None = None
    hosts: int | None = None
    spot: bool | None = None
    checkpoint_dir: str | None = None
    restarts: int | None = None
    image: str | None = None
    place: str | None = None
    zone: str | None = None

    @property
    def name(self) -> str:
        """The name of the script or the module, in the form that all engines take."""
        name = self.words[1] if self.words[0] == "-m" else Path(self.words[0]).stem
        name = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_MAX_NAME].strip("-")
        return name if _NAME.fullmatch(name) else f"run-{name}"[:_MAX_NAME].strip("-")

    @property
    def source(self) -> str:
        """The file of this folder, or the folder in it, that has the script or the module."""
        if self.words[0] != "-m":
            return Path(self.words[0]).parts[0]
        first, *others = self.words[1].split(".")
        return first if others or Path(first, "__main__.py").is_file() else f"{first}.py"


def engine_named(key: str) -> Engine:
    """Return the engine with this name, one of `ENGINES`."""
    return Engine(key=key, **_TABLES[key])


def job_file(engine: Engine, job: EngineJob, explain: bool = False) -> str:
    """Return the file or the commands that run a job with an engine.

    Args:
        engine: the engine.
        job: the job.
        explain: whether to return what each line does instead.

    Raises:
        SettingError: the engine does not take an option of the job, needs another, or has no such slices.

    Example:
        >>> text = job_file(engine_named("slurm"), EngineJob(["my train.py"], hosts=4))
        >>> "#SBATCH --nodes=4" in text, " 'my train.py' &" in text
        (True, True)
    """
    _check(engine, job)
    values = _values(engine, job)
    blocks = [
        (match["comment"], match[0])
        for match in _BLOCK.finditer(engine.text)
        if all(values[name] is not None for name, _ in _PLACEHOLDER.findall(match[0]))
    ]
    fill = functools.partial(_PLACEHOLDER.sub, lambda found: _quoted(values[found[1]], found[2]))
    if not explain:
        return "".join(fill(text) for _, text in blocks)
    return "\n".join(_explained(fill(comment), fill(text[len(comment) :])) for comment, text in blocks)


def _explained(comment: str, lines: str) -> str:
    meaning = " ".join(line.strip().removeprefix("# ") for line in comment.splitlines())
    meaning = f"{textwrap.fill(meaning, 100)}\n" if meaning else ""
    return f"{meaning}{textwrap.indent(textwrap.dedent(lines.rstrip()), '    ')}\n"


def _quoted(value: Any, quotes: str) -> str:
    for quote in quotes.split(":")[1:]:
        value = _QUOTES[quote](value)
    return str(value)


def _values(engine: Engine, job: EngineJob) -> Mapping[str, Any]:
    """Return the value of each placeholder; None: the job does not have it."""
    return {
        **vars(job),
        "name": job.name,
        "source": job.source,
        "python": sys.executable,
        "spot": "true" if job.spot else None,
        "spot_option": "--spot" if job.spot else None,
        "restarts": engine.max_preemptions if job.restarts is None else job.restarts,
        "stopped_status": STOPPED_STATUS,
        "lost_status": LOST_STATUS,
        "notice_s": NOTICE_S,
        "wait_s": WAIT_S,
    } | _values_of_slice(job.topology)


def _values_of_slice(topology: Topology | None) -> dict[str, Any]:
    if topology is None or topology.chip is None:
        return dict.fromkeys(("slice", "chips", "topology", "type", "gke", "runtime", "ray"))
    names = _CHIPS[topology.chip.name]
    sides = topology.chip_bounds[: 2 if topology.chip.torus_rank == 2 else 3]
    return {
        "slice": topology.name,
        "hosts": topology.num_tasks,
        "chips": topology.num_tpus_per_task // topology.cores_per_chip,
        "topology": "x".join(map(str, sides)),
        "type": f"{names['type']}-{topology.name.partition('-')[2]}",
        **{name: names.get(name) for name in ("gke", "runtime", "ray")},
    }


def _check(engine: Engine, job: EngineJob) -> None:
    """Refuse options that the engine does not take, and values that cannot be meant."""
    to = f"--to {engine.key}"
    for part, texts in {
        "the program": job.words,
        "--checkpoint-dir": [job.checkpoint_dir],
        "--image": [job.image],
    }.items():
        bad = next((text for text in texts if text is not None and _UNPRINTABLE.search(text)), None)
        if bad is not None:
            raise SettingError(
                f"{bad!a} of {part} has a control character, such as the end of a line, which the file of "
                f"{engine.name} cannot hold: leave it out, or let the program read it from a file"
            )
    for option, name in _OF_OPTION.items():
        value = getattr(job, name)
        if value is not None and option not in engine.options:
            raise SettingError(
                f"{option} does not go with {to}: leave it out. {engine.name} takes {', '.join(engine.options)}"
            )
        if value == "" and option in ("--image", "--checkpoint-dir"):
            raise SettingError(f"{option} is empty: give it a value, or leave it out")
        if value is None and option in engine.needs:
            raise SettingError(f"{to} needs {option}: see `anytpu launch --help`")
    if job.topology is not None:
        _check_slice(engine, job, job.topology)
    elif job.hosts is None and "-n" in engine.options:
        slices = ", or --tpu, a slice" if "--tpu" in engine.options else ""
        raise SettingError(f"{to} needs -n, the number of hosts{slices}")
    if job.spot and job.topology is None:
        raise SettingError("--spot is for a slice that the file asks for: name it with --tpu, or leave --spot out")
    if job.spot and job.checkpoint_dir is None:
        raise SettingError(
            "--spot needs --checkpoint-dir: a spot machine is taken back at any time, with its disk, and the run would "
            "start from its first step. Add --checkpoint-dir gs://BUCKET/FOLDER, and in the script "
            'fit(checkpoint_dir=os.environ["CHECKPOINT_DIR"])'
        )
    if job.zone is not None and not _ZONE.fullmatch(job.zone):
        raise SettingError(f"a zone looks like us-west4-a, not {job.zone!r}. Type: gcloud compute zones list")
    rule, has = _PLACES.get(engine.key, (_NAME, "lower-case letters, digits and dashes, and starts with a letter"))
    if job.place is not None and not rule.fullmatch(job.place):
        raise SettingError(f"the name after --on has {has}, not {job.place!r}")


def _check_slice(engine: Engine, job: EngineJob, topology: Topology) -> None:
    hosts = topology.num_tasks
    if job.hosts is not None and job.hosts != hosts:
        raise SettingError(
            f"{topology.name} has {hosts} host{'s' * (hosts > 1)}, each with one process, not {job.hosts}: leave -n "
            "out, or choose another slice with --tpu"
        )
    chips = [name for name, names in _CHIPS.items() if engine.placeholders & {"gke", "runtime", "ray"} <= names.keys()]
    if topology.chip is None or topology.chip.name not in chips:
        raise SettingError(f"{engine.name} has no {topology.name}: it has slices of {', '.join(chips)}")
