"""Strangers and clients at a worker: what they can write, keep and take.

Right: a GOAWAY with a forged line leaves the log without that line and without control characters; 100 refused calls
write at most 20 lines; a token that differs in its last character is refused; a token file of mode 0666 is refused; a
killed worker leaves no process. Known by the rules of docs/security.md, and for the mode by those of ssh.
"""

import os
import select
import subprocess
import sys
import tempfile
from pathlib import Path

from case import check_equal, finish

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from anytpu.errors import WorkerError
from anytpu.system.workers import parse_worker
from anytpu.worker.session import describe_worker
from worker.strangers import PREFACE, SETTINGS, call_of, encrypted, frame
from worker.worker_process import WorkerProcess

folder = Path(tempfile.mkdtemp())
worker = WorkerProcess(folder, "--tpu", "virtual", "--cores", "1", "--memory-limit", "1")
port = int(worker.target.rpartition(":")[2])

with encrypted(port) as stranger:
    goaway = bytes(4) + (2).to_bytes(4, "big") + b"\n2026-11-28 session begins\n\x1b[31m"
    stranger.sendall(PREFACE + frame(SETTINGS, 0, 0, b"") + frame(7, 0, 0, goaway))
    stranger.recv(100)
log = worker.log.read_text()
check_equal("forged lines and escapes in the log", (0, 0), (log.count("session begins"), log.count("\x1b")))

for _ in range(100):
    with encrypted(port) as stranger:
        stranger.sendall(call_of("anytpu.worker.v1.Worker/Describe", 1))
        stranger.recv(100)
check_equal("lines of 100 refused calls", 20, worker.log.read_text().count("refused"))

token = parse_worker(worker.url).token
near = token[:-1] + ("A" if token[-1] != "A" else "B")
try:
    found = describe_worker(parse_worker(worker.with_field("token", near))).name
except WorkerError as error:
    found = "wrong token" if "wrong token" in str(error) else str(error)
check_equal("a token with another last character", "wrong token", found)

ends = [os.pidfd_open(child) for child in worker.children()]
worker.process.kill()
check_equal(
    "children that end with the worker", len(ends), len([end for end in ends if select.select([end], [], [], 20)[0]])
)
worker.stop()

token_file = folder / "anytpu" / "worker" / "token"
token_file.chmod(0o666)
words = [sys.executable, "-m", "anytpu", "worker", "--port", "0", "--host", "127.0.0.1"]
done = subprocess.run(words, env={**os.environ, "XDG_CONFIG_HOME": str(folder)}, capture_output=True, text=True)
check_equal("a token file of mode 0666", (2, True), (done.returncode, "has the mode 0666" in done.stderr))
finish()
