"""A browser without a window, and a web site of a folder: what the tests of pages look with."""

from __future__ import annotations

import functools
import html
import http.server
import json
import os
import re
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any, NamedTuple

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
BROWSERS_OWN = "clients2.google.com"  # where Chromium asks for the time


class Site:
    """A folder as a web site of its own, which writes down what it is asked for: (host, path)."""

    def __init__(self, folder: Path) -> None:
        asked = self.asked = []

        class Handler(http.server.SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append((self.headers["Host"], self.path))
                super().do_GET()

            def log_message(self, *_: Any) -> None:
                pass

        handler = functools.partial(Handler, directory=str(folder))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.address = f"127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def browse(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run the browser without a window, with a profile of its own."""
    assert BROWSER is not None
    command = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--disable-background-networking",
        "--enable-logging=stderr",
        f"--user-data-dir={folder / 'profile'}",
        *flags,
    ]
    environment = {**os.environ, "HOME": str(folder)}
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=True, env=environment)


class Seen(NamedTuple):
    """What a browser found of each page in each frame, what it asked for, and what it said."""

    pages: dict[str, dict[str, Any]]
    asked: list[tuple[str, str]]
    said: list[str]


def look_at(folder: Path, harness: str, time_ms: int) -> Seen:
    """Open a page that loads the pages of a folder in frames.

    Args:
        folder: the folder.
        harness: the outer page, which writes JSON about each frame to `<pre id="seen">`.
        time_ms: the browser's virtual time, after which all frames have loaded and the DOM is printed.
    """
    (folder / "frames.html").write_text(harness)
    site = Site(folder)
    try:
        # Every host is that site.
        hosts = f"--host-resolver-rules=MAP * {site.address}"
        run = browse(folder, hosts, f"--virtual-time-budget={time_ms}", "--dump-dom", "http://pages.test/frames.html")
    finally:
        site.close()
    found = re.search(r'<pre id="seen">(.*?)</pre>', run.stdout, re.DOTALL)
    assert found, run.stderr
    said = [line for line in run.stderr.splitlines() if "CONSOLE" in line]
    own = ("/frames.html", "/favicon.ico")
    asked = [(host, path) for host, path in site.asked if path not in own and host != BROWSERS_OWN]
    return Seen(json.loads(html.unescape(found[1])), asked, said)
