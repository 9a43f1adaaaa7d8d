"""A TCP relay on the loopback address, whose connections can be cut, held or slowed down."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import TracebackType


class Relay:
    """Passes connections on to a port of this machine.

    Args:
        port: the port that connections go to.
        delay_s: time that each part of the data is on its way, in seconds.
        bytes_per_s: bytes a second in each direction; None without a limit.
    """

    def __init__(self, port: int, delay_s: float = 0.0, bytes_per_s: float | None = None) -> None:
        self._target, self._delay_s, self._bytes_per_s = port, delay_s, bytes_per_s
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_open = True
        self._passing = threading.Event()
        self._passing.set()
        self.passed_bytes = 0
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        server = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop)
        self._server = server.result()
        self.port = self._server.sockets[0].getsockname()[1]

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        async def end() -> None:
            self._server.close()
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.cut()
        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self) -> None:
        """Reset all connections."""

        def reset() -> None:
            for writer in list(self._writers):
                writer.transport.abort()

        self._loop.call_soon_threadsafe(reset)

    def refuse(self, is_refusing: bool) -> None:
        """Close new connections at once, or accept them again."""
        self._is_open = not is_refusing

    def hold(self, is_held: bool) -> None:
        """Keep all data back, as a laptop that sleeps does, or let it pass again."""
        (self._passing.clear if is_held else self._passing.set)()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._is_open:
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers |= {writer, back}
        # The server asks a task that was cancelled for its error.
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await asyncio.gather(self._pass(reader, back), self._pass(there, writer))
        for side in (writer, back):
            self._writers.discard(side)
            side.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one direction on, until it ends."""
        parts: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(256)
        loop = asyncio.get_running_loop()

        async def write() -> None:
            free_s = 0.0
            while True:
                arrived_s, part = await parts.get()
                if not part:
                    break
                # A part that this loop wakes up too late for does not make the next ones late.
                free_s = max(free_s, arrived_s) + (len(part) / self._bytes_per_s if self._bytes_per_s else 0.0)
                await asyncio.sleep(max(0.0, free_s + self._delay_s - loop.time()))
                while not self._passing.is_set():
                    await asyncio.sleep(0.05)
                self.passed_bytes += len(part)
                writer.write(part)
                await writer.drain()
            writer.close()

        async def read() -> None:
            while part := await reader.read(2**16):
                await parts.put((loop.time(), part))
            await parts.put((loop.time(), b""))

        await asyncio.gather(read(), write())
