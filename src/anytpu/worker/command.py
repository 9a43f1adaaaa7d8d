"""`anytpu worker`: serve this machine's TPU, GPU or virtual cores to a program on another machine."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import socket
import sys
from pathlib import Path
from typing import Any

from anytpu import _env
from anytpu.cli.command import Command, add_system_arguments, positive_integer
from anytpu.errors import SettingError, WorkerError
from anytpu.system.workers import WORKER_PORT, WorkerAddress, is_loopback, parse_worker
from anytpu.units import GIB


@dataclasses.dataclass(frozen=True)
class _Credentials:
    """The credentials of a worker; all None with `--insecure`.

    Attributes:
        token: the token of its clients, or None.
        token_file: file of the token, or None.
        is_new: True if this start has created the token.
        certificate: key and certificate in PEM, or None for a server without TLS.
        fingerprint: SHA-256 of the certificate, or None.
    """

    token: str | None = dataclasses.field(default=None, repr=False)
    token_file: Path | None = None
    is_new: bool = False
    certificate: tuple[bytes, bytes] | None = dataclasses.field(default=None, repr=False)
    fingerprint: str | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("action", metavar="status", nargs="?", choices=["status"], help="list a worker's sessions")
    parser.add_argument("address", metavar="ADDRESS", nargs="?", help="for status: grpc://host:port?...")
    add_system_arguments(parser)
    parser.add_argument(
        "--port",
        metavar="N",
        type=int,
        default=WORKER_PORT,
        help=f"port to listen on; 0: a free one (default: {WORKER_PORT})",
    )
    parser.add_argument(
        "--host", metavar="ADDRESS", default="0.0.0.0", help="address to listen on (default: every one of this machine)"
    )
    parser.add_argument("--token-file", metavar="FILE", help="file of the token; made if it is missing")
    parser.add_argument(
        "--tls-cert", metavar="FILE", help="certificate in PEM; made, with its key, if both are missing"
    )
    parser.add_argument("--tls-key", metavar="FILE", help="key of the certificate, in PEM")
    parser.add_argument(
        "--insecure", action="store_true", help="neither token nor TLS; only with --host 127.0.0.1 or another loopback"
    )
    parser.add_argument(
        "--memory-limit", metavar="GIB", type=positive_integer, help="memory of a session (default: what is free)"
    )
    parser.add_argument(
        "--deadline",
        metavar="S",
        type=positive_integer,
        default=600,
        help="seconds that one call or one compilation may take (default: 600)",
    )

    parser.add_argument(
        "--max-sessions",
        metavar="N",
        type=positive_integer,
        default=1,
        help="programs that the worker serves at a time, each in a process and with a memory limit of its own "
        "(default: 1)",
    )
    parser.add_argument(
        "--sessions",
        choices=["refuse", "queue"],
        default="refuse",
        help="what a further program does: it is refused, or it waits for its turn (default: refuse)",
    )
    parser.add_argument(
        "--lease",
        metavar="S",
        type=positive_integer,
        default=120,
        help="seconds for which a session is kept after its connection was lost (default: 120)",
    )
    parser.add_argument(
        "--metrics-port", metavar="N", type=int, help="also serve metrics for Prometheus on this port (0: a free one)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C, or list the sessions of a worker."""
    if arguments.action is not None:
        return _show_status(arguments.address)
    _check(arguments)
    _env.check_jax_settings()
    front = _front_class()
    from anytpu.worker.log import log_handler

    credentials = _Credentials() if arguments.insecure else _read_or_create_credentials(arguments)
    logging.basicConfig(level=logging.INFO, handlers=[log_handler(sys.stderr)])
    server = _start_server(front, arguments, credentials)
    try:
        host = _public_name(arguments.host)
        _print_address(WorkerAddress(f"{host}:{server.port}", credentials.fingerprint, credentials.token), credentials)
        if arguments.metrics_port is not None:
            _serve_metrics(server, host, arguments)
        server.wait()
    finally:
        server.close()
    return 0


