"""A launch whose process 1 freezes: process 0 loses it, and nothing was saved.

Right: the launch ends within 45 s of the freeze, with exit status 69, and does not say that a run was saved. Known by
docs/many_hosts.md: 30 s until a host is taken for frozen, and 3 s until it is killed.
"""

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from case import check_equal, finish

PROGRAM = """
import os, signal, time
import anytpu as tpu
tpu.TPUClusterResolver("")
print("frozen", flush=True)
if os.environ["ANYTPU_PROCESS"] == "1":
    os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(300)
"""
script = Path(tempfile.mkdtemp(), "train.py")
script.write_text(PROGRAM)
command = [sys.executable, "-m", "anytpu", "launch", "-n", "2", str(script)]
with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as launch:
    while "[1] frozen" not in launch.stdout.readline():
        pass
    began_s = time.monotonic()
    said = launch.communicate(timeout=120)[1]
    took_s = time.monotonic() - began_s
check_equal("ended within 45 s", True, took_s < 45)
check_equal("exit status", 69, launch.returncode)
check_equal("process 1 is named as frozen", True, bool(re.search(r"host 1 of 2 \(.*\) is frozen", said)))
last = "anytpu launch: process 0 of 2 ended because of another process, exit status 69"
check_equal("last line", last, said.splitlines()[-1])
finish()
