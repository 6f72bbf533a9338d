"""The Python code in pkg/BUILDING.md, as it stands but for the address. The hook is tested with the one in JavaScript."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sqlite3
import subprocess
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import BINARY, Start

from pubsubpy import Client, Message, Problem

DOCUMENT = (Path(__file__).parents[2] / "BUILDING.md").read_text()


def code(chapter: str, language: str = "python") -> str:
    """Returns the first code of a chapter in a language."""
    found = re.search(rf"^##+ {re.escape(chapter)}\n.*?^```{language}\n(.*?)^```$", DOCUMENT, re.M | re.S)
    assert found
    return found[1]


def run(text: str, **names: Any) -> dict[str, Any]:
    """Runs code, and returns its names."""
    exec(compile(text, "BUILDING.md", "exec"), names)
    return names


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the keys that the chapter Set up makes. Tests run in it, and find pubsubd."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{BINARY.parent}:{os.environ['PATH']}")
    commands = [line for line in code("Set up", "sh").splitlines() if not line.startswith("pubsubd serve")]
    subprocess.run(["sh", "-ec", "\n".join(commands)], check=True)
    return tmp_path


async def published(client: Client, topic: str) -> list[Any]:
    page = await client.history(topic)
    return [item.data for item in page.items if isinstance(item, Message)]


async def test_a_back_end_publishes(folder: Path, daemon: Start) -> None:
    text = code("Publish from a back end")
    async with daemon("--auth-api-keys=api-keys") as server:
        names = run("async def main():\n" + textwrap.indent(text.replace("https://push.example.com", server.url), "    "))
        await names["main"]()
        async with Client(server.url, token=(folder / "shop.key").read_text()) as client:
            assert await published(client, "inbox.alice") == [{"text": "Your order is on its way"}]


async def test_a_token_has_the_rights_that_it_says(folder: Path, daemon: Start) -> None:
    rights = json.loads(code("Sign tokens", "json"))
    token = run(code("Sign tokens"))["push_token"]("alice", "Alice", rights)
    async with daemon("--auth-keys=key.pem.pub") as server, Client(server.url, token=token) as client:
        await client.publish("chat.42", "hi")
        assert await published(client, "chat.42") == ["hi"]
        with pytest.raises(Problem, match="forbidden"):
            await client.publish("inbox.bob", "hi")


async def test_an_outbox_in_the_database_publishes_each_message_once(daemon: Start) -> None:
    names = run(code("Outbox in the database"), json=json)
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.execute(names["SCHEMA"])
        db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT)")
        orders = [{"id": 17, "state": "new"}, {"id": 17, "state": "sent"}, {"id": 18, "state": "new"}]
        for order in orders:
            names["save_order"](db, order)
        stored = db.execute("SELECT * FROM outbox ORDER BY id").fetchall()
        with pytest.raises(sqlite3.Error):
            names["save_order"](db, {"id": 18, "state": ["not a text"]})
        assert db.execute("SELECT * FROM outbox ORDER BY id").fetchall() == stored
        async with daemon() as server, Client(server.url) as client:
            await names["send_outbox"](db, client)
            assert await published(client, "orders") == orders
            assert not db.execute("SELECT * FROM outbox").fetchall()
            with db:  # as if the worker had died before it deleted the rows
                db.executemany("INSERT INTO outbox VALUES (?, ?, ?)", stored)
            await names["send_outbox"](db, client)
            assert await published(client, "orders") == orders
            names["save_order"](db, {"id": 17, "state": "new"})
            assert db.execute("SELECT id FROM outbox").fetchall() == [(len(orders) + 1,)], "an id is used once"


async def test_a_test_starts_the_daemon(folder: Path) -> None:
    text = code("Test against it").replace("@pytest.fixture", "@contextlib.contextmanager")
    start: Callable[[Path], contextlib.AbstractContextManager[str]] = run(
        text, contextlib=contextlib, json=json, subprocess=subprocess, time=time)["pubsubd"]
    with start(folder) as url:
        async with Client(url) as client:
            await client.publish("a", 1)
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
