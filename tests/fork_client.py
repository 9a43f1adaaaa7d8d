"""A process that stands for one of `fork_server.py`: with its streams and its status, and it passes signals on.

Usage: python -I -S fork_client.py ADDRESS WORDS, which runs `python WORDS`.
"""

import os
import signal
import socket
import sys

with socket.socket(socket.AF_UNIX) as server:
    server.connect(sys.argv[1])
    # Also those that `pass_fds` of the caller has given.
    files = [int(name) for name in os.listdir("/proc/self/fd") if int(name) != server.fileno()]
    files = [file for file in files if os.path.exists(f"/proc/self/fd/{file}")]  # But for that of the list.
    leads = os.getsid(0) == os.getpid()
    request = repr((sys.argv[2:], os.getcwd(), dict(os.environ), files, leads)).encode() + b"\n"
    sent = socket.send_fds(server, [request], files)
    server.sendall(request[sent:])
    lines = server.makefile()
    process_id = int(lines.readline())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, lambda number, _: os.kill(process_id, number))
    # The program alone keeps its streams open.
    for file in files:
        os.close(file)
    status = int(lines.readline())
if status >= 0:
    os._exit(status)
signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
os.kill(os.getpid(), -status)
