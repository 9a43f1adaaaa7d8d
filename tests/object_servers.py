"""Real object servers on this machine, and a proxy before them that fails as stores do."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import importlib.util
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

NEEDED = {"s3": ("s3fs", "moto", "flask"), "gs": ("gcsfs", "gcp_storage_emulator")}
COMMANDS = {
    "s3": ["moto.server", "-H", "127.0.0.1", "-p"],
    "gs": ["gcp_storage_emulator", "start", "--host=127.0.0.1", "--in-memory", "--default-bucket=bucket", "--port"],
}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def skip_without(protocol: str) -> None:
    missing = [name for name in NEEDED[protocol] if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed; type pip install -e '.[dev]'")


@contextlib.contextmanager
def server(protocol: str) -> Iterator[str]:
    """Run an object server with the bucket "bucket" in a process of its own; the value is its address."""
    skip_without(protocol)
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", *COMMANDS[protocol], str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(600):
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            time.sleep(0.1)
        if protocol == "s3":
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.request("PUT", "/bucket")
            assert connection.getresponse().status == 200
            connection.close()
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def settings(protocol: str, address: str) -> dict[str, str]:
    """Return the environment in which a program finds the server."""
    if protocol == "gs":
        # Without the others, gcsfs looks for credentials, and asks for the kind of the bucket by gRPC.
        anonymous = {"FSSPEC_GS_TOKEN": "anon", "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
        return {"STORAGE_EMULATOR_HOST": f"http://{address}", **anonymous}
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
    return {"AWS_ENDPOINT_URL": f"http://{address}", **keys, "AWS_CONFIG_FILE": os.devnull}


class Proxy:
    """A proxy that forwards requests to a server, but for those that a test lets fail.

    Attributes:
        address: its address.
        fault: None, "500" (an answer), "hang" (no answer) or "lose" (the answer of a write that is not done).
        named: part of the name of the objects whose requests fail.
        methods: methods of the requests that fail.
        failures: number of requests that have failed.
    """

    def __init__(self, target: str) -> None:
        proxy = self
        self.fault: str | None = None
        self.named, self.methods, self.failures = "", ("PUT", "POST"), 0
        self._hanging = threading.Event()

        class Forwarding(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def forward(self) -> None:
                body = self._body()
                # GCS has the name of an upload in its body.
                is_named = proxy.named in self.path or proxy.named.encode() in body[:2000]
                if proxy.fault and self.command in proxy.methods and is_named:
                    proxy.failures += 1
                    if proxy.fault == "hang":
                        proxy._hanging.wait(60)
                    self._answer(200 if proxy.fault == "lose" else 500, [], b"{}" if "upload" in self.path else b"")
                    return
                connection = http.client.HTTPConnection(target)
                connection.request(self.command, self.path, body or None, dict(self.headers.items()))
                answer = connection.getresponse()
                self._answer(answer.status, answer.getheaders(), answer.read())
                connection.close()

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = forward

            def _body(self) -> bytes:
                if self.headers.get("Transfer-Encoding", "") != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length", 0)))
                body = b""
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                del self.headers["Transfer-Encoding"]
                return body

            def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
                self.send_response_only(status)
                kept = [pair for pair in headers if pair[0].lower() not in ("content-length", "transfer-encoding")]
                is_head = self.command == "HEAD"
                length = dict((name.lower(), value) for name, value in headers).get("content-length", "0")
                for name, value in [*kept, ("Content-Length", length if is_head else str(len(content)))]:
                    self.send_header(name, value)
                self.end_headers()
                if not is_head:
                    with contextlib.suppress(OSError):
                        self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Forwarding)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def fail(self, fault: str | None, named: str = "", methods: tuple[str, ...] = ("PUT", "POST")) -> None:
        """Let requests fail from now on."""
        self.fault, self.named, self.methods, self.failures = fault, named, methods, 0

    def close(self) -> None:
        """Stop."""
        self._hanging.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
