"""A real `anytpu worker` in a process of its own; its children fork from the server of `forked.py`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import forked

# `-m anytpu` whose children are started by another executable.
START = "import sys; sys.executable = sys.argv.pop(1); from anytpu.cli import main; sys.exit(main())"


class WorkerProcess:
    """A worker on a free port of the loopback address, with its token and certificate in a folder."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.log = folder / "worker.log"
        command = [sys.executable, "-c", START, str(forked.executable(folder))]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "worker", "--port", "0", "--host", "127.0.0.1", *words],
                env={**os.environ, "XDG_CONFIG_HOME": str(folder)},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline().strip()
        self.url = self.line.removeprefix('tpu.connect("').removesuffix('")')
        assert self.url.startswith("grpc://127.0.0.1:"), self.log.read_text()

    @property
    def bare_url(self) -> str:
        return self.url.partition("?")[0]

    @property
    def target(self) -> str:
        return self.bare_url.removeprefix("grpc://")

    def with_field(self, name: str, value: str | None) -> str:
        """Return the address with another value of a field, or without it."""
        without = re.sub(rf"[?&]{name}=[^&]*", "", self.url)
        without = without if "?" in without else without.replace("&", "?", 1)
        if value is None:
            return without
        return f"{without}{'&' if '?' in without else '?'}{name}={value}"

    def children(self) -> list[int]:
        """Return the process ids of the worker's children."""
        path = Path(f"/proc/{self.process.pid}/task")
        return [int(pid) for task in path.iterdir() for pid in (task / "children").read_text().split()]

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()
