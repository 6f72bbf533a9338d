"""Who is on a topic, as the real daemon says it, and as scripted answers do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from conftest import answered, pair, proxied, until

import pubsubpy.server
from pubsubpy import Client, Gap, Member, Presence, PresenceChange, Problem, State

TRANSPORTS = ["websocket", "stream", "poll"]
RULE = ["--topics=lobby.pattern=lobby.*", "--topics=lobby.presence=true", "--topics=lobby.presence_grace=100ms"]

RunDaemon = Callable[..., Any]


@asynccontextmanager
async def on_topic(client: Client, *names: str) -> AsyncIterator[None]:
    """Clients of these names are on lobby.a meanwhile. One without a name is anonymous."""
    async with AsyncExitStack() as connections:
        for name in names:
            query = {"topic": "lobby.a", "mode": "stream"} | ({"client": name} if name else {})
            await connections.enter_async_context(client._server.open("GET", "/v1/poll", 60.0, params=query))
        yield


def is_list(request: bytes) -> bool:
    return request.startswith(b"GET /v1/topics/lobby.a/presence ")


async def change_of(presence: Presence) -> tuple[str, str]:
    """Returns the next change, and who came or went."""
    change = await presence.get()
    return change.event, change.member.key if change.member else ""


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_who_comes_and_goes_is_told(daemon: RunDaemon, transport: str) -> None:
    async with daemon(*RULE) as server, Client(server.url, transports=[transport]) as client, on_topic(client, "ann"):
        async with client.presence("lobby.a") as presence:
            (ann,) = presence.members.values()
            assert (ann.key, ann.client, ann.subject, ann.claims, presence.count, presence.exact) == ("/ann", "ann", None, None, 1, True)
            assert await presence.get() == PresenceChange("list")
            async with on_topic(client, "bob"):
                joined = await presence.get()
                assert joined.event == "join" and joined.member and joined.member.key == "/bob" and joined.member.since >= ann.since
                assert presence.members == {"/ann": ann, "/bob": joined.member} and presence.count == 2
                before = presence.members
            assert await presence.get() == PresenceChange("leave", joined.member)
            assert presence.members == {"/ann": ann} and presence.count == 1 and len(before) == 2
            with pytest.raises(Problem, match="presence, does not change"):
                await presence.add("lobby.b")
        async for _ in presence:
            raise AssertionError("nothing comes after the end")
        assert presence.state.name == "closed"


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_presence_is_right_again_after_a_restart(daemon: RunDaemon, transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pubsubpy.server, "MAX_WAIT", 0.02)
    async with daemon(*RULE) as server, proxied(server) as proxy, Client(proxy.url, transports=[transport]) as client:
        async with on_topic(client, "ann"), client.presence("lobby.a") as presence:
            assert await change_of(presence) == ("list", "") and presence.members.keys() == {"/ann"}
            await server.stop()
            await server.start()
            async with Client(server.url) as direct, on_topic(direct, "bob"):
                proxy.port = server.port
                assert await change_of(presence) == ("list", "") and presence.members.keys() == {"/bob"}
                async with on_topic(direct, "carl"):
                    assert await change_of(presence) == ("join", "/carl") and presence.count == 2


async def test_no_change_after_the_list_is_missed(daemon: RunDaemon) -> None:
    async with daemon(*RULE) as server, proxied(server) as proxy, pair(proxy.url, server.url) as (client, direct), on_topic(direct, "ann"):
        before = answered(200, json.dumps(await direct._server.call("GET", "/v1/topics/lobby.a/presence")).encode())
        proxy.gate = lambda request: before if is_list(request) else None
        async with on_topic(direct, "bob"), client.presence("lobby.a") as presence:
            assert await change_of(presence) == ("list", "")
            assert await change_of(presence) == ("join", "/bob") and presence.members.keys() == {"/ann", "/bob"}
            async with on_topic(direct, ""):
                assert await presence.get() == PresenceChange("count") and (presence.count, presence.anonymous) == (2, 1)


async def test_a_gap_reads_the_list_again_unless_changes_were_conflated(daemon: RunDaemon) -> None:
    async with daemon(*RULE, "--history-messages=2", "--session-queue=1") as server, proxied(server) as proxy:
        async with pair(proxy.url, server.url, transports=["poll"]) as (client, direct), client.presence("lobby.a") as presence:
            assert await change_of(presence) == ("list", "")
            port, proxy.port = proxy.port, 1  # nobody is there
            proxy.cut()
            await until(lambda: presence.state.name == "waiting")
            async with on_topic(direct, "c1", "c2", "c3", "c4", "c5", "last"):
                proxy.port = port
                while "/last" not in presence.members:
                    await presence.get()
                assert presence.members.keys() == {"/c1", "/c2", "/c3", "/c4", "/c5", "/last"}
                (at,) = presence.positions
                presence._put(Gap(at.topic, "conflated", at, at), 0)  # raises nothing


async def test_a_large_audience_is_counted_and_renewed_claims_are_a_join(daemon: RunDaemon) -> None:
    whole = {"topic": "lobby.a", "position": "_presence.lobby.a@k3:1", "count": 1, "anonymous": 2, "exact": True,
             "members": [{"key": "ann/", "subject": "ann", "claims": {"name": "Ann"}, "since": 7}]}
    told: list[dict[str, Any]] = [
        {"key": "ann/", "data": {"event": "join", "subject": "ann", "claims": {"name": "Anna"}, "since": 7}},
        {"data": {"event": "of a later release"}},
        {"key": "bob/", "data": {"event": "leave", "subject": "bob"}},
        {"key": "count", "data": {"event": "count", "count": 812, "anonymous": 3, "exact": False}}]

    def gate(request: bytes) -> bytes | None:
        if is_list(request):
            return answered(200, json.dumps(whole).encode())
        if b"/poll" not in request or not told:
            return None
        lines = [json.dumps({"position": f"_presence.lobby.a@k3:{n}", "time": 1, **each}) for n, each in enumerate(told, 2)]
        told.clear()
        return answered(200, "\n".join([*lines, ""]).encode())

    async with daemon(*RULE) as server, proxied(server) as proxy, Client(proxy.url, transports=["poll"]) as client:
        proxy.gate = gate
        presence = client.presence("lobby.a")
        assert await presence.get() == PresenceChange("list")
        assert await presence.get() == PresenceChange("join", Member("ann/", "ann", None, {"name": "Anna"}, 7))
        assert await presence.get() == PresenceChange("count")
        assert (presence.count, presence.anonymous, presence.exact, [*presence.members]) == (812, 3, False, ["ann/"])


@pytest.mark.parametrize("queue", [1, 4])
async def test_a_slow_reader_has_the_members_and_one_change_in_place_of_many(daemon: RunDaemon, queue: int) -> None:
    names = [f"c{n}" for n in range(11)]
    async with daemon(*RULE) as server, proxied(server) as proxy, pair(proxy.url, server.url, queue=queue) as (client, direct):
        async with client.presence("lobby.a") as presence, on_topic(direct, *names):
            await until(lambda: presence.count == 11)
            proxy.cut()
            async with on_topic(direct, "last"):
                await until(lambda: presence.count == 12)
                assert await change_of(presence) == ("list", "") and len(presence._queue) < 4
                assert presence.members.keys() == {f"/{name}" for name in [*names, "last"]}


async def test_the_longest_list_is_read_whole(daemon: RunDaemon) -> None:
    names = ["<" * 128 + f"/{n:064}" for n in range(500)]  # the server writes each < as six bytes
    told = [{"key": name, "subject": name[:128], "client": name[129:], "claims": {"name": "<" * 245}, "since": 7} for name in names]
    whole = {"topic": "lobby.a", "position": "_presence.lobby.a@k3:1", "count": 500, "anonymous": 0, "exact": True, "members": told}
    text = json.dumps(whole).replace("<", r"\u003c").encode()
    async with daemon(*RULE) as server, proxied(server) as proxy, Client(proxy.url) as client:
        proxy.gate = lambda request: answered(200, text) if is_list(request) else None
        presence = client.presence("lobby.a")
        async with asyncio.timeout(30):
            assert await change_of(presence) == ("list", "")
        assert [*presence.members] == names and len(text) > 1_600_000


async def test_presence_ends_when_the_server_refuses_it(daemon: RunDaemon) -> None:
    async with daemon(*RULE) as server, Client(server.url) as client:
        with pytest.raises(Problem) as refusal:
            async with client.presence("hall.a"):
                pass
        assert (refusal.value.code, refusal.value.status) == ("not_found", 404)
        with pytest.raises(Problem) as refusal:
            client.presence("lobby.*")
        assert refusal.value.code == "invalid_topic"


@pytest.mark.parametrize("answer", [answered(404, b"<h1>404</h1>"), answered(503, b""), answered(200, b'{"topic":"lob'), answered(200, b"[]")],
                         ids=["a proxy's 404", "a proxy's 503", "cut", "JSON of another program"])
async def test_a_list_without_an_answer_is_asked_for_again(daemon: RunDaemon, answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pubsubpy.server, "MAX_WAIT", 0.02)
    monkeypatch.setattr(pubsubpy.server, "LONGEST_WAIT", 0.02)
    states: list[State] = []
    async with daemon(*RULE) as server, proxied(server) as proxy, Client(proxy.url, on_state=states.append) as client:
        proxy.gate = lambda request: answer if is_list(request) and len(states) < 6 else None
        async with on_topic(client, "ann"), client.presence("lobby.a") as presence:
            assert presence.members.keys() == {"/ann"} and await change_of(presence) == ("list", "")
            assert [state.name for state in states[:4]] == ["waiting", "connecting", "waiting", "connecting"]
