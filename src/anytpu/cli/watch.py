"""`anytpu watch`: a live page of runs, served from this machine.

Idea: the page is that of `anytpu report`, made on the server from what is new in the records. A script asks for it each
second. So a browser that comes back, or a server that is started again, shows the present.

Rule: on loopback a request must name a loopback host, so that no web site can read the page through the browser. On
any other address it must have the token of the printed URL.
"""

from __future__ import annotations

import argparse
import hmac
import http.server
import ipaddress
import math
import secrets
import sys
import threading
import time
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anytpu.cli.command import Command, non_negative_integer
from anytpu.errors import FileError, SettingError

PORT = 6007

_RENEWAL_S = 0.5
_LAST_POINTS = 12
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


class Site(http.server.ThreadingHTTPServer):
    """The live page of runs.

    Args:
        folders: the folders of the runs.
        host: IP address to listen on.
        port: port to listen on; 0 takes a free one.

    Raises:
        FileError: a folder has no record.
        SettingError: `host` is not an IPv4 address of this machine, or the port is taken.
    """

    daemon_threads = True

    def __init__(self, folders: Sequence[str], host: str, port: int) -> None:
        from anytpu.train.record import RunReader

        self._runs = [RunReader(folder) for folder in folders]
        self._lock = threading.Lock()
        self._looked_s, self._content = -math.inf, ""
        self._shown: list[tuple[int, str]] | None = None
        self.content()
        try:
            self.token = "" if ipaddress.IPv4Address(host).is_loopback else secrets.token_urlsafe(16)
            super().__init__((host, port), _Answers)
        except ValueError:
            raise SettingError(f"the page needs an IPv4 address of this machine, not {host!r}; omit --host") from None
        except (OverflowError, OSError) as error:
            raise SettingError(f"the page cannot be served at {host} port {port}: {error}; choose --port 0") from None

    @property
    def url(self) -> str:
        """The address of the page, with its token."""
        return f"http://{self.server_address[0]}:{self.server_port}/{self.token and '?token='}{self.token}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing about a client that went away."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def content(self) -> str:
        """Return the content of the page as of now."""
        from anytpu.report.runs.page import content

        with self._lock:
            if time.monotonic() - self._looked_s > _RENEWAL_S:
                for run in self._runs:
                    run.update()
                shown = [run.version for run in self._runs]
                if shown != self._shown:
                    self._content, self._shown = content(self._runs, _LAST_POINTS), shown
                self._looked_s = time.monotonic()
            return self._content


class _Answers(http.server.BaseHTTPRequestHandler):
    """The answers to browsers: `/` is the page, `/runs` its content."""

    server: Site
    timeout = 10
    """Seconds after which a client that says nothing is left."""

    def do_GET(self) -> None:
        from anytpu.report.html import Markup, whole

        path, _, query = self.path.partition("?")
        token = urllib.parse.parse_qs(query).get("token", [""])[0]
        host = (self.headers["Host"] or "").rpartition(":")[0] or self.headers["Host"]
        if self.server.token and not hmac.compare_digest(token.encode(), self.server.token.encode()):
            self._answer(403, "open the URL that anytpu watch printed, with its token", "text/plain")
        elif not self.server.token and host not in (*_LOOPBACK_NAMES, self.server.server_address[0]):
            self._answer(403, "this page is served to this machine only", "text/plain")
        elif path not in ("/", "/runs"):
            self._answer(404, "there is no such page", "text/plain")
        else:
            try:
                content = self.server.content()
            except FileError as error:
                self._answer(500, str(error), "text/plain")
                return
            if path == "/":
                script = Path(__file__).with_name("live.js").read_text(encoding="utf-8")
                content = whole("anytpu watch", Markup(content), script=script, renews=True)
            self._answer(200, content, "text/html")

    def _answer(self, status: int, text: str, kind: str) -> None:
        content = text.encode("utf-8", "replace")
        self.send_response(status)
        headers = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(content))}
        for name, value in {**headers, "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: a request has the token."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the runs and the address."""
    parser.add_argument("runs", metavar="RUN", nargs="+", help="run_dir or checkpoint_dir of a fit, or of a RunRecord")
    parser.add_argument("--host", metavar="ADDRESS", default="127.0.0.1", help="default: 127.0.0.1, this machine only")
    parser.add_argument("--port", metavar="N", type=non_negative_integer, default=PORT, help=f"default: {PORT}; 0: any")


def run(arguments: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C."""
    with Site(arguments.runs, arguments.host, arguments.port) as site:
        print(f"{site.url} shows the runs until Ctrl-C.", flush=True)
        site.serve_forever()
    return 0


COMMAND = Command(
    name="watch",
    summary="show runs on a live page, while they train",
    description="""\
Serve a page of the records of runs, which renews itself each second: curves, examples
per second, where the time goes, the last points. It is served to this machine only,
unless --host names another address; then the printed URL has a token.
""",
    add_arguments=add_arguments,
    run=run,
)
