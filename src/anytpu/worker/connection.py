"""The connection of a client to a worker: the checks before it, the channel, and its errors in plain words.

Idea: gRPC reports a wrong certificate, plain text on a TLS port and a closed port all as "unavailable", and retries. So
a plain socket tries first, and says which of them it is. The worker's certificate is its own authority: the address has
its SHA-256, and exactly that certificate is trusted.
"""

from __future__ import annotations

import hashlib
import socket
import ssl
from typing import Any

from anytpu import _env
from anytpu.errors import WorkerError, WorkerLostError
from anytpu.system.workers import WorkerAddress
from anytpu.units import printable
from anytpu.worker.wire import MAX_FRAME_BYTES, MAX_MESSAGE_BYTES, PROTOCOL

CERTIFICATE_NAME = "anytpu-worker"
"""The host name in a certificate that a worker makes for itself."""

CONNECT_S = 10.0
"""Time limit of a connection and its handshake, in seconds."""

_LINE = "Use the line that `anytpu worker` printed at its start"
_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.http2.max_frame_size", MAX_FRAME_BYTES),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]


def open_channel(address: WorkerAddress) -> Any:
    """Return a gRPC channel to a worker, after a check that it is there and has the expected certificate.

    Raises:
        WorkerError: grpcio is not installed, nothing listens, or the certificate is not the expected one.
    """
    _env.silence_grpc()
    try:
        import grpc
    except ImportError as error:
        raise WorkerError(
            "a worker is used through grpcio, which is not installed: pip install 'anytpu[worker]'"
        ) from error
    certificate = _shown_certificate(address)
    if not address.is_encrypted:
        if certificate is not None:
            raise WorkerError(f"the worker at {address.target} uses TLS, and the address has no certificate. {_LINE}")
        return grpc.insecure_channel(address.target, options=_OPTIONS)
    if certificate is None:
        raise WorkerError(
            f"the worker at {address.target} does not use TLS, and this connection needs it: the token and the data "
            "would be readable on the way. Start the worker without --insecure"
        )
    if address.fingerprint is None:
        return grpc.secure_channel(address.target, grpc.ssl_channel_credentials(), options=_OPTIONS)
    pem = _pinned_certificate(address, certificate)
    options = [*_OPTIONS, ("grpc.ssl_target_name_override", CERTIFICATE_NAME)]
    return grpc.secure_channel(address.target, grpc.ssl_channel_credentials(pem.encode()), options=options)


