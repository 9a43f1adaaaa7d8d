"""Speed of a worker on the loopback address, in one run.

    python benchmarks/worker_speed.py [--rounds 5] [--parts fit,rates,relay,clients] [--output FILE]

- fit: an MLP at batch 32, the MNIST CNN and an LSTM on a worker, beside virtual cores of this process, alternated.
- rates: an array of 128 MiB and an empty call, with TLS and without, beside a bare grpcio stream and call.
- relay: fits through 100 Mbit/s and 40 ms, beside the larger of the time without a network and the bytes at that rate.
- clients: 8 programs at once: the epochs of the fastest beside those of the slowest, within the same window.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("KERAS_BACKEND", "jax")
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import grpc
import keras
import numpy as np

import anytpu as tpu
from anytpu.system.workers import parse_worker
from anytpu.worker.arrays import describe
from anytpu.worker.connection import CERTIFICATE_NAME
from anytpu.worker.credentials import read_or_create_certificate
from anytpu.worker.session import Session, content_of
from anytpu.worker.wire import messages
from machine import cpu_name
from worker.relay import Relay
from worker.worker_process import WorkerProcess

MIB = 2**20
EPOCHS = 10
WINDOW_S = 60.0


def mlp() -> tuple[Any, Any, Any]:
    layers = [keras.Input((784,)), keras.layers.Dense(128, "relu"), keras.layers.Dense(10)]
    return keras.Sequential(layers), np.random.default_rng(0).random((6400, 784), dtype="float32"), 32


def cnn() -> tuple[Any, Any, Any]:
    layers = [keras.Input((28, 28, 1)), keras.layers.Conv2D(32, 3, activation="relu"), keras.layers.MaxPooling2D()]
    layers += [keras.layers.Conv2D(64, 3, activation="relu"), keras.layers.Flatten(), keras.layers.Dense(10)]
    return keras.Sequential(layers), np.random.default_rng(0).random((1280, 28, 28, 1), dtype="float32"), 128


def lstm() -> tuple[Any, Any, Any]:
    layers = [keras.Input((100, 32)), keras.layers.LSTM(100), keras.layers.Dense(10)]
    return keras.Sequential(layers), np.random.default_rng(0).random((640, 100, 32), dtype="float32"), 64


def fitter(
    address: str, make: Callable[[], tuple[Any, Any, Any]], epochs: int = EPOCHS, is_generator: bool = False
) -> Callable[[], float]:
    """Return a function that fits, and returns the seconds that it took."""
    with tpu.connect(address).scope():
        model, x, batch = make()
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    y = np.arange(len(x)) % 10

    def batches() -> Iterator[tuple[Any, Any]]:
        while True:
            for start in range(0, len(x), batch):
                yield x[start : start + batch], y[start : start + batch]

    def fit() -> float:
        began_s = time.perf_counter()
        if is_generator:
            model.fit(batches(), steps_per_epoch=len(x) // batch, epochs=epochs, verbose=0)
        else:
            model.fit(x, y, batch_size=batch, epochs=epochs, verbose=0)
        return time.perf_counter() - began_s

    fit()
    fit()
    return fit


def fit_part(rounds: int) -> dict[str, Any]:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        worker = WorkerProcess(Path(folder), "--tpu", "v2-8")
        for make in (mlp, cnn, lstm):
            # Connecting to another system shuts the first one down, so each has its turn as a whole.
            times: dict[str, list[float]] = {"worker": [], "local": []}
            for _ in range(rounds):
                for name, address in (("worker", worker.url), ("local", "v2-8")):
                    times[name].append(fitter(address, make)())
            found[make.__name__] = {name: statistics.median(taken) for name, taken in times.items()}
            found[make.__name__]["share"] = found[make.__name__]["local"] / found[make.__name__]["worker"]
            print(make.__name__, found[make.__name__], flush=True)
        tpu.shutdown_tpu_system()
        worker.stop()
    return found


@contextlib.contextmanager
def bare_server(has_tls: bool) -> Iterator[Callable[[], dict[str, float]]]:
    """Start a bare grpcio server; yield a function that measures a stream of 1 MiB messages, and an empty call."""

    script = (
        "import grpc, sys\n"
        "from pathlib import Path\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "server = grpc.server(ThreadPoolExecutor(4))\n"
        "content = bytes(2**20)\n"
        "rpcs = {\n"
        "    'Take': grpc.stream_unary_rpc_method_handler(lambda chunks, _: str(sum(map(len, chunks))).encode()),\n"
        "    'Give': grpc.unary_stream_rpc_method_handler(lambda message, _: iter([content] * 128)),\n"
        "    'Empty': grpc.unary_unary_rpc_method_handler(lambda message, _: b''),\n"
        "}\n"
        "server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler('bare', rpcs),))\n"
        "pems = [Path(name).read_bytes() for name in sys.argv[1:]]\n"
        "port = server.add_secure_port('127.0.0.1:0', grpc.ssl_server_credentials([tuple(pems)])) if pems else "
        "server.add_insecure_port('127.0.0.1:0')\n"
        "server.start()\n"
        "print(port, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        key, certificate = Path(folder, "key.pem"), Path(folder, "cert.pem")
        _, pem = read_or_create_certificate(certificate, key)
        process = subprocess.Popen(
            [sys.executable, "-c", script, *([str(key), str(certificate)] if has_tls else [])],
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        target = f"127.0.0.1:{process.stdout.readline().strip()}"
    content = bytes(MIB)
    options = [("grpc.ssl_target_name_override", CERTIFICATE_NAME)]
    credentials = grpc.ssl_channel_credentials(pem)
    with grpc.secure_channel(target, credentials, options) if has_tls else grpc.insecure_channel(target) as channel:
        put, get = channel.stream_unary("/bare/Take"), channel.unary_stream("/bare/Give")
        empty = channel.unary_unary("/bare/Empty")
        empty(b"")
        yield lambda: {
            "put MiB/s": 128 / seconds(lambda: put(iter([content] * 128))),
            "get MiB/s": 128 / seconds(lambda: sum(map(len, get(b"")))),
            "empty call ms": 5 * seconds(lambda: [empty(b"") for _ in range(200)]),
        }
    process.kill()
    process.communicate()


@contextlib.contextmanager
def worker_server(*words: str) -> Iterator[Callable[[], dict[str, float]]]:
    """Start a worker; yield a function that measures the same of a session."""
    array = np.ones(32 * MIB, "float32")
    with tempfile.TemporaryDirectory() as folder:
        worker = WorkerProcess(Path(folder), "--tpu", "virtual", *words)
        address = parse_worker(worker.url)
        assert address is not None
        session = Session(address)

        def measure() -> dict[str, float]:
            name = session.new_name()
            message = messages().Put(handles=[name], arrays=[describe(array)], axis=-1, cores=8)
            get = messages().Get(handles=[name])
            put_s = seconds(lambda: session.send([array], put=message).result())
            get_s = seconds(lambda: content_of(session.store, session.send(get=get)))
            session.unused("handles", name)
            session.send().result()
            call_s = seconds(lambda: [session.send().result() for _ in range(200)]) / 200
            return {"put MiB/s": 128 / put_s, "get MiB/s": 128 / get_s, "empty call ms": 1000 * call_s}

        yield measure
        session.close()
        worker.stop()


def seconds(act: Callable[[], object]) -> float:
    """Return the duration of a call."""
    began_s = time.perf_counter()
    act()
    return time.perf_counter() - began_s


def rates_part(rounds: int) -> dict[str, Any]:
    """Measure both in turns; "of bare" is the median of the rounds' own ratios, because the machine's speed varies."""
    found: dict[str, Any] = {}
    for has_tls in (False, True):
        with bare_server(has_tls) as bare, worker_server(*([] if has_tls else ["--insecure"])) as worker:
            bare(), worker()
            rows = [(bare(), worker()) for _ in range(rounds)]
        found["TLS" if has_tls else "no TLS"] = {
            "bare grpcio": {key: statistics.median(row[0][key] for row in rows) for key in rows[0][0]},
            "worker": {key: statistics.median(row[1][key] for row in rows) for key in rows[0][0]},
            "of bare": {key: statistics.median(row[1][key] / row[0][key] for row in rows) for key in rows[0][0]},
        }
    return found


def relay_part(rounds: int) -> dict[str, Any]:
    """Measure fits through a slow network, beside the larger of their time without it and their bytes at its rate."""
    rate = 100e6 / 8
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        worker = WorkerProcess(Path(folder), "--tpu", "v2-8")
        port = int(worker.target.rpartition(":")[2])
        for name, epochs, is_generator in (("10 epochs", 10, False), ("1 epoch", 1, False), ("generator", 1, True)):
            plain = fitter(worker.url, mlp, epochs, is_generator)
            plain_s = statistics.median([plain() for _ in range(rounds)])
            tpu.shutdown_tpu_system()  # Ends the session: the worker serves one at a time.
            with Relay(port, delay_s=0.02, bytes_per_s=rate) as relay:
                fit = fitter(worker.url.replace(f":{port}", f":{relay.port}"), mlp, epochs, is_generator)
                before = relay.passed_bytes
                relayed_s = statistics.median([fit() for _ in range(rounds)])
                passed = (relay.passed_bytes - before) // rounds
                tpu.shutdown_tpu_system()
            model, x, _ = mlp()
            # The batches of one epoch, and the state (Adam's, too) there and back.
            size = x.nbytes + 4 * len(x) + 2 * 3 * 4 * model.count_params()
            bound_s = max(plain_s, size / rate)
            found[name] = {"plain_s": plain_s, "relayed_s": relayed_s, "bytes": passed, "bound_s": bound_s}
            found[name]["of the bound"] = relayed_s / bound_s
        worker.stop()
    return found


def clients_part(_: int) -> dict[str, Any]:
    """Count the epochs of each client within the same window, so that a busy machine slows all of them down.

    The time that a client and its child had on the processor tells the share of the machine's scheduler.
    """
    program = (
        "import sys, time, worker_speed as b\n"
        "fit = b.fitter(sys.argv[1], b.mlp, epochs=1)\n"
        "print('ready', flush=True)\n"
        "until_s, epochs, began_s = float(sys.stdin.readline()), 0, time.process_time()\n"
        "while fit() and time.time() < until_s: epochs += 1\n"
        "print(epochs, time.process_time() - began_s, flush=True)\n"
        "sys.stdin.readline()\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        words = ("--tpu", "v2-8", "--max-sessions", "8", "--memory-limit", "1")
        worker = WorkerProcess(Path(folder), *words)
        clients = [
            subprocess.Popen(
                [sys.executable, "-c", program, worker.url],
                cwd=Path(__file__).parent,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(8)
        ]

        def line(client: Any) -> list[str]:
            found = client.stdout.readline()
            assert re.match(r"ready|[\d.]+", found), found
            return found.split()

        def tell(text: str) -> None:
            for client in clients:
                client.stdin.write(text)  # pyright: ignore[reportOptionalMemberAccess]
                client.stdin.flush()  # pyright: ignore[reportOptionalMemberAccess]

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(line, clients))
            tell(f"{time.time() + WINDOW_S}\n")
            rows = list(pool.map(line, clients))
        tell("end\n")
        for client in clients:
            client.communicate()
        worker.stop()
    epochs, cpu_s = [int(row[0]) for row in rows], [float(row[1]) for row in rows]
    return {"epochs": epochs, "client processor s": cpu_s, "ratio": max(epochs) / min(epochs)}


PARTS = {"fit": fit_part, "rates": rates_part, "relay": relay_part, "clients": clients_part}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    record: dict[str, Any] = {"machine": cpu_name(), "rounds": arguments.rounds}
    for name in arguments.parts.split(","):
        record[name] = PARTS[name](arguments.rounds)
        print(name, json.dumps(record[name], indent=1), flush=True)
        if arguments.output:
            arguments.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