def _read_or_create_credentials(arguments: argparse.Namespace) -> _Credentials:
    from anytpu.worker.credentials import fingerprint_of, read_or_create_certificate, read_or_create_token

    folder = _env.worker_folder()
    token_file = Path(arguments.token_file or folder / "token")
    token, is_new = read_or_create_token(token_file)
    certificate = read_or_create_certificate(
        Path(arguments.tls_cert or folder / "cert.pem"), Path(arguments.tls_key or folder / "key.pem")
    )
    return _Credentials(token, token_file, is_new, certificate, fingerprint_of(certificate[1]))


def _start_server(front: Any, arguments: argparse.Namespace, credentials: _Credentials) -> Any:
    from anytpu.worker.children import ChildOptions
    from anytpu.worker.sessions import SessionLimits

    memory_bytes = arguments.memory_limit * GIB if arguments.memory_limit else None
    options = ChildOptions(arguments.tpu, arguments.cores, memory_bytes, arguments.deadline, arguments.max_sessions)
    limits = SessionLimits(arguments.max_sessions, arguments.sessions == "queue", arguments.lease)
    return front(arguments.host, arguments.port, options, credentials.token, credentials.certificate, limits)


def _print_address(address: WorkerAddress, credentials: _Credentials) -> None:
    # A token in a log would stay there: it is shown on a terminal, and at the start that makes it.
    is_shown = credentials.is_new or sys.stdout.isatty()
    print(f'tpu.connect("{address.url(has_token=is_shown)}")', flush=True)
    if credentials.token and not is_shown:
        print(f"anytpu: the token is in {credentials.token_file}", file=sys.stderr)


def _serve_metrics(server: Any, host: str, arguments: argparse.Namespace) -> None:
    from anytpu.worker.metrics import serve_metrics

    port = serve_metrics(server.status, arguments.host, arguments.metrics_port)
    print(f"anytpu: metrics at http://{host}:{port}/metrics", file=sys.stderr)


def _show_status(address: str | None) -> int:
    worker = parse_worker(address or "")
    if worker is None:
        raise SettingError(
            "anytpu worker status needs the address of a worker: anytpu worker status grpc://host:port?cert=...&token=..."
        )
    _front_class()
    from anytpu.worker.report import status_lines
    from anytpu.worker.session import worker_status

    print("\n".join(status_lines(worker_status(worker))))
    return 0


def _check(arguments: argparse.Namespace) -> None:
    if arguments.insecure and not is_loopback(arguments.host):
        raise SettingError(
            f"--insecure is for a worker on this machine alone, and --host is {arguments.host!r}: add --host "
            "127.0.0.1, or leave out --insecure"
        )
    if bool(arguments.tls_cert) != bool(arguments.tls_key):
        raise SettingError("--tls-cert and --tls-key name two files of one certificate: give both, or neither")
    for name, port in (("--port", arguments.port), ("--metrics-port", arguments.metrics_port)):
        if port is not None and not 0 <= port < 65536:
            raise SettingError(f"{name} must be from 0 to 65535, not {port}")


def _front_class() -> Any:
    _env.silence_grpc()
    try:
        from anytpu.worker.front import Front
    except ImportError as error:
        raise WorkerError(
            f"a worker needs {error.name}, which is not installed: pip install 'anytpu[worker]'"
        ) from error
    return Front


def _public_name(host: str) -> str:
    if host in ("0.0.0.0", "::"):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


COMMAND = Command(
    name="worker",
    summary="serve this machine's TPU, GPU or virtual cores to another machine",
    description="""\
Serve this machine's TPU, GPU or virtual cores to a program on another machine. The
command prints the line that the program uses: tpu.connect("grpc://host:port?...").
Code and data stay on the program's machine; compiled steps and arrays travel.

The first start makes a token and a certificate; the line contains the token and the
certificate's SHA-256. `anytpu worker status ADDRESS` lists the sessions of a running
worker. See `anytpu docs worker`.
""",
    add_arguments=add_arguments,
    run=run,
)