def metadata_of(address: WorkerAddress, session: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata of each call."""
    token = (("authorization", f"Bearer {address.token}"),) if address.token else ()
    return ("anytpu-protocol", PROTOCOL), ("anytpu-session", session), *token


def explained(address: WorkerAddress, error: Any) -> WorkerError:
    """Return our error for a `grpc.RpcError`."""
    code, details = error.code().name, printable(error.details() or "")
    place = f"the worker at {address.target}"
    if code == "UNAUTHENTICATED":
        return WorkerError(
            f"{place} refused this client: {details}. Use the line that `anytpu worker` printed at its first start, or "
            "set ANYTPU_WORKER_TOKEN to the worker's token: each start names the file that has it"
        )
    if code == "FAILED_PRECONDITION":
        return WorkerError(
            f"{place} has another version of the wire: it needs {details}, and this anytpu has protocol {PROTOCOL}. "
            "Install the same release on both machines: pip install --upgrade anytpu"
        )
    if code == "RESOURCE_EXHAUSTED" and details.startswith(("busy", "queue")):
        return WorkerError(f"{place} {_fullness(details)}, or start a second worker on another port")
    if code == "ABORTED" and details.startswith("deadline"):
        return WorkerLostError(
            f"{place} ended the session: a call or a compilation took more than {details.split()[-1]} s. Run fewer "
            f"steps in a call, or start the worker with a larger --deadline. {_AGAIN}"
        )
    if code == "ABORTED" and details.startswith("memory"):
        return WorkerLostError(
            f"{place} ended the session: it took more than twice the memory that it may have, "
            f"{details.removeprefix('memory ')}. Make the batch or the model smaller, or start the worker with a "
            f"larger --memory-limit. {_AGAIN}"
        )
    if code == "ABORTED":
        return WorkerLostError(
            f"{place} ended the session, because its child died ({details}): SIGKILL often means that its machine ran "
            f"out of memory. {_AGAIN}"
        )
    if code == "NOT_FOUND":
        return WorkerLostError(
            f"{place} does not have this session any more: the connection was lost for longer than its lease, another "
            f"program needed its place, or the worker was started again. {_AGAIN}"
        )
    return WorkerLostError(f"the connection to {place} was lost: {code.lower()}, {details[:300]!r}. {_AGAIN}")


def _fullness(details: str) -> str:
    """Return how full a worker is, from its "busy 1" or "queue 32", and what to do about it."""
    kind, _, count = details.partition(" ")
    if kind == "queue":
        return (
            f"is in use, and {count} programs wait for their turn, which is the maximum. Wait until some of them ended"
        )
    if count == "1":
        return "is in use by another program, and serves one at a time. Wait for that program, end it"
    return f"is in use by {count} other programs, and serves {count} at a time. Wait for one of them, end it"


_AGAIN = "The values on its cores are lost: make a new strategy with tpu.connect, load saved weights, and run again"


def _shown_certificate(address: WorkerAddress) -> bytes | None:
    """Return the certificate of the port, in DER, which is not trusted yet; None if TLS is not spoken there.

    Raises:
        WorkerError: nothing listens there.
    """
    try:
        with _connect(address) as plain, _any_certificate().wrap_socket(plain, server_hostname=CERTIFICATE_NAME) as tls:
            return tls.getpeercert(binary_form=True) or b""
    except ssl.SSLError:
        return None
    except TimeoutError as error:
        raise _absent(address, f"no answer within {CONNECT_S:g} s") from error
    except ConnectionError as error:
        if isinstance(error, ConnectionRefusedError):
            raise _absent(address, "the connection was refused") from error
        return None  # A server without TLS closes at the first byte of a handshake.
    except OSError as error:
        raise _absent(address, error.strerror or str(error)) from error


def _absent(address: WorkerAddress, reason: str) -> WorkerError:
    return WorkerError(
        f"no worker answers at {address.target}: {reason}. Start one there with `anytpu worker --port {address.port}`, "
        "and let the firewall pass that port"
    )


def _pinned_certificate(address: WorkerAddress, der: bytes) -> str:
    """Return the worker's certificate, in PEM, after a check of its fingerprint and its validity."""
    fingerprint = hashlib.sha256(der).hexdigest()
    if fingerprint != (expected := str(address.fingerprint)):
        shown = 16 if fingerprint[:16] != expected[:16] else len(fingerprint)
        raise WorkerError(
            f"the worker at {address.target} has another certificate than the address says: {fingerprint[:shown]}..., "
            f"not {expected[:shown]}.... If its certificate was made anew, copy the line that `anytpu worker` prints. "
            "Otherwise somebody answers in its place"
        )
    # Trust it alone, and connect again: this checks that it is valid.
    pem = ssl.DER_cert_to_PEM_cert(der)
    trusting = ssl.create_default_context(cadata=pem)
    trusting.check_hostname = False
    try:
        with _connect(address) as plain, trusting.wrap_socket(plain, server_hostname=CERTIFICATE_NAME):
            return pem
    except ssl.SSLCertVerificationError as error:
        raise WorkerError(
            f"the certificate of the worker at {address.target} is not valid: {error.verify_message}. Remove the "
            "worker's certificate and start it again: it makes a new one"
        ) from error


def _connect(address: WorkerAddress) -> socket.socket:
    return socket.create_connection((address.host, address.port), CONNECT_S)


def _any_certificate() -> ssl.SSLContext:
    """Return a context that accepts every certificate; only for the look before the real connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context
