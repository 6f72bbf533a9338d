"""The client against the real daemon, through a proxy where the network is to blame."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Daemon, answered, pair, proxied, until

import pubsubpy.subscription
from pubsubpy import Client, Gap, Item, Message, Position, Problem, Publication, Published, State, Subscription
from pubsubpy.server import backoff
from pubsubpy.wire import Moved, decode

TRANSPORTS = ["websocket", "stream", "poll"]
HOLDS_ALL = ["--history-messages=1000000", "--history-bytes=256MiB", "--history-age=1h"]
# Cuts for each transport. With EXHAUSTIVE=1 there are 2,000 in all.
SUBSCRIBERS = 8
CUTS = 667 if os.environ.get("EXHAUSTIVE") else 40

RunDaemon = Callable[..., Any]


async def take(subscription: Subscription[Any], number: int) -> list[Any]:
    return [await subscription.get() for _ in range(number)]


def data_of(items: list[Any]) -> list[Any]:
    for item in items:
        assert isinstance(item, Message), item
    return [item.data for item in items]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_every_payload_arrives(daemon: RunDaemon, transport: str) -> None:
    async with daemon() as server, Client(server.url, transports=[transport]) as client:
        async with client.subscribe("demo.a") as subscription:
            published = await client.publish("demo.a", {"n": 1, "text": "h\u00e9\u2028\u0085"}, key="k",
                                             idempotency_key='a "quoted\\" id')
            await client.publish("demo.a", "closing bell", type="text/plain")
            await client.publish("demo.a", b"\x00\xff")
            await client.publish("demo.a", None)
            for octets in (bytearray(b"\x01"), memoryview(b"\x02")):
                await client.publish("demo.a", octets)
            one, two, three, four = await take(subscription, 4)
            assert [(m.data, m.type) for m in await take(subscription, 2)] == [(b"\x01", "application/octet-stream"), (b"\x02", "application/octet-stream")]
            assert one == Message(published.position, published.time, {"n": 1, "text": "h\u00e9\u2028\u0085"},
                                  id='a "quoted\\" id', key="k")
            assert (two.data, two.type) == ("closing bell", "text/plain")
            assert (three.data, three.type) == (b"\x00\xff", "application/octet-stream")
            assert (four.data, four.type) == (None, None)
            assert subscription.state == State("open", transport)
            assert [position.offset for position in subscription.positions] == [four.position.offset + 2]


async def test_the_largest_message_arrives_with_escapes(daemon: RunDaemon) -> None:
    text = '\x01' * (8 << 20)  # JSON takes six times as many bytes
    async with daemon("--message-bytes=8MiB", "--history-bytes=16MiB") as server, Client(server.url, transports=["websocket"]) as client:
        async with client.subscribe("a") as subscription:
            await client.publish("a", text, type="text/plain")
            assert data_of([await subscription.get()]) == [text]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_acks_are_sent_before_the_server_needs_them(daemon: RunDaemon, transport: str) -> None:
    async with daemon("--session-unacked=8") as server, Client(server.url, transports=[transport]) as client:
        async with client.subscribe("a") as subscription:
            for n in range(50):
                await client.publish("a", n)
            assert data_of(await take(subscription, 50)) == list(range(50))


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_proxy_may_serve_it_below_a_prefix(daemon: RunDaemon, transport: str) -> None:
    async with daemon() as server, proxied(server) as proxy:
        proxy.prefix = b"/push"
        async with Client(proxy.url + "/push", transports=[transport]) as client, client.subscribe("a") as subscription:
            await client.publish("a", 1)
            assert data_of(await take(subscription, 1)) == [1]
            assert subscription.state == State("open", transport)
        assert all(b" /push/v1/" in head for head in proxy.heads)


async def test_where_a_subscription_starts(daemon: RunDaemon) -> None:
    async with daemon() as server, Client(server.url) as client:
        marks = [(await client.publish("a", n)).position for n in range(4)]
        await client.publish("b", "old")
        assert data_of(await take(client.subscribe("a", from_="oldest"), 4)) == [0, 1, 2, 3]
        assert data_of(await take(client.subscribe("a", from_=marks[1]), 2)) == [2, 3]
        async with client.subscribe(["a", "b"], from_=[marks[2]]) as both:
            await client.publish("b", "new")
            assert sorted(data_of(await take(both, 2)), key=str) == [3, "new"]
            later = client.subscribe(["a", "b"], from_=both.positions)
        await client.publish("a", 4)
        assert data_of(await take(later, 1)) == [4]


async def test_leaving_a_loop_closes_the_subscription(daemon: RunDaemon) -> None:
    async with daemon() as server, Client(server.url) as client:
        await client.publish("a", 1)
        subscription = client.subscribe("a", from_="oldest")
        async for message in subscription:
            assert isinstance(message, Message)
            break
        await until(lambda: subscription.state.name == "closed")
        with pytest.raises(Problem) as end:
            await subscription.get()
        assert end.value.code == "closed"


async def test_what_the_server_refuses_is_told(daemon: RunDaemon) -> None:
    async with daemon("--limits-subscriptions=2") as server, Client(server.url) as client:
        with pytest.raises(Problem) as refusal:
            await client.publish("_sys", 1)
        assert (refusal.value.code, refusal.value.status) == ("reserved_topic", 403)
        for wrong in ({"idempotency_key": "h\u00e9"}, {"idempotency_key": "a\nb"}, {"idempotency_key": "x" * 256},
                      {"type": "text/plain\r\nX: y"}, {"ttl": 0}):
            with pytest.raises(Problem) as refusal:
                await client.publish("a", "x", **wrong)
            assert refusal.value.code == "invalid_request"
        with pytest.raises(Problem) as refusal:
            await client.publish("a", {"x": 1}, type="text/plain")
        assert refusal.value.code == "invalid_body" and "leave out the type" in str(refusal.value)
        for data in ({1}, object(), float("nan"), [bytearray(b"deep")]):
            with pytest.raises(Problem, match="is not JSON.*publish a JSON value or bytes") as refusal:
                await client.publish("a", data)
            assert refusal.value.code == "invalid_body"
        old: dict[str, Any] = {"id": "k"}
        with pytest.raises(TypeError, match="unexpected keyword argument 'id'"):
            await client.publish("a", 1, **old)
        starts: list[Any] = [5, [5], "5", b"a@k:1"]
        for start in starts:
            with pytest.raises(Problem, match="is not a position.*write topic@epoch:offset, now or oldest") as refusal:
                client.subscribe("a", from_=start)
            assert refusal.value.code == "invalid_position"
        with pytest.raises(Problem) as refusal:
            await client.subscribe(["a", "b", "c"]).get()
        assert refusal.value.code == "too_many_subscriptions"
        with pytest.raises(Problem) as refusal:
            client.subscribe("a..b")
        assert refusal.value.code == "invalid_topic"
        async with client.subscribe(["a", "b"]) as subscription:
            with pytest.raises(Problem) as refusal:
                await subscription.add("c")
            assert refusal.value.code == "too_many_subscriptions"
            await client.publish("a", 1)
            assert data_of(await take(subscription, 1)) == [1]


async def receive_through_cuts(server: Daemon, transport: str, cuts: int, got: dict[str, list[int]], done: asyncio.Event) -> int:
    """Subscribes through a proxy that cuts each connection that works. Returns the number of cuts."""
    async with proxied(server) as proxy, Client(proxy.url, transports=[transport]) as client:
        async with client.subscribe(["a", "b"], from_="oldest") as subscription:
            came = ends = 0

            async def cut() -> None:
                before = 0
                while proxy.cuts < cuts:
                    if came > before:
                        before, proxy.cut_next = came, 1
                    await asyncio.sleep(0.002)
                proxy.cut_next = 0
                done.set()

            cutting = asyncio.create_task(cut())
            async for item in subscription:
                assert isinstance(item, Message), item
                got[item.topic].append(item.data)
                came += 1
                ends += item.data == 0
                if ends == 2:
                    break
            await cutting
        return proxy.cuts


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_cut_connections_lose_and_repeat_nothing(daemon: RunDaemon, transport: str) -> None:
    """A publisher publishes while the subscribers' connections are cut, within frames and between them."""
    expected: dict[str, list[int]] = {"a": [], "b": []}
    got: list[dict[str, list[int]]] = [{"a": [], "b": []} for _ in range(SUBSCRIBERS)]
    done = [asyncio.Event() for _ in got]
    async with daemon(*HOLDS_ALL) as server, Client(server.url) as publisher:
        readers = [asyncio.create_task(receive_through_cuts(server, transport, CUTS // SUBSCRIBERS + 1, *g)) for g in zip(got, done)]
        n = 0
        while not all(event.is_set() for event in done):
            assert not any(reader.done() for reader in readers), [reader.exception() for reader in readers if reader.done()]
            n += 1
            topic = "ab"[n % 2]
            await publisher.publish(topic, n)
            expected[topic].append(n)
            await asyncio.sleep(0.005)
        for topic in "ab":
            await publisher.publish(topic, 0)
            expected[topic].append(0)
        cuts = sum(await asyncio.gather(*readers))
    assert all(each == expected for each in got)
    messages = sum(len(each["a"]) + len(each["b"]) for each in got)
    print(f"{transport}: {cuts} cuts, {messages} messages, 0 lost, 0 repeated, 0 out of order")


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_restart_with_state_loses_nothing(daemon: RunDaemon, tmp_path: Path, transport: str) -> None:
    async with daemon(f"--store={tmp_path / 'store'}", "--store-sync=stop", "--drain-window=1s") as server, proxied(server) as proxy:
        async with Client(proxy.url, transports=[transport]) as client, client.subscribe("a") as subscription:
            await client.publish("a", 1)
            assert data_of(await take(subscription, 1)) == [1]
            await server.stop(signal.SIGTERM)
            waiting = asyncio.create_task(client.publish("a", 2))  # for the server to come back
            await server.start()
            proxy.port = server.port
            await waiting
            await client.publish("a", 3)
            assert data_of(await take(subscription, 2)) == [2, 3]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_restart_without_state_is_a_gap(daemon: RunDaemon, transport: str) -> None:
    async with daemon() as server, proxied(server) as proxy:
        async with pair(proxy.url, server.url, transports=[transport]) as (client, publisher), client.subscribe("a") as subscription:
            await publisher.publish("a", 1)
            assert data_of(await take(subscription, 1)) == [1]
            await server.stop()
            await server.start()
            async with Client(server.url) as publisher:
                await publisher.publish("a", 2)
            proxy.port = server.port
            gap, message = await take(subscription, 2)
            assert isinstance(gap, Gap) and gap.reason == "restarted" and message.data == 2


async def test_gaps_are_items(daemon: RunDaemon) -> None:
    async with daemon("--history-messages=3") as server, Client(server.url) as client:
        first = (await client.publish("a", 0)).position
        for n in range(1, 6):
            await client.publish("a", n)
        gap, *messages = await take(client.subscribe("a", from_=first), 4)
        assert isinstance(gap, Gap) and (gap.reason, gap.topic, gap.after) == ("evicted", "a", first)
        assert data_of(messages) == [3, 4, 5] and gap.position.offset == messages[0].position.offset - 1

        mark = (await client.publish("b", 0)).position
        await client.publish("b", 1, ttl=1)
        await client.publish("b", 2)
        await asyncio.sleep(1.1)  # the message expires
        gap, message = await take(client.subscribe("b", from_=mark), 2)
        assert isinstance(gap, Gap) and gap.reason == "expired" and message.data == 2

        async with client.subscribe("c") as subscription:
            await client.publish("c", 1)
            await take(subscription, 1)
            await client._server.call("DELETE", "/v1/topics/c")
            (gap,) = await take(subscription, 1)
            assert isinstance(gap, Gap) and gap.reason == "deleted"

        gap, message = await take(client.subscribe("d", from_="d@k3:17"), 1) + [await client.publish("d", 1)]
        assert isinstance(gap, Gap) and gap.reason == "restarted" and gap.after == "d@k3:17"

        async with client.subscribe("e", max_rate="2/s") as subscription:
            await client.publish("e", 0)
            assert data_of(await take(subscription, 1)) == [0]  # else it may be conflated too
            for n in range(1, 4):
                await client.publish("e", n)
            gap, last = await take(subscription, 2)
            assert isinstance(gap, Gap) and gap.reason == "conflated" and last.data == 3


async def test_a_history_is_read_backwards_and_goes_on_as_a_subscription(daemon: RunDaemon) -> None:
    async with daemon() as server, Client(server.url) as client:
        assert await client.history("a") == ([], None, False, "oldest"), "a topic that does not exist"
        for n in range(12):
            await client.publish("a", n)
        page = newest = await client.history("a", limit=5)
        pages = [data_of(page.items)]
        while page.more:
            page = await client.history("a", page.before, 5)
            pages.append(data_of(page.items))
        assert pages == [[7, 8, 9, 10, 11], [2, 3, 4, 5, 6], [0, 1]]
        assert data_of((await client.history("a", newest.items[3].position, limit=1)).items) == [9]
        await client.publish("a", 12)
        assert data_of(await take(client.subscribe("a", from_=newest.next), 1)) == [12]
        await client._server.call("DELETE", "/v1/topics/a")
        empty = await client.history("a")
        assert not empty.items and not empty.more and empty.next == empty.before
        await client.publish("a", 13)
        assert data_of(await take(client.subscribe("a", from_=empty.next), 1)) == [13]
        (gap,), before, more, after = await client.history("a", "a@k3:17")
        assert isinstance(gap, Gap) and gap.reason == "restarted" and gap.position == before == after and not more


async def test_what_a_history_cannot_be_is_told() -> None:
    async with Client("http://127.0.0.1:1") as client:
        limits: list[Any] = [0, 1001, True, "5"]
        for limit in limits:
            with pytest.raises(Problem, match="limit must be 1 to 1000") as refusal:
                await client.history("a", limit=limit)
            assert refusal.value.code == "invalid_request"
        for before in ("b@k3:1", "oldest", ""):
            with pytest.raises(Problem, match="position") as refusal:
                await client.history("a", before)
            assert refusal.value.code == "invalid_position"
        with pytest.raises(Problem) as refusal:
            await client.history("a.*")
        assert refusal.value.code == "invalid_topic"
        waiting = asyncio.create_task(client.history("a"))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(Problem) as refusal:
            await waiting
        assert refusal.value.code == "closed"


async def test_a_history_is_asked_for_until_it_is_whole(daemon: RunDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is cut has no done, even if the answer says that it is complete. Meanwhile the daemon is replaced."""
    line = b'{"position":"a@k3:1","time":1,"data":1}\n'
    later = b'{"title":"x","status":503,"code":"overloaded"}'
    monkeypatch.setattr(pubsubpy.server, "MAX_WAIT", 0.02)
    answers = [answered(200, line), answered(200, line[:20]), answered(200, b""), answered(500, b""), answered(503, later)]
    async with daemon() as server, proxied(server) as proxy, Client(server.url) as publisher:
        await publisher.publish("a", "before")
        async with Client(proxy.url) as client:
            client._server.limits["idempotency_ms"] = 1  # bounds only what must not be repeated later
            proxy.gate = lambda request: answers.pop(0) if answers else None
            port, proxy.port = proxy.port, 1  # nobody is there
            reading = asyncio.create_task(client.history("a"))
            await until(lambda: not answers or reading.done())
            proxy.port = port
            assert data_of((await reading).items) == ["before"]
            proxy.gate = lambda request: answered(404, b"<h1>404</h1>")
            with pytest.raises(Problem) as refusal:
                await client.history("a")
            assert refusal.value.code == "unexpected_answer"


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_slow_reader_gets_everything_and_holds_little(daemon: RunDaemon, transport: str) -> None:
    async with daemon(*HOLDS_ALL) as server, Client(server.url, transports=[transport], queue=10) as client:
        async with client.subscribe("a") as subscription:
            for n in range(200):
                await client.publish("a", n)
            for n in range(200):
                assert len(subscription._queue) <= 10
                assert data_of(await take(subscription, 1)) == [n]


async def test_a_slow_reader_is_told_what_history_lost(daemon: RunDaemon) -> None:
    async with daemon("--history-messages=20", "--session-queue=2") as server, Client(server.url, queue=5) as client:
        async with client.subscribe("a") as subscription:
            for n in range(200):
                await client.publish("a", n)
            items = await take(subscription, 5)
            had = items[-1].position.offset
            while had < 200:
                item = await subscription.get()
                start = item.after.offset if isinstance(item, Gap) else item.position.offset - 1
                assert start == had, "nothing is lost without a gap, and nothing comes twice"
                had = item.position.offset
                items.append(item)
            assert [item.reason for item in items if isinstance(item, Gap)]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_topics_come_and_go_without_a_new_connection(daemon: RunDaemon, transport: str) -> None:
    async with daemon() as server, proxied(server) as proxy, Client(proxy.url, transports=[transport]) as client:
        async with client.subscribe("a") as subscription:
            await until(lambda: subscription.state.name == "open")
            session = subscription._session
            mark = (await client.publish("b", 0)).position
            await client.publish("b", 1)
            await subscription.add(["b", "c"], from_=[mark])
            await client.publish("c", 2)
            await client.publish("a", 3)
            assert sorted(data_of(await take(subscription, 3))) == [1, 2, 3]
            await subscription.remove(["a", "never"])
            await client.publish("a", 4)
            await client.publish("c", 5)
            assert data_of(await take(subscription, 1)) == [5]
            assert subscription._session == session
            await client.publish("b", 6)
            await until(lambda: len(subscription._queue) == 1)
            await subscription.remove("b")
            await subscription.add("d")
            await client.publish("d", 7)
            assert data_of(await take(subscription, 1)) == [7], "what waits of a removed topic is dropped"
            assert subscription._session == session
            assert {position.topic for position in subscription.positions} == {"c", "d"}
            # A topic that the session had before needs another session.
            await subscription.add("a", from_="oldest")
            assert data_of(await take(subscription, 2)) == [3, 4]
            assert subscription._session != session


@pytest.mark.parametrize("answer", ["cut, and carried out", "cut", "empty", "a page", "JSON of another program"])
async def test_a_change_without_an_answer_is_made(daemon: RunDaemon, answer: str) -> None:
    def first(request: bytes) -> bool:
        return request.startswith(b"PATCH") and proxy.cuts == 0

    def instead(request: bytes) -> bytes | None:
        if not first(request):
            return None
        proxy.cuts += 1
        return answered(200, {"a page": b"<h1>Welcome</h1>", "JSON of another program": b'{"ok":true}'}.get(answer, b""))

    async with daemon() as server, proxied(server) as proxy, pair(proxy.url, server.url) as (client, publisher):
        async with client.subscribe(["a", "b"]) as subscription:
            await until(lambda: subscription.state.name == "open")
            if answer == "cut":
                proxy.cut_requests = first
            elif answer == "cut, and carried out":
                proxy.cut_answers = first
            else:
                proxy.gate = instead
            await subscription.add("c", from_="oldest")
            await subscription.remove("b")
            assert proxy.cuts == 1
            for topic in "bca":
                await publisher.publish(topic, topic)
            assert sorted(data_of(await take(subscription, 2))) == ["a", "c"]


async def test_a_new_session_has_only_the_topics_that_are_left(daemon: RunDaemon) -> None:
    async with daemon() as server, Client(server.url) as client, client.subscribe(["a", "b"]) as subscription:
        subscription._names.pop("b")  # as when the session is replaced during remove()
        subscription._restart()
        await subscription.ready()
        state = await client._server.call("GET", f"/v1/sessions/{subscription._session}")
        assert [each["topic"] for each in state["subscriptions"]] == ["a"]


async def test_what_comes_again_is_left_out(daemon: RunDaemon) -> None:
    """Only a gap, restarted, leads back: the topic's numbering is behind the position."""
    async with daemon() as server, Client(server.url) as client, client.subscribe("a", from_="a@k3:4") as subscription:
        subscription._task.cancel()
        subscription._queue.clear()
        subscription._came["a"] = Position("a@k3:4")
        for line in ('{"position":"a@k3:5","time":1,"data":5}', '{"position":"a@k3:5","time":1,"data":5}',
                     '{"gap":{"topic":"a","reason":"restarted","after":"a@k3:5","position":"a@k3:2"}}',
                     '{"gap":{"topic":"a","reason":"restarted","after":"a@k3:5","position":"a@k3:2"}}',
                     '{"position":"a@k3:3","time":1,"data":3}', '{"position":"b@k3:9","time":1,"data":9}'):
            subscription._take(decode(line), len(line))
        five, gap, three = await take(subscription, 3)
        assert (five.data, gap.reason, three.data) == (5, "restarted", 3) and not subscription._queue
        left = '{"gap":{"topic":"a","reason":"unfollowed","after":"a@k3:%d","position":"a@k3:%d"}}'
        for line in (left % (2, 2), left % (3, 3)):
            subscription._take(decode(line), len(line))
        (gap,) = await take(subscription, 1)
        assert str(gap.position) == "a@k3:3" and not subscription._queue, "only the second is news"


async def test_patterns(daemon: RunDaemon) -> None:
    async with daemon() as server, Client(server.url) as client:
        await client.publish("chat.old", 1)
        async with client.subscribe("chat.*") as subscription:
            await client.publish("chat.old", 2)
            await client.publish("chat.new", 3)
            await client.publish("other", 4)
            assert sorted(data_of(await take(subscription, 2))) == [2, 3]
            positions = subscription.positions
            with pytest.raises(Problem):
                await subscription.add("other")
        await client.publish("chat.new", 5)
        await client.publish("chat.newest", 6)
        assert sorted(data_of(await take(client.subscribe("chat.*", from_=map(str, positions)), 2))) == [5, 6]


async def test_patterns_resume_after_cuts(daemon: RunDaemon) -> None:
    async with daemon() as server, proxied(server) as proxy, pair(proxy.url, server.url) as (client, publisher):
        async with client.subscribe("chat.>") as subscription:
            for n in range(12):
                await publisher.publish(f"chat.{n % 5}", n)
                assert data_of(await take(subscription, 1)) == [n]
                if n % 3 == 2:
                    subscription._restart()  # as when a session is lost
                    proxy.cut()


async def test_many_topics_of_a_pattern_do_not_pile_up(daemon: RunDaemon) -> None:
    async with daemon("--history-age=100ms") as server, Client(server.url) as client:
        async with client.subscribe("chat.*") as subscription:
            subscription._crowd = 10
            for n in range(30):
                await client.publish(f"chat.{n}", n)
            assert sorted(data_of(await take(subscription, 30))) == list(range(30))
            assert subscription._crowd >= 500, "a new session was opened"
            while len(subscription._came) > 1:  # until the server has forgotten them
                await asyncio.sleep(0.2)
                subscription._restart()
                await subscription.ready()
            assert [position.topic for position in subscription.positions] == ["chat.*"]


async def test_a_topic_that_is_refused_with_its_pattern_is_given_up(daemon: RunDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """An application refuses whatever names chat.42, but not the pattern. To leave it to the pattern would go on for ever."""
    async with daemon() as server, Client(server.url) as client, client.subscribe("chat.*") as subscription:
        for n in range(40, 44):
            await client.publish(f"chat.{n}", n)
        assert sorted(data_of(await take(subscription, 4))) == [40, 41, 42, 43]
        begin, openings = client._server.begin, 0

        async def refusing(topics: list[Any]) -> Any:
            nonlocal openings
            openings += 1
            if any(topic.startswith("chat.42@") for topic in topics):
                raise Problem("forbidden", "not this one", status=403)
            return await begin(topics)

        monkeypatch.setattr(client._server, "begin", refusing)
        subscription._restart()
        (gap,) = await take(subscription, 1)
        assert isinstance(gap, Gap) and (gap.topic, gap.reason) == ("chat.42", "forbidden")
        assert openings <= 10
        await client.publish("chat.41", 5)
        assert sorted(data_of(await take(subscription, 2))) == [5, 42], "the pattern brings a topic that is not named from its first message on"


async def test_topics_of_a_pattern_that_do_not_fit_are_gaps(daemon: RunDaemon) -> None:
    async with daemon("--limits-pattern-bytes=600") as server, Client(server.url) as client:
        async with client.subscribe("chat.*") as subscription:
            await subscription.ready()
            for topic in ("chat.1", "chat.2", "chat.3"):
                await client.publish(topic, topic)
            items = await take(subscription, 3)
            (left,) = [item for item in items if isinstance(item, Gap)]
            assert (left.topic, left.reason, left.is_left_out) == ("chat.3", "unfollowed", True)
            await client.publish("chat.3", "missed")
            await client.publish("chat.1", "more")
            assert data_of(await take(subscription, 1)) == ["more"]
            assert sorted(position.topic for position in subscription.positions) == ["chat.*", "chat.1", "chat.2"]
            subscription._restart()  # a new session finds the same
            await client.publish("chat.2", "again")
            (gap, message) = await take(subscription, 2)
            assert isinstance(gap, Gap) and (gap.topic, gap.is_left_out) == ("chat.*", True)
            assert data_of([message]) == ["again"]
            left_out = '{"gap":{"topic":"chat.2","reason":"unfollowed","after":"chat.2@k3:7","position":"chat.2@k3:7"}}'
            subscription._take(decode(left_out), len(left_out))  # as when it was forgotten and created again
            await take(subscription, 1)
            assert sorted(position.topic for position in subscription.positions) == ["chat.*", "chat.1"]


async def test_own_messages_are_left_out(daemon: RunDaemon) -> None:
    async with daemon() as server, pair(server.url, server.url) as (client, other):
        async with client.subscribe("a", echo=False) as subscription:
            await client.publish("a", "mine")
            await other.publish("a", "theirs")
            await client.publish("a", "named", idempotency_key="named")
            assert data_of(await take(subscription, 2)) == ["theirs", "named"]


async def test_own_messages_move_the_position(daemon: RunDaemon) -> None:
    """Otherwise a later subscription begins before what the history holds, and gets a gap although nothing is lost."""
    async with daemon("--history-messages=10") as server, pair(server.url, server.url) as (client, other):
        async with client.subscribe(["a", "b"], echo=False, from_="now") as subscription:
            for n in range(30):
                last = await client.publish("a", n)
            await until(lambda: last.position in subscription.positions)
            # Behind an item that waits, the position waits, too.
            await other.publish("a", "theirs")
            for n in range(5):
                last = await client.publish("a", n)
            await until(lambda: subscription._came["a"] == last.position)
            assert last.position not in subscription.positions
            assert data_of(await take(subscription, 1)) == ["theirs"] and last.position in subscription.positions
            positions = subscription.positions
        await other.publish("b", "next")
        assert data_of(await take(client.subscribe(["a", "b"], from_=positions), 1)) == ["next"]


async def test_positions_move_past_messages_that_the_server_leaves_out(daemon: RunDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    async with daemon("--history-messages=10", "--poll-timeout=200ms") as server, Client(server.url, transports=["poll"]) as client:
        call = client._server.call

        async def without_own(method: str, path: str, *args: Any, **request: Any) -> Any:
            if path == "/v1/sessions":
                request["json"] |= {"client": "me", "echo": False}
            return await call(method, path, *args, **request)

        monkeypatch.setattr(client._server, "call", without_own)
        async with client.subscribe(["a", "b"]) as subscription:
            for n in range(30):
                last = await call("POST", "/v1/topics/a/messages", params={"client": "me"}, json=n)
            await until(lambda: last["position"] in subscription.positions)
            positions = subscription.positions
        await client.publish("b", "next")
        assert data_of(await take(client.subscribe(["a", "b"], from_=positions), 1)) == ["next"]


async def test_a_position_moves_behind_an_item_that_waits(daemon: RunDaemon) -> None:
    async with daemon() as server, Client(server.url) as client, client.subscribe("a", from_="a@k3:4") as subscription:
        subscription._task.cancel()
        subscription._queue.clear()
        subscription._waiting.clear()
        subscription._came["a"] = subscription._positions["a"] = Position("a@k3:4")

        def moved(*texts: str) -> None:
            subscription._take(Moved([Position(text) for text in texts]), 0)

        count = subscription._count
        moved("a@k3:5", "c@k3:9")
        moved("a@k3:3")
        moved("a@k4:9")
        assert subscription.positions == ["a@k3:5"]
        subscription._take(Message(Position("a@k3:6"), 1, "six"), 0)
        moved("a@k3:7")
        assert subscription.positions == ["a@k3:5"] and subscription._came == {"a": "a@k3:7"}
        subscription._take(Message(Position("a@k3:7"), 1, "it is past it"), 0)
        assert data_of(await take(subscription, 1)) == ["six"]
        assert subscription.positions == ["a@k3:7"] and subscription._count == count + 2 and not subscription._queue


async def test_a_publish_whose_answer_is_lost_is_made_once(daemon: RunDaemon) -> None:
    async with daemon() as server, proxied(server) as proxy, pair(proxy.url, server.url) as (client, other):
        async with other.subscribe("a") as subscription:
            proxy.cut_answers = lambda request: b"/messages" in request and proxy.cuts < 3
            for n in range(3):
                await client.publish("a", n)
            await other.publish("a", "end")
            assert data_of(await take(subscription, 4)) == [0, 1, 2, "end"]
            assert proxy.cuts == 3


async def test_a_publish_is_not_repeated_when_the_key_may_be_forgotten(daemon: RunDaemon) -> None:
    async with daemon("--idempotency-window=1s") as server, proxied(server) as proxy, pair(proxy.url, server.url) as (client, other):
        async with other.subscribe("a") as subscription:
            proxy.cut_answers = lambda request: b"/messages" in request
            with pytest.raises(Problem) as problem:
                await client.publish("a", 1)
            assert problem.value.code == "unknown"
            proxy.cut_answers = lambda request: False
            await other.publish("a", "end")
            assert data_of(await take(subscription, 2)) == [1, "end"]


async def test_publishes_wait_for_the_server_in_order_and_in_bounds(daemon: RunDaemon) -> None:
    async with daemon() as server, proxied(server) as proxy, pair(proxy.url, server.url, max_pending=5) as (client, other):
        async with other.subscribe("a") as subscription:
            port, proxy.port = proxy.port, 1
            proxy.gate = lambda head: None if proxy.port != 1 else b"HTTP/1.1 503 Later\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n"
            waiting = [asyncio.create_task(client.publish("a", n)) for n in range(5)]
            await asyncio.sleep(0)
            with pytest.raises(Problem, match="set wait=True") as refusal:
                await client.publish("a", 5)
            assert refusal.value.code == "queue_full"
            more = asyncio.create_task(client.publish_many(Publication("a", n) for n in range(5, 8)))
            waiting.append(asyncio.create_task(client.publish("a", 8, wait=True)))
            await asyncio.sleep(0)
            proxy.port = port
            await asyncio.gather(*waiting)
            assert all(isinstance(result, Published) for result in await more)
            assert data_of(await take(subscription, 9)) == list(range(9))


async def test_many_messages_are_published_in_order_with_a_result_for_each(daemon: RunDaemon) -> None:
    async with daemon() as server, Client(server.url) as client:
        async with client.subscribe("a") as subscription:
            once = Publication("a", {"n": 1}, key="k", ttl=60, idempotency_key="once")
            results = await client.publish_many([
                once, Publication("a", "two", "text/plain"), Publication("a..b", 3), Publication("_sys", 4), Publication("a", {5}),
                Publication("a", 6, ttl=0), Publication("a", bytearray(b"\x07")), Publication("a", "[8]", "application/json"), once])
            codes = [result.code if isinstance(result, Problem) else None for result in results]
            assert codes == [None, None, "invalid_topic", "reserved_topic", "invalid_body", "invalid_request", None, None, None]
            assert isinstance(results[0], Published) and results[8] == results[0]
            one, *others = await take(subscription, 4)
            assert (one.position, one.data, one.key, one.id) == (results[0].position, {"n": 1}, "k", "once")
            assert [(m.data, m.type) for m in others] == [("two", "text/plain"), (b"\x07", "application/octet-stream"), ([8], None)]
        assert await client.publish_many([]) == []


async def test_a_value_of_a_wrong_kind_fails_only_its_own_message(daemon: RunDaemon) -> None:
    wrong: list[Any] = [Publication("a", 1, idempotency_key=7), Publication("a", 1, idempotency_key=0),  # type: ignore[arg-type]
                        Publication("a", 1, idempotency_key=""), Publication(5, 1), ("a", 1), {"topic": "a", "data": 1},  # type: ignore[arg-type]
                        Publication("a", "1", type=5)]  # type: ignore[arg-type]
    async with daemon() as server, Client(server.url) as client, client.subscribe("a") as subscription:
        first, *others, last = await client.publish_many([Publication("a", "first"), *wrong, Publication("a", "last")])
        assert isinstance(first, Published) and isinstance(last, Published)
        assert [other.code for other in others if isinstance(other, Problem)] == ["invalid_request"] * len(wrong)
        with pytest.raises(Problem, match="idempotency_key"):
            await client.publish("a", 1, idempotency_key="")
        assert data_of(await take(subscription, 2)) == ["first", "last"]


async def test_a_closed_client_takes_no_more_messages_though_all_are_wrong() -> None:
    client = Client("http://127.0.0.1:1")
    await client.close()
    assert len(await client.publish_many(Publication("a..b", n) for n in range(3))) == 1


async def test_many_messages_are_taken_as_the_server_takes_them(daemon: RunDaemon) -> None:
    # A request has at most 100 messages or 250 kB, and the next messages are taken when it is answered.
    async with daemon(*HOLDS_ALL) as server, proxied(server) as proxy, pair(proxy.url, server.url) as (client, other):
        taken = 0

        def messages(number: int) -> Iterator[Publication]:
            nonlocal taken
            for taken in range(1, number + 1):
                yield Publication(f"a.{taken % 3}", taken if taken < 400 else "x" * 60_000)

        proxy.silent = True
        many = asyncio.create_task(client.publish_many(messages(410)))
        await until(lambda: len(proxy.heads) > 0)
        await other.publish("b", 1)  # the first request has no answer meanwhile
        assert taken == 101
        proxy.silent = False
        proxy.cut()
        results = await many
        assert taken == len(results) == 410 and all(isinstance(result, Published) for result in results)
        got = data_of(await take(client.subscribe("a.*", from_="oldest"), 410))
        assert sorted(n for n in got if isinstance(n, int)) == list(range(1, 400))
        assert [n for n in got if isinstance(n, int) and n % 3 == 1] == list(range(1, 400, 3))


async def test_of_many_messages_only_those_that_are_limited_are_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[list[int]] = []

    async def call(method: str, path: str, read: Callable[[Any], Any], *, content: bytes, headers: dict[str, str]) -> Any:
        assert (method, path, headers) == ("POST", "/v1/messages", {"Content-Type": "application/json"})
        requests.append([item["data"] for item in json.loads(content)])
        problems = [{"problem": {"title": "T", "status": status, "code": code}} for status, code in ((429, "limited"), (403, "forbidden"))]
        if len(requests) == 1:
            return read([problems[0], problems[1], {"position": "a@k:1", "time": 1}, problems[0]])
        return read([{"position": f"a@k:{n + 2}", "time": 1} for n in range(len(requests[-1]))])

    async with Client("http://127.0.0.1:1") as client:
        monkeypatch.setattr(client._server, "call", call)
        results = await client.publish_many(Publication("a", n) for n in range(4))
        assert [r.code if isinstance(r, Problem) else r.position for r in results] == ["a@k:2", "forbidden", "a@k:1", "a@k:3"]
        assert requests == [[0, 1, 2, 3], [0, 3]]


async def test_of_many_messages_one_of_unknown_outcome_is_not_sent_again_when_the_key_may_be_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = 0

    async def call(method: str, path: str, read: Callable[[Any], Any], **_: Any) -> Any:
        nonlocal requests
        requests += 1
        if requests > 1:
            return read([{"position": f"a@k:{n}", "time": 1} for n in (1, 2)])
        return read([{"problem": {"title": "T", "status": status, "code": code}} for status, code in ((503, "overloaded"), (500, "internal"))])

    async with Client("http://127.0.0.1:1") as client:
        monkeypatch.setattr(client._server, "call", call)
        client._server.limits["idempotency_ms"] = 1
        results = await client.publish_many([Publication("a", 1), Publication("a", 2)])
        assert [result.code for result in results if isinstance(result, Problem)] == ["unknown", "unknown"] and requests == 1


async def test_of_many_messages_only_the_one_that_a_proxy_refuses_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[list[int]] = []

    async def call(method: str, path: str, read: Callable[[Any], Any], *, content: bytes, **_: Any) -> Any:
        requests.append([item["data"] for item in json.loads(content)])
        if 2 in requests[-1]:
            raise pubsubpy.server.foreign(403, "without pubsubd's error body")
        return read([{"position": f"a@k:{n + 1}", "time": 1} for n in requests[-1]])

    async with Client("http://127.0.0.1:1") as client:
        monkeypatch.setattr(client._server, "call", call)
        results = await client.publish_many(Publication("a", n) for n in range(8))
        codes = [result.code if isinstance(result, Problem) else "" for result in results]
        assert codes == ["", "", "unexpected_answer", "", "", "", "", ""]
        assert requests == [[*range(8)], [0, 1, 2, 3], [0, 1], [2, 3, 4, 5], [2, 3], [2], [3], [4, 5], [6, 7]]


async def test_a_lost_answer_to_many_messages_publishes_none_twice(daemon: RunDaemon) -> None:
    async with daemon() as server, proxied(server) as proxy, pair(proxy.url, server.url) as (client, other):
        async with other.subscribe("a") as subscription:
            proxy.cut_answers = lambda request: b"/v1/messages" in request and proxy.cuts < 2
            results = await client.publish_many([Publication("a", n) for n in range(5)] + [Publication("_sys", 5)])
            assert proxy.cuts == 2 and all(isinstance(result, Published) for result in results[:5])
            assert isinstance(results[5], Problem) and "may have been published" in results[5].detail
            await other.publish("a", "end")
            assert data_of(await take(subscription, 6)) == [0, 1, 2, 3, 4, "end"]


async def test_closing_ends_a_publish_of_many_messages(daemon: RunDaemon) -> None:
    def endless() -> Iterator[Publication]:
        while True:
            yield Publication("a", 1)

    async with daemon() as server, proxied(server) as proxy:
        client = Client(proxy.url)
        proxy.silent = True
        many = asyncio.create_task(client.publish_many(endless()))
        await until(lambda: len(proxy.heads) > 0)
        await client.close()
        for results in (await many, await client.publish_many(endless())):
            assert {result.code for result in results if isinstance(result, Problem)} <= {"closed", "unknown"}
            assert isinstance(results[-1], Problem)


async def test_closing_ends_publishes_that_wait() -> None:
    client = Client("http://127.0.0.1:1")
    waiting = asyncio.create_task(client.publish("a", 1))
    await asyncio.sleep(0.1)
    await client.close()
    with pytest.raises(Problem) as end:
        await waiting
    assert end.value.code == "closed"
    with pytest.raises(Problem):
        client.subscribe("a")


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_silent_connection_is_replaced(
        daemon: RunDaemon, transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pubsubpy.subscription, "POLL_SLACK", 0.5)
    async with daemon("--poll-heartbeat=200ms", "--poll-timeout=200ms") as server, proxied(server) as proxy:
        async with pair(proxy.url, server.url, transports=[transport]) as (client, publisher), client.subscribe("a") as subscription:
            await until(lambda: subscription.state.name == "open")
            proxy.silent = True
            await publisher.publish("a", 1)
            async with asyncio.timeout(8):  # less than the server itself waits for a silent client
                await until(lambda: subscription.state.name == "waiting")
            proxy.silent = False
            assert data_of(await take(subscription, 1)) == [1]


async def test_a_transport_that_does_not_get_through_is_replaced(
        daemon: RunDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pubsubpy.subscription, "HELLO_PATIENCE", 0.5)
    refusal = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno"
    async with daemon() as server, proxied(server) as proxy, Client(proxy.url) as client:
        proxy.gate = lambda head: refusal if b"/v1/ws" in head else None
        async with client.subscribe("a") as subscription:
            await client.publish("a", 1)
            assert data_of(await take(subscription, 1)) == [1]
            assert subscription.state == State("open", "stream")
    async with daemon() as server, proxied(server) as proxy, pair(proxy.url, server.url) as (client, publisher):
        kept_back = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nContent-Length: 9\r\n\r\n"
        proxy.gate = lambda request: refusal if b"/v1/ws" in request else kept_back if b"mode=stream" in request else None
        async with client.subscribe("a") as subscription:
            await until(lambda: subscription.state == State("open", "poll"))
            await publisher.publish("a", 2)
            assert data_of(await take(subscription, 1)) == [2]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_session_goes_on_after_a_cut_unless_its_acks_are_uncertain(daemon: RunDaemon, transport: str) -> None:
    async with daemon() as server, proxied(server) as proxy, pair(proxy.url, server.url, transports=[transport]) as (client, publisher):
        async with client.subscribe("a") as subscription:
            await until(lambda: subscription.state.name == "open")
            session = subscription._session
            for n in range(3):
                await publisher.publish("a", n)
                assert data_of(await take(subscription, 1)) == [n]
                proxy.cut()
            await publisher.publish("a", 3)
            assert data_of(await take(subscription, 1)) == [3]
            assert (subscription._session != session) == (transport == "stream")


async def test_a_transport_that_said_hello_is_kept(daemon: RunDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pubsubpy.subscription, "HELLO_PATIENCE", 0.3)
    states: list[State] = []
    async with daemon() as server, Client(server.url, on_state=states.append) as client, client.subscribe("a") as subscription:
        await until(lambda: subscription.state.name == "open")
        await asyncio.sleep(0.6)  # longer than the patience
        await client.publish("a", 1)
        assert data_of(await take(subscription, 1)) == [1]
        assert states[-1] == State("open", "websocket") and "waiting" not in [state.name for state in states]


async def test_polls_that_say_nothing_at_once_are_not_repeated_in_a_rush(daemon: RunDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[State] = []
    waits: list[float] = []
    opened = [0]

    async def at_once(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(0)

    def gate(request: bytes) -> bytes | None:
        opened[0] += request.startswith(b"POST /v1/sessions ")
        return answered(200, b"") if b"/poll" in request and len(waits) < 16 else None

    monkeypatch.setattr(pubsubpy.subscription, "pause", at_once)
    async with daemon() as server, proxied(server) as proxy, Client(proxy.url, transports=["poll"], on_state=states.append) as client:
        proxy.gate = gate
        async with client.subscribe("a") as subscription:
            first = subscription.positions
            await until(lambda: len(waits) == 16)
            await client.publish("a", 1)
            assert data_of(await take(subscription, 1)) == [1]
            assert [position.topic for position in first] == ["a"] and opened[0] == 2, "a new session, from the positions"
    assert 0.1 <= waits[0] <= 0.2 <= waits[1] <= 0.4 <= waits[2] <= 0.8
    assert max(waits[:14]) <= 10.0 and min(waits[14:]) >= 15.0
    reasons = [state.reason for state in states if state.name == "waiting"]
    assert "proxy" not in reasons[3] and "does a proxy in between answer or cut?" in reasons[4]


async def test_an_old_answer_of_a_cache_acknowledges_nothing(daemon: RunDaemon) -> None:
    """Its frames are not new. Counted, they would acknowledge others, whose answer was lost."""
    polls: list[bytes] = []

    def is_poll(request: bytes, number: int) -> bool:
        return b"/poll" in request and len(polls) == number

    def gate(request: bytes) -> bytes | None:
        if b"/poll" in request:
            polls.append(request)
        line = b'{"position":"%s","time":%d,"data":1}\n' % (first.position.encode(), first.time) if is_poll(request, 3) else b""
        return answered(200, line) if line else None

    async with daemon() as server, proxied(server) as proxy, pair(proxy.url, server.url, transports=["poll"]) as (client, publisher):
        proxy.gate, proxy.cut_answers = gate, lambda request: is_poll(request, 2)
        async with client.subscribe("a") as subscription:
            first = await publisher.publish("a", 1)
            assert data_of(await take(subscription, 1)) == [1]
            await until(lambda: proxy.cuts == 1)
            await publisher.publish("a", 2)  # answers the second poll, whose answer is cut; a cache answers the third
            await until(lambda: len(polls) > 3)
            await publisher.publish("a", 3)
            assert data_of(await take(subscription, 2)) == [2, 3]


async def test_waits_are_longest_while_something_else_answers() -> None:
    assert 15.0 <= backoff(20, longest=True) <= 30.0 and 5.0 <= backoff(20) <= 10.0


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_nothing_is_lost_before_the_first_message(daemon: RunDaemon, transport: str) -> None:
    """Cut twice, each time before anything came. What is published meanwhile comes after the return."""
    async with daemon() as server, proxied(server) as proxy:
        async with pair(proxy.url, server.url, transports=[transport]) as (client, publisher), client.subscribe("a") as subscription:
            port = proxy.port
            for n in (1, 2):
                await until(lambda: subscription.state.name == "open")
                proxy.port = 1  # nobody is there
                proxy.cut()
                await until(lambda: subscription.state.name == "waiting")
                await publisher.publish("a", n)
                proxy.port = port
                assert data_of(await take(subscription, 1)) == [n]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_an_exception_in_on_state_is_reported_and_delivery_goes_on(daemon: RunDaemon, transport: str) -> None:
    reported: list[Any] = []

    def on_state(state: State) -> None:
        raise LookupError(state.name)

    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context["exception"]))
    async with daemon() as server, proxied(server) as proxy:
        async with Client(proxy.url, transports=[transport], on_state=on_state) as client, client.subscribe("a") as subscription:
            for n in range(3):
                await client.publish("a", n)
                assert data_of(await take(subscription, 1)) == [n]
                proxy.cut()
        with pytest.raises(Problem) as end:
            await subscription.get()
        assert end.value.code == "closed" and not client._subscriptions and subscription._task.done()
    assert {str(error) for error in reported} >= {"open", "closed"}


async def test_a_page_that_is_long_is_the_answer_of_another_program(daemon: RunDaemon) -> None:
    async with daemon() as server, proxied(server) as proxy, Client(proxy.url) as client:
        proxy.gate = lambda request: answered(403, b"<p>" * 1_000_000)
        with pytest.raises(Problem) as refusal:
            await client.publish("a", 1)
        assert refusal.value.code == "unexpected_answer" and "403" in str(refusal.value)


async def test_back_off_obeys_the_server(daemon: RunDaemon) -> None:
    states: list[State] = []
    problem = json.dumps({"title": "x", "status": 503, "code": "overloaded", "detail": "full", "retry_after_ms": 1234}).encode()
    answers = [b"HTTP/1.1 503 x\r\nContent-Type: application/problem+json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
               % (len(problem), problem), b"HTTP/1.1 503 x\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"]
    async with daemon() as server, proxied(server) as proxy, Client(proxy.url, on_state=states.append) as client:
        proxy.gate = lambda head: answers.pop() if answers else None
        async with client.subscribe("a"):
            waits = [state.wait for state in states if state.name == "waiting"]
            assert len(waits) == 2 and 1.0 <= waits[0] < 1.2 and waits[1] == 1.234
            assert "overloaded" in [state.reason for state in states if state.name == "waiting"][1]


async def test_a_refused_token_is_asked_for_again(daemon: RunDaemon) -> None:
    """A fake gate before the daemon wants a token that grows old."""
    valid, asked = ["t1"], [0]

    async def token() -> str:
        asked[0] += 1
        return valid[0]

    refused = b"HTTP/1.1 401 Unauthorized\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"

    def gate(head: bytes) -> bytes | None:
        said = re.search(rb"(?i)authorization: Bearer (\w+)", head)
        return None if said and said[1].decode() == valid[0] else refused

    async with daemon() as server, proxied(server) as proxy, Client(proxy.url, token=token) as client:
        proxy.gate = gate
        async with client.subscribe("a") as subscription:
            await client.publish("a", 1)
            assert data_of(await take(subscription, 1)) == [1]
            assert asked == [1]
            valid[0] = "t2"
            proxy.cut()
            await client.publish("a", 2)
            assert data_of(await take(subscription, 1)) == [2]
            assert asked[0] == 2
        async with Client(proxy.url, token="wrong") as stranger:
            with pytest.raises(Problem) as refusal:
                await stranger.publish("a", 3)
            assert refusal.value.status == 401


async def test_follow_loads_first_and_again_on_a_gap(daemon: RunDaemon) -> None:
    """The application's state is the sum of what was published. It is never wrong after a message."""
    log: list[int] = []
    loads: list[Position] = []
    state = 0

    async with daemon() as server, Client(server.url) as client:
        async def load(position: Position) -> None:
            nonlocal state
            loads.append(position)
            state = sum(log)

        for n in (1, 2):
            log.append(n)
            await client.publish("doc", n)
        follower = client.follow("doc", load)
        reading = asyncio.create_task(follower.get())
        await until(lambda: state == 3)
        for n in (3, 4):
            log.append(n)
            await client.publish("doc", n)
        state += (await reading).data
        state += (await follower.get()).data
        assert state == sum(log) == 10 and len(loads) == 1
        log.append(5)
        await client._server.call("DELETE", "/v1/topics/doc")  # a gap, and a state that only load knows
        reading = asyncio.create_task(follower.get())
        await until(lambda: len(loads) == 2)
        assert state == sum(log) and loads[1].offset > loads[0].offset
        log.append(6)
        await client.publish("doc", 6)
        state += (await reading).data
        assert state == sum(log)


async def test_follow_is_right_through_cuts_and_gaps(daemon: RunDaemon) -> None:
    """The history is so short that a reader that pauses loses messages. load brings them."""
    log: set[int] = set()
    state: set[int] = set()
    loads = 0

    async with daemon("--history-messages=5", "--session-queue=2") as server, proxied(server) as proxy:
        async with pair(proxy.url, server.url, queue=4) as (client, publisher):
            async def load(position: Position) -> None:
                nonlocal loads, state
                loads, state = loads + 1, set(log)

            async def publish() -> None:
                for n in range(1, 301):
                    log.add(n)
                    await publisher.publish("doc", n)
                    if n % 50 == 0:
                        proxy.cut_next = 1
                        await asyncio.sleep(0.1)
                log.add(0)
                await publisher.publish("doc", 0)

            follower = client.follow("doc", load)
            await follower.ready()
            publishing = asyncio.create_task(publish())
            while 0 not in state:
                state.add((await follower.get()).data)
                if len(state) % 20 == 0:
                    await asyncio.sleep(0.03)
            await publishing
            assert state == log and loads > 1


async def test_closing_ends_a_publish_under_way(daemon: RunDaemon) -> None:
    async with daemon() as server, proxied(server) as proxy:
        client = Client(proxy.url)
        proxy.silent = True
        publishing = asyncio.create_task(client.publish("a", 1))
        await until(lambda: len(proxy.heads) > 0)
        await client.close()
        with pytest.raises(Problem) as end:
            await publishing
        assert end.value.code == "unknown"


async def test_a_load_that_fails_is_tried_again_by_the_next_get(daemon: RunDaemon) -> None:
    async with daemon() as server, Client(server.url) as client:
        tries = 0

        async def load(position: Position) -> None:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise ConnectionError("the database is away")

        follower = client.follow("doc", load)
        with pytest.raises(ConnectionError):
            await follower.get()
        await client.publish("doc", 1)
        assert (await follower.get()).data == 1 and tries == 2


async def test_closing_ends_the_session_on_the_server(daemon: RunDaemon) -> None:
    async with daemon() as server, Client(server.url) as client:
        subscription = client.subscribe("a")
        await subscription.ready()
        session = subscription._session
        subscription.close()
        while True:
            try:
                await client._server.call("GET", f"/v1/sessions/{session}")
            except Problem as problem:
                assert problem.detail == "the session was closed by its client"
                return


def test_bad_arguments_are_refused() -> None:
    for url in ("push.example", "ws://push.example", "http://", "push.example:8080", "http://push.example:x", "https://push.example?a=b"):
        with pytest.raises(ValueError, match="http://"):
            Client(url)
    for url in ("https://ann:secret@push.example", "https://ann@push.example"):
        with pytest.raises(ValueError, match="token=") as refusal:
            Client(url)
        assert "secret" not in str(refusal.value)
    with pytest.raises(ValueError, match="transports"):
        Client("http://127.0.0.1", transports=["sse"])


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_private_ca_is_trusted_for_all_transports(
        daemon: RunDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transport: str) -> None:
    """localhost.pem is a CA, and a certificate of localhost, with its key."""
    files = tmp_path / "localhost.pem"
    files.write_text((Path(__file__).parent / "localhost.pem").read_text())
    files.chmod(0o600)
    monkeypatch.setenv("SSL_CERT_FILE", str(files))
    states: list[State] = []
    async with daemon(f"--tls-cert={files}", f"--tls-key={files}") as server:
        url = f"https://localhost:{server.port}"
        async with Client(url, transports=[transport], on_state=states.append) as client, client.subscribe("a") as subscription:
            await client.publish("a", 1)
            assert data_of(await take(subscription, 1)) == [1]
    assert {state.name for state in states} == {"open", "closed"}, states
