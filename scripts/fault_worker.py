"""Try the faults of networks and programs on a worker: real processes, and sockets of the loopback address.

    python scripts/fault_worker.py                               # every case: half an hour
    python scripts/fault_worker.py --only half_open,small_calls --scale 0.1
    python scripts/fault_worker.py --only soak --minutes 60
    python scripts/fault_worker.py --record benchmarks/results/fault_worker.json     # replaces the cases that ran

Each case starts a worker of its own. It makes the fault, uses the worker meanwhile or after it, and compares the memory
and the open files of the front before and after. A fault of ours is exit status 1: a session that does not work, a
result that differs, an error of another class, or growth.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("KERAS_BACKEND", "jax")

import anytpu as tpu  # isort: skip
import numpy as np

from anytpu.errors import AnyTPUError, WorkerError, WorkerLostError
from anytpu.system import shutdown_tpu_system
from anytpu.worker.session import Session
from anytpu.worker.wire import SERVICE
from worker.relay import Relay
from worker.strangers import DATA, call_of, encrypted, frame, is_over
from worker.test_faults import address_of, compiled, program_of, put, run, works
from worker.worker_process import WorkerProcess

ROOT = Path(__file__).resolve().parents[1]
CORES = ("--tpu", "virtual", "--cores", "2", "--memory-limit", "1")
MAX_GROWTH_MIB = 64
MAX_MORE_FILES = 8

Record = dict[str, Any]


def main() -> int:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--only", default=",".join(CASES), help=f"cases: {', '.join(CASES)}")
    arguments.add_argument(
        "--scale", type=float, default=1.0, help="share of the number of connections, kills and calls"
    )
    arguments.add_argument("--minutes", type=float, default=10.0, help="duration of the soak (10)")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--record", type=Path, help="a JSON file for the results; other cases in it stay")
    chosen = arguments.parse_args()
    # A shell lets its background jobs ignore it, and their workers would, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    has_fault = False
    for name in chosen.only.split(","):
        record = run_case(name, chosen)
        has_fault |= bool(record["faults"])
        print(name, json.dumps(record), flush=True)
        if chosen.record:
            known = json.loads(chosen.record.read_text()) if chosen.record.exists() else {}
            chosen.record.write_text(json.dumps({**known, name: record}, indent=1, sort_keys=True) + "\n")
    return 1 if has_fault else 0


def run_case(name: str, chosen: argparse.Namespace) -> Record:
    """Run one case, and return its record; an exception is one of its faults."""
    began_s, record = time.monotonic(), {"faults": []}
    with tempfile.TemporaryDirectory() as folder:
        try:
            CASES[name](Path(folder), chosen, record)
        except Exception as error:
            record["faults"].append(f"{type(error).__name__}: {error}")
        finally:
            shutdown_tpu_system()
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    return {**record, "seed": chosen.seed, "duration_s": round(time.monotonic() - began_s), "machine": machine}


@contextlib.contextmanager
def started(folder: Path, *words: str) -> Iterator[WorkerProcess]:
    """Start a worker, and stop it at the end."""
    folder.mkdir(exist_ok=True)
    worker = WorkerProcess(folder, *CORES, *words)
    try:
        yield worker
    finally:
        worker.stop()


def resources(pid: int) -> Record:
    """Return the resident memory, open files and threads of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return {"mib": int(fields["VmRSS"].split()[0]) // 1024, "files": files, "threads": int(fields["Threads"])}


def check_growth(record: Record, name: str, before: Record, after: Record, max_mib: int = MAX_GROWTH_MIB) -> None:
    """Record two states of a process; growth is a fault."""
    record[name] = {"before": before, "after": after}
    if after["mib"] - before["mib"] > max_mib:
        record["faults"].append(f"the {name} grew by {after['mib'] - before['mib']} MiB")
    if after["files"] - before["files"] > MAX_MORE_FILES:
        record["faults"].append(f"the {name} has {after['files'] - before['files']} more open files")


def settled(worker: WorkerProcess, before: Record) -> Record:
    """Return the state of the front, when the connections that just ended are closed."""
    until(lambda: resources(worker.process.pid)["files"] <= before["files"] + MAX_MORE_FILES, 90)
    return resources(worker.process.pid)


def answered(worker: WorkerProcess) -> float:
    """Ask for the status, and return the seconds until the answer."""
    began_s = time.monotonic()
    status(worker)
    return round(time.monotonic() - began_s, 2)


def work_once(worker: WorkerProcess) -> float:
    """Compute in a new session, and return the seconds from the connection to the result."""
    began_s = time.monotonic()
    session = Session(address_of(worker))
    try:
        works(session)
    finally:
        session.close()
    return round(time.monotonic() - began_s, 2)


def until(is_reached: Callable[[], bool], limit_s: float) -> float:
    """Wait for a state, and return the seconds that it took; infinity if it is not reached."""
    began_s = time.monotonic()
    while time.monotonic() - began_s < limit_s:
        if is_reached():
            return round(time.monotonic() - began_s, 2)
        time.sleep(0.05)
    return float("inf")


def port_of(worker: WorkerProcess) -> int:
    return int(worker.target.rpartition(":")[2])


# Strangers


def half_open(folder: Path, chosen: argparse.Namespace, record: Record) -> None:
    """10,000 connections that send nothing, twice: the second time needs no more memory."""
    record["connections"] = count = int(10_000 * chosen.scale)
    with started(folder) as worker:
        work_once(worker)
        start, waves = resources(worker.process.pid), []
        for _ in range(2):
            opened = [socket.create_connection(("127.0.0.1", port_of(worker)), 60) for _ in range(count)]
            wave = {"session_s": work_once(worker), "during": resources(worker.process.pid)}
            began_s = time.monotonic()
            after = settled(worker, start)
            waves.append({**wave, "closed_by_the_worker_s": round(time.monotonic() - began_s, 1), "after": after})
            for connection in opened:
                connection.close()
        work_once(worker)
    record["waves"] = waves
    check_growth(record, "front, second wave", {**waves[0]["after"], "files": start["files"]}, waves[1]["after"])


def half_calls(folder: Path, chosen: argparse.Namespace, record: Record) -> None:
    """Calls of strangers who never send a message, and never read: more of them than the server has threads."""
    record["calls"] = 16 * (connections := max(1, int(24 * chosen.scale)))
    paths = ("grpc.health.v1.Health/Check", f"{SERVICE}/Describe", f"{SERVICE}/Control", f"{SERVICE}/Status")
    with started(folder) as worker:
        work_once(worker)
        before = resources(worker.process.pid)
        opened = [encrypted(port_of(worker)) for _ in range(connections)]
        for connection in opened:
            for index in range(16):
                connection.sendall(call_of(paths[index % len(paths)], 2 * index + 1))
        time.sleep(1)
        record["answer_s"] = answered(worker)
        if record["answer_s"] > 30:
            record["faults"].append("strangers hold the threads of the server")
        record["session_s"] = work_once(worker)
        for connection in opened:
            connection.close()
        check_growth(record, "front", before, settled(worker, before))


def noise(folder: Path, chosen: argparse.Namespace, record: Record) -> None:
    """Random bytes, in the place of a TLS handshake and of HTTP/2 frames."""
    record["connections"] = count = int(1000 * chosen.scale)
    draw = random.Random(chosen.seed)
    with started(folder) as worker:
        work_once(worker)
        before = resources(worker.process.pid)
        for index in range(count):
            with contextlib.suppress(OSError):
                port = port_of(worker)
                plain = None if index % 2 else socket.create_connection(("127.0.0.1", port), 60)
                with plain or encrypted(port) as connection:
                    connection.sendall(draw.randbytes(draw.randrange(1, 3000)))
        record["session_s"] = work_once(worker)
        check_growth(record, "front", before, settled(worker, before))


def slow_writer(folder: Path, chosen: argparse.Namespace, record: Record) -> None:
    """Clients that send one byte a second: 50 strangers in their handshake, and one with a token in its request."""
    record["strangers"] = count = max(1, int(50 * chosen.scale))
    hello = bytes.fromhex("16030100f0010000ec0303") + bytes(240)
    with started(folder, "--max-sessions", "2") as worker:
        work_once(worker)
        before = resources(worker.process.pid)
        strangers = [socket.create_connection(("127.0.0.1", port_of(worker)), 60) for _ in range(count)]
        member = encrypted(port_of(worker))
        member.sendall(call_of(f"{SERVICE}/Control", 1, address_of(worker).token))
        request = frame(DATA, 0, 1, bytes(50))
        began_s, sessions_s = time.monotonic(), []
        for second in range(30):
            for stranger in strangers:
                with contextlib.suppress(OSError):  # The worker has closed it.
                    stranger.sendall(hello[second : second + 1])
            member.sendall(request[second : second + 1])
            if second % 10 == 5:
                sessions_s.append(work_once(worker))
            time.sleep(max(0.0, began_s + second + 1 - time.monotonic()))
        record["sessions_s"] = sessions_s
        is_closed = [is_over(stranger) for stranger in strangers]
        record["closed_by_the_worker"] = sum(is_closed)
        if not all(is_closed):
            record["faults"].append("a handshake of one byte a second went on for 30 s")
        for connection in (*strangers, member):
            connection.close()
        check_growth(record, "front", before, settled(worker, before))


def never_reads(folder: Path, chosen: argparse.Namespace, record: Record) -> None:
    """A client that asks for 2 GiB of arrays, and is stopped before it reads them."""
    with started(folder, "--max-sessions", "2", "--deadline", "20", "--lease", "10") as worker:
        work_once(worker)
        before = resources(worker.process.pid)
        client = client_of(worker, "greedy")
        client.send_signal(signal.SIGSTOP)
        record["sessions_s"] = [work_once(worker) for _ in range(3)]
        check_growth(record, "front, meanwhile", before, {**resources(worker.process.pid), "files": before["files"]})
        record["ended_s"] = until(lambda: "session of" in ended_part(worker), 90)
        if record["ended_s"] == float("inf"):
            record["faults"].append("the session of a client that never reads went on")
        client.kill()
        client.communicate()
        work_once(worker)
        check_growth(record, "front", before, settled(worker, before))


# Deaths


def kill_client(folder: Path, chosen: argparse.Namespace, record: Record) -> None:
    """kill -9 of the client at random moments: its memory is free within the lease."""
    record["kills"], draw = max(1, int(20 * chosen.scale)), random.Random(chosen.seed)
    with started(folder, "--lease", "2", "--max-sessions", "2") as worker:
        work_once(worker)
        freed_s, before = [], None
        for _ in range(record["kills"]):
            client = client_of(worker, "busy")
            child_count = len(worker.children())
            time.sleep(draw.uniform(0, 2))
            client.kill()
            client.communicate()
            freed_s.append(until(lambda: not status(worker).sessions, 30))
            before = before or resources(worker.process.pid)
            work_once(worker)
        record["freed_s"] = {"median": sorted(freed_s)[len(freed_s) // 2], "max": max(freed_s)}
        if max(freed_s) > 15:
            record["faults"].append("the session of a dead client was not ended within its lease")
        until(lambda: len(worker.children()) <= child_count, 60)
        check_growth(record, "front", before or {}, settled(worker, before or {}))


def kill_child(folder: Path, chosen: argparse.Namespace, record: Record) -> None:
    """kill -9 of the child at random moments: the client is told, and the next session works."""
    record["kills"], draw = max(1, int(20 * chosen.scale)), random.Random(chosen.seed)
    texts: set[str] = set()
    with started(folder) as worker:
        work_once(worker)
        before, next_s = resources(worker.process.pid), []
        for _ in range(record["kills"]):
            session = Session(address_of(worker))
            at_s = time.monotonic() + draw.uniform(0, 1)
            texts.add(killed_text(session, worker, at_s).replace(worker.target, "HOST"))
            session.close()
            next_s.append(work_once(worker))
        record["next_session_s"] = {"median": sorted(next_s)[len(next_s) // 2], "max": max(next_s)}
        record["texts"] = sorted(texts)
        if any("its child died (signal SIGKILL)" not in text for text in texts):
            record["faults"].append("a client was not told that the child died")
        check_growth(record, "front", before, settled(worker, before))


def killed_text(session: Session, worker: WorkerProcess, at_s: float) -> str:
    """Use a session until its child is killed at a time; return the text of the error."""
    try:
        while True:
            works(session)
            if time.monotonic() > at_s:
                for child in worker.children():
                    os.kill(child, signal.SIGKILL)
                at_s = float("inf")
    except WorkerLostError as error:
        return str(error)


def kill_worker(folder: Path, chosen: argparse.Namespace, record: Record) -> None:
    """kill -9 of the worker at random moments of a fit: the fit continues from its checkpoint on the next worker."""
    record["kills"], draw = max(1, int(20 * chosen.scale)), random.Random(chosen.seed)
    whole, kills, fits = fitted("virtual", None, cores=2), 0, 0
    shutdown_tpu_system()
    with started(folder) as first:
        began_s = time.monotonic()
        fitted(first.url, folder / "timed")
        record["fit_s"] = fit_s = round(time.monotonic() - began_s, 2)
        shutdown_tpu_system()
    while kills < record["kills"]:
        fits += 1
        found = None
        while found is None:
            # The same port, token and certificate, so the first line holds for all. Only that line has the token.
            worker = WorkerProcess(folder, *CORES, "--port", str(port_of(first)), "--lease", "1")
            children = worker.children()
            killer = None
            if kills < record["kills"]:
                words = [sys.executable, "-c", KILL, str(worker.process.pid), str(draw.uniform(0.0, fit_s))]
                killer = subprocess.Popen(words)
            try:
                found = fitted(first.url, folder / f"run{fits}")
            except WorkerError as error:  # Also where the worker was killed before it answered.
                if worker.process.poll() is None:
                    record["faults"].append(f"fit {fits}, on a worker that lives: {error}")
                    return
                kills += 1
            finally:
                if killer is not None:
                    killer.kill()
                    killer.wait()
                shutdown_tpu_system()
                worker.process.kill()
                worker.stop()
            if until(lambda: not any(is_alive(child) for child in children), 20) > 20:  # noqa: B023
                record["faults"].append("a child outlived its worker")
        if found != whole:
            record["faults"].append(f"fit {fits} differs: {found} {whole}")
    record["fits"] = fits


def asleep(folder: Path, chosen: argparse.Namespace, record: Record) -> None:
    """A client that is stopped for a minute in its fit: it goes on, with the same results."""
    record["asleep_s"] = max(5.0, 60 * chosen.scale)
    with started(folder, "--lease", "120") as worker:
        client = client_of(worker, "fit")
        assert client.stdout is not None
        while client.stdout.readline() != "epoch\n":
            pass
        client.send_signal(signal.SIGSTOP)
        time.sleep(record["asleep_s"])
        record["without a connection for s"] = [round(session.away_s) for session in status(worker).sessions]
        if not record["without a connection for s"]:
            record["faults"].append("the session ended while its client slept")
        client.send_signal(signal.SIGCONT)
        text, said = client.communicate(timeout=300)
    shutdown_tpu_system()
    whole = fitted("virtual", None, cores=2)
    if text.splitlines()[-1:] != [json.dumps(whole)]:
        record["faults"].append(f"the fit differs: {text} {said[-500:]}")


# Long use


def small_calls(folder: Path, chosen: argparse.Namespace, record: Record) -> None:
    """24,000 small calls: client, front and child do not grow after the first sixth."""
    record["calls"] = count = int(24_000 * chosen.scale)
    with started(folder) as worker:
        session = Session(address_of(worker))
        program = compiled(session, *program_of(lambda state, x: (state + x, x)))
        states = {}
        for index in range(count):
            run(session, program, handle := put(session, np.ones(4, "float32")), np.ones(4, "float32"))
            for name in range(handle, handle + 3):
                session.unused("handles", name)
            if index in (count // 6, count - 1):
                pids = {"client": os.getpid(), "front": worker.process.pid, "child": worker.children()[0]}
                states[index] = {name: resources(pid) for name, pid in pids.items()}
        session.close()
    for name in ("client", "front", "child"):
        check_growth(record, name, states[count // 6][name], states[count - 1][name], 16)


def soak(folder: Path, chosen: argparse.Namespace, record: Record) -> None:
    """Sessions of all kinds and ends for some minutes: no session fails otherwise, and the front does not grow."""
    draw, kinds = random.Random(chosen.seed), (ends_well, vanishes, is_cut, has_no_token, dies, sends_damage)
    counts = dict.fromkeys((kind.__name__ for kind in kinds), 0)
    record["minutes"], states = chosen.minutes, []
    with started(folder, "--lease", "1", "--max-sessions", "2") as worker:
        began_s = time.monotonic()
        while time.monotonic() - began_s < 60 * chosen.minutes:
            kind = draw.choice(kinds)
            kind(worker, draw)
            counts[kind.__name__] += 1
            if time.monotonic() - began_s >= 60 * (len(states) + 1):
                until(lambda: not status(worker).sessions, 20)
                states.append(resources(worker.process.pid))
                print(f"soak, minute {len(states)}: {states[-1]}", flush=True)
        until(lambda: not status(worker).sessions, 20)
        states.append(resources(worker.process.pid))
        record["ended"] = {name: getattr(status(worker), name) for name in ("closed", "lost", "died", "refused")}
    record["sessions"], record["front MiB, each minute"] = counts, [state["mib"] for state in states]
    check_growth(record, "front", states[len(states) // 5], states[-1])


def ends_well(worker: WorkerProcess, draw: random.Random) -> None:
    work_once(worker)


def vanishes(worker: WorkerProcess, draw: random.Random) -> None:
    """A client whose connections end without a word."""
    with Relay(port_of(worker)) as relay:
        session = Session(address_of(worker, relay.port))
        works(session)
        relay.refuse(True)
        relay.cut()
        expect(WorkerLostError, lambda: [works(session) for _ in range(1000)])


def is_cut(worker: WorkerProcess, draw: random.Random) -> None:
    """A client whose connection breaks, and continues."""
    with Relay(port_of(worker)) as relay:
        session = Session(address_of(worker, relay.port))
        for _ in range(draw.randrange(1, 4)):
            works(session)
            relay.cut()
        works(session)
        session.close()


def has_no_token(worker: WorkerProcess, draw: random.Random) -> None:
    import dataclasses

    expect(WorkerError, lambda: Session(dataclasses.replace(address_of(worker), token="wrong" * 8)))


def dies(worker: WorkerProcess, draw: random.Random) -> None:
    """A session whose child is killed; a second child may be the spare one."""
    session = Session(address_of(worker))
    works(session)
    expect(WorkerLostError, lambda: killed_text_raised(session, worker))


def killed_text_raised(session: Session, worker: WorkerProcess) -> None:
    for child in worker.children():
        os.kill(child, signal.SIGKILL)
    for _ in range(1000):
        works(session)


def sends_damage(worker: WorkerProcess, draw: random.Random) -> None:
    """A program with a damaged part: refused, or the child ends."""
    session = Session(address_of(worker))
    manifest, code = program_of(lambda state, x: (state + x, x))
    damaged = bytearray(code)
    damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
    with contextlib.suppress(AnyTPUError):
        compiled(session, manifest, bytes(damaged))
    session.close()


def expect(kind: type[Exception], act: Callable[[], object]) -> None:
    """Raise AssertionError unless an act raises an error of a class."""
    try:
        act()
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was expected")


# Parts of the cases


def fitted(name: str, folder: Path | None, is_told: bool = False, **arguments: Any) -> list[float]:
    """Fit, with checkpoints in a folder, and return the sums of the weights; print each epoch if it `is_told`."""
    import keras

    x = np.random.default_rng(0).random((640, 20), dtype="float32")
    keras.utils.set_random_seed(7)
    with tpu.connect(name, **arguments).scope():
        model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
        model.compile("adam", "mse", steps_per_execution=1)
    saved = {} if folder is None else {"checkpoint_dir": tpu.Checkpointer(folder, every_steps=20)}
    tell = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: print("epoch", flush=True))
    told = [tell] if is_told else []
    model.fit(x, x.sum(1, keepdims=True), batch_size=8, epochs=12, verbose=0, callbacks=told, **saved)
    return [float(np.asarray(weight.value, "float64").sum()) for weight in model.weights]


KILL = "import os, sys, time; time.sleep(float(sys.argv[2])); os.kill(int(sys.argv[1]), 9)"
CLIENTS = {
    "busy": "while True: works(session)",
    "greedy": (
        "name = put(session, np.ones(2**26, 'float32'))\n"
        "for _ in range(8): session.send(get=messages().Get(handles=[name]))\n"
        "time.sleep(600)"
    ),
    "fit": (
        "session.close()\nimport fault_worker, json\n"
        "print(json.dumps(fault_worker.fitted(sys.argv[1], None, is_told=True)))"
    ),
}


def client_of(worker: WorkerProcess, kind: str) -> subprocess.Popen[str]:
    """Start a client in a process of its own, and return it when it is connected."""
    program = (
        f"import sys, time; sys.path[:0] = [{str(ROOT / 'tests')!r}, {str(ROOT / 'scripts')!r}]\n"
        "import numpy as np\n"
        "from anytpu.system.workers import parse_worker\n"
        "from anytpu.worker.session import Session\n"
        "from anytpu.worker.wire import messages\n"
        "from worker.test_faults import put, works\n"
        "session = Session(parse_worker(sys.argv[1]))\n"
        f"works(session); print('ready', flush=True)\n{CLIENTS[kind]}\n"
    )
    pipe = subprocess.PIPE
    client = subprocess.Popen([sys.executable, "-c", program, worker.url], stdout=pipe, stderr=pipe, text=True)
    assert client.stdout is not None and client.stderr is not None
    if client.stdout.readline() != "ready\n":
        raise RuntimeError(client.stderr.read())
    return client


def status(worker: WorkerProcess) -> Any:
    from anytpu.worker.session import worker_status

    return worker_status(address_of(worker))


def ended_part(worker: WorkerProcess) -> str:
    """Return the lines of the log that tell of sessions which ended without a close."""
    lines = worker.log.read_text().splitlines()
    return "\n".join(line for line in lines if "no connection for" in line) or ("session of" if died(worker) else "")


def died(worker: WorkerProcess) -> bool:
    return status(worker).died + status(worker).lost > 0


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


CASES: dict[str, Callable[[Path, argparse.Namespace, Record], None]] = {
    case.__name__: case
    for case in (half_open, half_calls, noise, slow_writer, never_reads, kill_client, kill_child, asleep)
} | {case.__name__: case for case in (kill_worker, small_calls, soak)}


if __name__ == "__main__":
    sys.exit(main())
