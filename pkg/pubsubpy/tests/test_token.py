"""Tokens of the real daemon: renewed in the same session, asked for again when one expires, and refused for good."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from conftest import Daemon

from pubsubpy import Client, Message, Problem, State

TRANSPORTS = ["websocket", "stream", "poll"]
SECRET = b"0123456789abcdef0123456789ABCDEF"


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def token(expires: float) -> str:
    """Returns a token of ann for all topics."""
    claims = {"sub": "ann", "name": "Ann", "iat": min(time.time(), expires - 1), "exp": expires,
              "pubsub": [{"topics": [">"], "allow": ["subscribe", "publish"]}]}
    signed = encoded(b'{"alg":"HS256"}') + "." + encoded(json.dumps(claims).encode())
    return signed + "." + encoded(hmac.digest(SECRET, signed.encode(), hashlib.sha256))


@asynccontextmanager
async def daemon(folder: Path) -> AsyncIterator[Daemon]:
    """Runs a daemon that takes tokens, and tells who published."""
    key = folder / "key.json"
    key.write_text(json.dumps({"kty": "oct", "alg": "HS256", "k": encoded(SECRET)}))
    key.chmod(0o600)
    server = Daemon(folder, f"--auth-keys={key}", "--auth-public-claims=name", "--topics=all.pattern=>", "--topics=all.identity=true",
                    "--poll-timeout=1s", "--poll-heartbeat=500ms")
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_token_is_renewed_without_a_reconnect(tmp_path: Path, transport: str) -> None:
    states: list[State] = []
    expires, asked = time.time() + 6, [0]

    def source() -> str:
        asked[0] += 1
        return token(expires if asked[0] == 1 else expires + 3600)

    async with daemon(tmp_path) as server, Client(server.url, token=source, transports=[transport], on_state=states.append) as client:
        async with client.subscribe("a") as subscription:
            while time.time() < expires + 0.1:
                await client.publish("a", 1)
                message = await subscription.get()
                assert isinstance(message, Message) and (message.by, message.claims) == ("ann", {"name": "Ann"})
            assert asked == [2]
            assert [state.name for state in states] == ["open"]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_session_goes_on_after_its_token_expired(tmp_path: Path, transport: str) -> None:
    expires, asked = time.time() + 2.5, [0]

    async def source() -> str:
        asked[0] += 1
        if asked[0] > 1 and time.time() < expires + 0.2:
            raise OSError("the source is away")
        return token(expires if asked[0] == 1 else expires + 3600)

    async with daemon(tmp_path) as server, Client(server.url, token=source, transports=[transport]) as client:
        async with client.subscribe("a") as subscription:
            session = subscription._session
            await asyncio.sleep(expires + 0.3 - time.time())
            await client.publish("a", 2)
            message = await subscription.get()
            assert isinstance(message, Message) and message.data == 2
            assert subscription._session == session


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_token_that_is_refused_again_ends_the_subscription(tmp_path: Path, transport: str) -> None:
    async with daemon(tmp_path) as server, Client(server.url, token=token(time.time() + 1.5), transports=[transport]) as client:
        async with client.subscribe("a") as subscription:
            with pytest.raises(Problem) as refusal:
                await subscription.get()
            assert refusal.value.code == "token_expired"
            assert subscription.state.name == "closed" and "expired" in subscription.state.reason
