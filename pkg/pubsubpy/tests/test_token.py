"""Tokens of the real daemon: renewed in the same session, asked for again when one expires, and refused for good."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import re
import time
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from conftest import Daemon, answered, proxied, until

from pubsubpy import Client, Gap, Item, Message, PresenceChange, Problem, State, Subscription

TRANSPORTS = ["websocket", "stream", "poll"]
SECRET = b"0123456789abcdef0123456789ABCDEF"


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def token(expires: float, *topics: str, subject: str = "ann", allow: Sequence[str] = ("subscribe", "publish")) -> str:
    """Returns a token of ann for topics; by default, for all."""
    claims = {"sub": subject, "name": "Ann", "iat": min(time.time(), expires - 1), "exp": expires,
              "pubsub": [{"topics": topics or [">"], "allow": allow}]}
    signed = encoded(b'{"alg":"HS256"}') + "." + encoded(json.dumps(claims).encode())
    return signed + "." + encoded(hmac.digest(SECRET, signed.encode(), hashlib.sha256))


@asynccontextmanager
async def daemon(folder: Path, *flags: str) -> AsyncIterator[Daemon]:
    """Runs a daemon that takes tokens, and tells who published."""
    key = folder / "key.json"
    key.write_text(json.dumps({"kty": "oct", "alg": "HS256", "k": encoded(SECRET)}))
    key.chmod(0o600)
    server = Daemon(folder, f"--auth-keys={key}", "--auth-public-claims=name", "--topics=all.pattern=>", "--topics=all.identity=true",
                    "--poll-timeout=1s", "--poll-heartbeat=500ms", *flags)
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


async def take(subscription: Subscription[Item], number: int) -> list[Any]:
    """Returns the data of messages, and the topic and reason of gaps."""
    items = [await subscription.get() for _ in range(number)]
    return [(item.topic, item.reason) if isinstance(item, Gap) else item.data for item in items]


def rights(*tokens: str) -> Callable[[], str]:
    """Returns a function that gives these tokens out, one after the other, each once."""
    left = iter(tokens)
    return lambda: next(left)


async def renewed(client: Client, subscription: Subscription[Any], session: str) -> None:
    """Gets another token, which the session takes over if it is kept; otherwise a new session begins with it."""
    await client._server.authorize(await client._server.authorize())
    if session == "kept":
        await client._server.extend(subscription._session)
    else:
        await client._server.call("DELETE", f"/v1/sessions/{subscription._session}", None)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_token_that_is_refreshed_across_a_reconnect_is_used_from_then_on(tmp_path: Path, transport: str) -> None:
    """The function is called once for the reconnect, and the old token is not sent again."""
    old, new = token(time.time() + 3600), token(time.time() + 7200)
    problem = b'{"title":"Unauthorized","status":401,"code":"token_expired"}'
    sent: list[bytes] = []

    def gate(request: bytes) -> bytes | None:
        sent.append(request)
        if not refuses or old.encode() not in request:
            return None
        return b"HTTP/1.1 401 x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(problem), problem)

    refuses = False
    async with daemon(tmp_path) as server, proxied(server) as proxy, Client(server.url, token=new) as publisher:
        proxy.gate = gate
        async with Client(proxy.url, token=rights(old, new), transports=[transport]) as client, client.subscribe("a") as subscription:
            await until(lambda: subscription.state.name == "open")
            refuses = True
            sent.clear()
            proxy.cut()
            await publisher.publish("a", 1)
            assert await take(subscription, 1) == [1]
            uses = ["new" if new.encode() in request else "old" for request in sent if b"uthorization:" in request]
            assert "new" in uses and "old" not in uses[uses.index("new"):]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_static_token_is_replaced_before_it_expires(tmp_path: Path, transport: str) -> None:
    expires = time.time() + 2
    async with daemon(tmp_path) as server, Client(server.url, token=token(expires), transports=[transport]) as client:
        async with client.subscribe("a") as subscription:
            session = subscription._session
            client.set_token(token(time.time() + 3600))
            await asyncio.sleep(expires + 0.3 - time.time())
            await client.publish("a", 1)
            assert await take(subscription, 1) == [1] and subscription._session == session


async def test_a_new_token_heals_what_ended_with_a_static_one(tmp_path: Path) -> None:
    async with daemon(tmp_path) as server, Client(server.url, token=token(time.time() + 1.5)) as client:
        async with client.subscribe("a") as subscription:
            with pytest.raises(Problem) as refusal:
                await subscription.get()
            assert refusal.value.code == "token_expired"
        client.set_token(token(time.time() + 3600))
        await client.publish("a", 1)
        assert await take(client.subscribe("a", from_=map(str, subscription.positions)), 1) == [1]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_slow_token_pauses_no_delivery(tmp_path: Path, transport: str) -> None:
    asked, slow = [0], asyncio.Event()

    async def source() -> str:
        asked[0] += 1
        if asked[0] == 2:
            await slow.wait()
        return token(time.time() + 3600)

    async with daemon(tmp_path) as server, Client(server.url, token=source, transports=[transport]) as client:
        async with client.subscribe("a") as subscription:
            subscription._keep(1.01)  # as if it expired soon
            await until(lambda: asked[0] == 2)
            for n in range(5):
                await client.publish("a", n)
                assert await take(subscription, 1) == [n]
            slow.set()


async def test_a_token_function_that_is_cancelled_is_called_again(tmp_path: Path) -> None:
    asked = [0]
    states: list[State] = []

    async def source() -> str:
        asked[0] += 1
        if asked[0] == 1:
            raise asyncio.CancelledError  # as when a task of the application that gets the token is cancelled
        return token(time.time() + 3600)

    async with daemon(tmp_path) as server, Client(server.url, token=source, on_state=states.append) as client:
        async with client.subscribe("a"):
            assert [state.reason[:12] for state in states if state.name == "waiting"] == ["token_failed"]


@pytest.mark.parametrize("session", ["kept", "lost"])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_topics_resume_with_a_new_token_of_equal_or_lesser_rights(tmp_path: Path, transport: str, session: str) -> None:
    later = time.time() + 3600
    source = rights(token(later - 2, ">"), token(later - 1, "a", "b", "c"), token(later, "a", "c"), token(later, "c"))
    async with daemon(tmp_path) as server, Client(server.url, token=source, transports=[transport]) as client:
        async with Client(server.url, token=token(later)) as publisher, client.subscribe(["a", "b", "c"]) as subscription:

            async def renew() -> None:
                await until(lambda: subscription.state.name == "open")
                await renewed(client, subscription, session)

            await publisher.publish("a", 1)
            assert await take(subscription, 1) == [1]
            await renew()
            await publisher.publish("b", 2)
            assert await take(subscription, 1) == [2]
            await renew()
            assert await take(subscription, 1) == [("b", "forbidden")]
            for topic in "abc":
                await publisher.publish(topic, topic)
            assert sorted(await take(subscription, 2)) == ["a", "c"]
            with pytest.raises(Problem) as refusal:
                await subscription.add("b")
            assert refusal.value.code == "forbidden" and "b" in refusal.value.detail
            await publisher.publish("c", 3)
            assert await take(subscription, 1) == [3]
            await renew()
            assert await take(subscription, 1) == [("a", "forbidden")]
            await publisher.publish("c", 4)
            assert await take(subscription, 1) == [4]


@pytest.mark.parametrize("session", ["kept", "lost"])
async def test_a_pattern_that_is_refused_leaves_the_others(tmp_path: Path, session: str) -> None:
    later = time.time() + 3600
    source = rights(token(later - 1), token(later, "log.*"))
    async with daemon(tmp_path) as server, Client(server.url, token=source) as client:
        async with Client(server.url, token=token(later)) as publisher, client.subscribe(["chat.*", "log.*"]) as subscription:
            for topic in ("chat.a", "log.a"):
                await publisher.publish(topic, topic)
            assert sorted(await take(subscription, 2)) == ["chat.a", "log.a"]
            await renewed(client, subscription, session)
            assert await take(subscription, 1) == [("chat.*", "forbidden")]
            for topic in ("chat.b", "log.b"):
                await publisher.publish(topic, topic)
            subscription._restart()
            assert await take(subscription, 1) == ["log.b"]


async def test_a_topic_that_its_pattern_leaves_out_keeps_its_position(tmp_path: Path) -> None:
    """A new session is refused because of another topic. Of the halves, one has the topic without its pattern."""
    later = time.time() + 3600
    source = rights(token(later - 1), token(later, "chat.*"))
    async with daemon(tmp_path, f"--auth-revocations={tmp_path / 'revocations'}") as server, Client(server.url, token=source) as client:
        backend = token(later, subject="backend", allow=["publish", "manage"])
        async with Client(server.url, token=backend) as publisher, client.subscribe(["chat.*", "log"]) as subscription:

            async def forbid(*topics: str) -> None:
                body = {"subject": "ann", "forbid": topics} | ({"until_ms": int(later * 1000)} if topics else {})
                await publisher._server.call("POST", "/v1/subjects", lambda answer: answer, json=body)

            await publisher.publish("chat.42", 1)
            assert await take(subscription, 1) == [1]
            await forbid("chat.42")
            assert await take(subscription, 1) == [("chat.42", "forbidden")]
            await publisher.publish("chat.42", 2)
            await renewed(client, subscription, "lost")
            assert await take(subscription, 1) == [("log", "forbidden")]
            await publisher.publish("chat.1", 3)
            assert await take(subscription, 1) == [3], "chat.42 has no second gap"
            await forbid()
            subscription._restart()
            assert await take(subscription, 1) == [2], "it continues after its position"


@pytest.mark.parametrize("session", ["kept", "lost"])
async def test_a_subscription_ends_when_its_last_topic_is_refused(tmp_path: Path, session: str) -> None:
    later = time.time() + 3600
    source = rights(token(later - 1), token(later, "other"))
    async with daemon(tmp_path) as server, Client(server.url, token=source) as client, client.subscribe("a") as subscription:
        await renewed(client, subscription, session)
        with pytest.raises(Problem) as refusal:
            while True:
                item = await subscription.get()
                assert isinstance(item, Gap) and item.reason == "forbidden"
        assert refusal.value.code == "forbidden" and "a" in refusal.value.detail


@pytest.mark.parametrize("how", ["kept", "lost", "by the application"])
async def test_presence_ends_when_it_is_forbidden(tmp_path: Path, how: str) -> None:
    later = time.time() + 3600
    source = rights(token(later - 1, allow=["subscribe", "presence"]), token(later, allow=["subscribe"]))
    async with daemon(tmp_path, "--topics=all.presence=true", f"--auth-revocations={tmp_path / 'revocations'}") as server:
        backend = token(later, subject="backend", allow=["manage"])
        async with Client(server.url, token=source) as client, Client(server.url, token=backend) as manager:
            async with client.presence("a") as presence, client.subscribe("a"):
                assert await presence.get() == PresenceChange("list")
                change = await presence.get()
                assert change.member and (change.event, change.member.subject, change.member.claims) == ("join", "ann", {"name": "Ann"})
                if how == "by the application":
                    body = {"subject": "ann", "forbid": ["a"], "until_ms": int(later * 1000), "reason": "no more spam"}
                    await manager._server.call("POST", "/v1/subjects", json=body)
                else:
                    await renewed(client, presence, how)
                with pytest.raises(Problem) as refusal:
                    await presence.get()
                assert refusal.value.code == "forbidden" and presence.state.name == "closed"
                assert ("no more spam" in refusal.value.detail) == (how == "by the application")


async def test_a_history_needs_its_right(tmp_path: Path) -> None:
    later = time.time() + 3600
    async with daemon(tmp_path) as server, Client(server.url, token=token(later)) as ann:
        await ann.publish("a", 1)
        with pytest.raises(Problem) as refusal:
            await ann.history("a")
        assert (refusal.value.code, refusal.value.status) == ("forbidden", 403)
        async with Client(server.url, token=token(later, allow=["history"])) as reader:
            (message,) = (await reader.history("a")).items
            assert isinstance(message, Message) and (message.data, message.by) == (1, "ann")


@asynccontextmanager
async def scripted(*answers: bytes) -> AsyncIterator[tuple[str, list[str]]]:
    """Runs a server of these answers, then of the last one. Yields its URL, and the tokens that come."""
    came: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):  # also if the client leaves without a request
            head = await reader.readuntil(b"\r\n\r\n")
            (length,) = re.findall(rb"(?i)content-length: (\d+)", head) or [b"0"]
            await reader.readexactly(int(length))
            came.extend(re.findall("(?i)\r\nauthorization: (.*)\r\n", head.decode()))
            writer.write(answers[min(len(came), len(answers)) - 1])

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", came


PUBLISHED = answered(200, b'{"position":"a@k3:1","time":1}')
BAD = ["", " \n", "psk_secret\nX-Other: 1", "psk_secret psk_other", "Bearer psk_secret", "psk_s\u00e9cret", "psk_secret\0", b"psk_secret"]


@pytest.mark.parametrize("whole", ["psk_secret\n", " psk_secret\r\n", "\tpsk_secret\u00a0", "psk_secret"])
@pytest.mark.parametrize("source", ["constant", "function", "set_token"])
async def test_white_space_around_a_token_is_removed(source: str, whole: str) -> None:
    async with scripted(PUBLISHED) as (url, came):
        async with Client(url, token=whole if source == "constant" else lambda: whole) as client:
            if source == "set_token":
                client.set_token(whole)
            await client.publish("a", 1)
    assert came == ["Bearer psk_secret"]


@pytest.mark.parametrize("bad", BAD)
async def test_what_cannot_be_a_token_is_refused_at_once(bad: Any) -> None:
    async with scripted(PUBLISHED) as (url, came):
        with pytest.raises(ValueError, match="visible ASCII") as refusal:
            Client(url, token=bad)
        assert "psk" not in "".join(traceback.format_exception_only(refusal.value)) and not refusal.value.__context__
        async with Client(url, token="psk_good") as client:
            with pytest.raises(ValueError, match="visible ASCII"):
                client.set_token(bad)
            await client.publish("a", 1)
    assert came == ["Bearer psk_good"], "the token in use stays"


@pytest.mark.parametrize("bad", [*BAD, None])
async def test_a_function_that_returns_no_token_is_called_again(monkeypatch: pytest.MonkeyPatch, bad: Any) -> None:
    """A subscription says so, and a publish waits. Neither shows what the function returned."""
    monkeypatch.setattr("pubsubpy.subscription.backoff", lambda *_: 0.01)
    monkeypatch.setattr("pubsubpy.client.backoff", lambda *_: 0.01)
    calls, states = [0], list[State]()

    async def source() -> Any:
        calls[0] += 1
        return "psk_good" if calls[0] > 4 else bad

    async with scripted(PUBLISHED) as (url, came), Client(url, token=source, on_state=states.append) as client:
        subscription = client.subscribe("a")
        await until(lambda: sum(state.name == "waiting" for state in states) >= 2)
        subscription.close()
        assert calls[0] >= 2 and not came
        calls[0] = 2
        await client.publish("a", 1)
        assert calls[0] == 5 and came == ["Bearer psk_good"]
    reasons = [state.reason for state in states if state.name == "waiting"]
    assert all(reason.startswith("token_failed: the token function returned no token: ") for reason in reasons)
    assert not any("psk" in reason for reason in reasons)


async def test_the_reason_does_not_quote_what_a_function_failed_to_read() -> None:
    """repr of a UnicodeDecodeError has all bytes of the file."""
    states: list[State] = []
    async with Client("http://127.0.0.1:9", token=lambda: b"psk_secret\xff".decode(), on_state=states.append) as client:
        client.subscribe("a")
        await until(lambda: any(state.name == "waiting" for state in states))
    assert "UnicodeDecodeError" in states[-2].reason and "psk" not in states[-2].reason


async def test_a_function_that_returns_no_token_later_leaves_the_one_in_use() -> None:
    """The server refuses a token, and the function gives a bad one before the next."""
    tokens = rights("psk_old", "psk_secret psk_other", "psk_new")
    problem = b'{"title":"Unauthorized","status":401,"code":"token_expired"}'
    async with scripted(answered(401, problem), answered(401, problem), PUBLISHED) as (url, came), Client(url, token=tokens) as client:
        await client.publish("a", 1)
    assert came == ["Bearer psk_old", "Bearer psk_old", "Bearer psk_new"]


async def test_a_publish_that_is_given_up_tells_why_it_waited() -> None:
    async with scripted(answered(503, b"away")) as (url, came), Client(url, token="psk_secret") as client:
        with pytest.raises(TimeoutError) as end:
            async with asyncio.timeout(None) as limit:
                second = asyncio.create_task(until(lambda: len(came) >= 2))
                second.add_done_callback(lambda _: limit.reschedule(0.0))
                await client.publish("a", 1)
    shown = "".join(traceback.format_exception(end.value))
    assert "The client retried after this: unexpected_answer: 503" in shown and "psk" not in shown
