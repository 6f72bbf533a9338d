"""The daemon, a proxy that cuts connections, and coroutines as tests."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import random
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pubsubpy import Client

BINARY = Path(os.environ.get("PUBSUBD", Path(__file__).parents[3] / "bin" / "pubsubd"))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs coroutines. A test that hangs fails after two minutes."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    async def run() -> None:
        async with asyncio.timeout(120):
            await pyfuncitem.obj(**arguments)

    asyncio.run(run())
    return True


class Daemon:
    """A pubsubd on a free port of loopback."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.addresses, self.flags = folder / "addresses.json", flags

    async def start(self) -> None:
        self.addresses.unlink(missing_ok=True)
        self.process = await asyncio.create_subprocess_exec(
            str(BINARY), "serve", "--listen-public=127.0.0.1:0", "--listen-admin=127.0.0.1:0", "--log-level=error",
            f"--addresses-file={self.addresses}", *self.flags)
        while not self.addresses.exists():
            assert self.process.returncode is None, "the daemon did not start"
            await asyncio.sleep(0.01)
        self.port = int(json.loads(self.addresses.read_text())["public"].rpartition(":")[2])

    async def stop(self, how: signal.Signals = signal.SIGKILL) -> None:
        if self.process.returncode is None:
            self.process.send_signal(how)
        await self.process.wait()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class Proxy:
    """Forwards connections to a port. It can cut them, keep silent, and answer requests itself."""

    def __init__(self, port: int) -> None:
        self.port, self.random = port, random.Random(7)
        self.heads: list[bytes] = []  # the first bytes of each connection
        self.cuts = 0  # connections that were cut
        self.silent = False  # whether nothing is forwarded any more
        self.cut_answers: Callable[[bytes], bool] = lambda request: False  # cut these instead of answering
        self.cut_requests: Callable[[bytes], bool] = lambda request: False  # cut these instead of forwarding
        self.gate: Callable[[bytes], bytes | None] = lambda request: None  # what to answer instead of forwarding
        self.prefix = b""  # is removed from the paths of requests
        self.cut_next = 0  # connections to cut within the next bytes that come
        self.connections: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def start(self) -> None:
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)

    async def stop(self) -> None:
        self.server.close()
        self.cut()
        for task in asyncio.all_tasks():
            if task.get_name() == f"proxy {id(self)}":
                task.cancel()

    def cut(self) -> None:
        """Resets all connections."""
        for writer in list(self.connections):
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        task.set_name(f"proxy {id(self)}")
        up: asyncio.StreamWriter | None = None
        self.connections.add(writer)
        try:
            head = await reader.read(65536)
            self.heads.append(head)
            if await self.answered(head, writer):
                return
            down, up = await asyncio.open_connection("127.0.0.1", self.port)
            async with asyncio.TaskGroup() as group:
                group.create_task(self.requests(head, reader, up, writer), name=task.get_name())
                group.create_task(self.answers(down, writer), name=task.get_name())
        except (OSError, ExceptionGroup, asyncio.CancelledError):
            pass
        finally:
            self.connections.discard(writer)
            for end in (writer, up):
                if end:
                    end.close()

    async def answered(self, request: bytes, writer: asyncio.StreamWriter) -> bool:
        """Answers a request in place of the server, if the gate says so."""
        if not request.startswith((b"GET ", b"POST ", b"PATCH ", b"DELETE ")) or (answer := self.gate(request)) is None:
            return False
        writer.write(answer)
        await writer.drain()
        return True

    async def requests(self, chunk: bytes, reader: asyncio.StreamReader, up: asyncio.StreamWriter,
                       writer: asyncio.StreamWriter) -> None:
        while chunk:
            if self.cut_requests(chunk):
                self.cuts += 1
                raise OSError("cut")
            if not self.silent:
                up.write(chunk.replace(b" " + self.prefix + b"/v1/", b" /v1/", 1))
            if self.cut_answers(chunk):
                self.cuts += 1
                self.connections.discard(writer)  # its answers are dropped
                asyncio.get_running_loop().call_later(0.1, writer.transport.abort)  # the request is carried out before
            chunk = await reader.read(65536)
            if await self.answered(chunk, writer):
                break
        raise OSError("the client left")

    async def answers(self, down: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await down.read(65536):
            if self.silent or writer not in self.connections:
                continue
            if self.cut_next:
                self.cut_next -= 1
                self.cuts += 1
                writer.write(chunk[:self.random.randrange(len(chunk))])
                if self.random.random() < 0.5:
                    await writer.drain()
                    writer.transport.abort()  # a reset, which may drop what was written
                raise OSError("cut")
            writer.write(chunk)
            await writer.drain()
        raise OSError("the server left")


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


Start = Callable[..., Any]


@pytest.fixture
def daemon(tmp_path: Path) -> Callable[..., Any]:
    """Returns a context manager that runs a daemon with the given flags."""

    @asynccontextmanager
    async def run(*flags: str) -> AsyncIterator[Daemon]:
        daemon = Daemon(tmp_path, *flags)
        await daemon.start()
        try:
            yield daemon
        finally:
            await daemon.stop()

    return run


@asynccontextmanager
async def proxied(daemon: Daemon) -> AsyncIterator[Proxy]:
    proxy = Proxy(daemon.port)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()


def answered(status: int, content: bytes) -> bytes:
    """Returns an answer for a gate."""
    return b"HTTP/1.1 %d x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (status, len(content), content)


@asynccontextmanager
async def pair(url: str, direct: str, **options: Any) -> AsyncIterator[tuple[Client, Client]]:
    """Returns a client at url, and another for publishing, at direct."""
    async with Client(url, **options) as client, Client(direct) as publisher:
        yield client, publisher
