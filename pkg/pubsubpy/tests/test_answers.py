"""The rows of pkg/wire/testdata/answers.json: what the client does with each answer."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import ssl
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Daemon, until

import pubsubpy.server
from pubsubpy import Client, Item, Message, Problem, State

ROWS = json.loads((Path(__file__).parents[2] / "wire" / "testdata" / "answers.json").read_text())
CASES = [pytest.param(row, transport, id=f"{row['name']} ({transport})") for row in ROWS
         for transport in (["http"] if row["name"].startswith("publish") else row.get("transports", ["websocket", "stream", "poll"]))]
KINDS = {"open": rb"POST /v1/sessions ", "poll": rb"GET /v1/(sessions/[^/]+/poll|ws)\?", "change": rb"PATCH /v1/sessions/",
         "publish": rb"POST /v1/topics/[^/]+/messages"}
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # without one, each client reads all certificates
TOPICS = (f"answers.{n}" for n in itertools.count())


class Faults:
    """A proxy that carries one request on each connection, and answers some of them as a row says."""

    def __init__(self, port: int, faults: list[dict[str, Any]]) -> None:
        self.port, self.faults, self.healed = port, faults, False
        self.left = [fault.get("times", 1 << 30) for fault in faults]
        self.requests: Counter[str] = Counter()
        self.kept = b""  # the answer that a cache repeats

    async def __aenter__(self) -> Faults:
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        tasks = [task for task in asyncio.all_tasks() if task.get_name() == f"faults {id(self)}"]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    def fault(self, head: bytes) -> dict[str, Any]:
        """Returns what the row answers to a request; nothing if it is forwarded."""
        kind = next((kind for kind, start in KINDS.items() if re.match(start, head)), "other")
        self.requests[kind] += 1
        if kind == "open" and self.faults[0]["on"] == "poll" and not self.requests["poll"]:
            return {}  # the row is about a session that was opened before
        for i, fault in enumerate(self.faults):
            if fault["on"] == kind and self.left[i] and not self.healed:
                self.left[i] -= 1
                return dict(fault["answer"])
        return {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        task.set_name(f"faults {id(self)}")
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", head)
            request = head + await reader.readexactly(int(length[1]) if length else 0)
            if b"Upgrade:" not in head:
                request = request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
            await self.answer(self.fault(head), request, reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def answer(self, fault: dict[str, Any], request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if "status" in fault:
            writer.write(said(fault))
        elif fault.get("cut") == "request":
            writer.transport.abort()
        elif self.kept and fault:
            writer.write(self.kept)
        else:
            down, up = await asyncio.open_connection("127.0.0.1", self.port)
            up.write(request)
            try:
                if not fault:
                    both = [asyncio.create_task(forward(*ends)) for ends in ((reader, up), (down, writer))]
                    try:
                        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        for each in both:
                            each.cancel()
                        await asyncio.gather(*both, return_exceptions=True)
                elif "repeat" in fault:
                    self.kept = await down.read()
                    writer.write(self.kept)
                elif fault["cut"] == "body":
                    head = await down.readuntil(b"\r\n\r\n")
                    body = await down.read(65536)
                    writer.write(head + body[:len(body) // 2])
                elif request.startswith(b"GET "):
                    await up.drain()  # the answer to a poll may come late
                else:
                    await down.read()
            finally:
                up.close()
        await writer.drain()


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(65536):
        writer.write(chunk)
        await writer.drain()


def said(answer: dict[str, Any]) -> bytes:
    """Returns the bytes of an answer of a row."""
    content, kind = answer.get("body", ""), answer.get("type", "text/plain")
    if "problem" in answer:
        kind, problem = "application/problem+json", {"title": "T", "status": answer["status"], "code": answer["problem"]}
        content = json.dumps(problem | {k: v for k, v in answer.items() if k == "retry_after_ms"})
    place = f"Location: {answer['location']}\r\n" if "location" in answer else ""
    return (f"HTTP/1.1 {answer['status']} Said\r\nContent-Type: {kind}\r\n{place}Connection: close\r\n"
            f"Content-Length: {len(content)}\r\n\r\n{content}").encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with asyncio.Runner() as runner:
        daemon = Daemon(tmp_path_factory.mktemp("answers"))
        runner.run(daemon.start())
        yield daemon
        runner.run(daemon.stop())


@pytest.mark.parametrize(("row", "transport"), CASES)
async def test_answer(server: Daemon, row: dict[str, Any], transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pubsubpy.server, "MAX_WAIT", 0.02)
    monkeypatch.setattr(pubsubpy.server, "LONGEST_WAIT", 0.02)
    tokens, topic = (f"t{n}" for n in itertools.count()), next(TOPICS)
    token = (lambda: next(tokens)) if row.get("token") == "fresh" else row.get("token")
    states: list[State] = []
    async with Faults(server.port, row["faults"]) as proxy, Client(server.url, ssl=NO_TLS) as direct:
        if transport == "http":
            async with Client(proxy.url, token=token, ssl=NO_TLS) as client:
                await publishes(row, topic, proxy, client, direct)
        else:
            async with Client(proxy.url, token=token, transports=[transport], on_state=states.append, ssl=NO_TLS) as client:
                await subscribes(row, topic, proxy, client, direct, states)
    first = row["faults"][0]
    assert proxy.left[0] == 0 if "times" in first else proxy.requests[first["on"]], "the row was not tried"


def data_of(item: Item) -> Any:
    assert isinstance(item, Message), item
    return item.data


async def publishes(row: dict[str, Any], topic: str, proxy: Faults, client: Client, direct: Client) -> None:
    if row["expect"] == "publishes":
        await client.publish(topic, "once")
    else:
        with pytest.raises(Problem) as refusal:
            await client.publish(topic, "never")
        assert refusal.value.code == row["code"], refusal.value
        assert ("may have been published" in str(refusal.value)) == (len(row["faults"]) > 1)
        assert proxy.requests["publish"] == 1 + sum(fault.get("times", 0) for fault in row["faults"] if fault["on"] == "publish")
    await direct.publish(topic, "end")
    got: list[Any] = []
    async for item in direct.subscribe(topic, from_="oldest"):
        got.append(data_of(item))
        if got[-1] == "end":
            break
    assert got == (["once", "end"] if row["expect"] == "publishes" else ["end"])


async def subscribes(row: dict[str, Any], topic: str, proxy: Faults, client: Client, direct: Client, states: list[State]) -> None:
    subscription = client.subscribe(topic)
    if row["expect"] == "ends":
        with pytest.raises(Problem) as refusal:
            await subscription.get()
        assert refusal.value.code == row["code"], refusal.value
        assert subscription.state.name == "closed" and row["code"] in subscription.state.reason
        return
    opened, wanted = row["faults"][0]["on"] != "open", 4
    if opened:
        await subscription.ready()
        await direct.publish(topic, 0)
    if row["expect"] == "waits":
        await until(lambda: sum(state.name == "waiting" for state in states) >= (12 if "rush" in row else 3))
        waits = [state for state in states if state.name == "waiting"]
        assert "proxy" in waits[-1].reason, waits[-1]
        if "rush" in row:
            assert proxy.requests["poll"] <= len(waits) + 2
        else:
            assert str(row["faults"][0]["answer"]["status"]) in waits[-1].reason, waits[-1]
            assert row.get("reason", "") in waits[-1].reason, waits[-1]
        assert "closed" not in [state.name for state in states]
        proxy.healed = True
    await subscription.ready()
    got = []
    for n in range(wanted):
        if n or not opened:
            await direct.publish(topic, n)
        got.append(data_of(await subscription.get()))
    assert got == list(range(wanted))
