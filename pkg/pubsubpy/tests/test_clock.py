"""Durations with a clock that is set back, a clock that is set forward, and a suspend. Nothing here waits for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from conftest import proxied, until

import pubsubpy.clock
from pubsubpy import Client, Message, Problem
from pubsubpy.clock import Watchdog, pause

TRANSPORTS = ["websocket", "stream", "poll"]
RunDaemon = Callable[..., Any]


class Clocks:
    """The two clocks of a machine, and how far each was moved."""

    def __init__(self) -> None:
        self.steady = self.wall = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.steady

    def time(self) -> float:
        return time.time() + self.wall


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks()
    monkeypatch.setattr(pubsubpy.clock, "time", clocks)
    monkeypatch.setattr(pubsubpy.clock, "TICK", 0.005)
    return clocks


def suspend(clocks: Clocks) -> None:
    clocks.wall += 600  # the monotonic clock does not count it


def set_back(clocks: Clocks) -> None:
    clocks.wall, clocks.steady = clocks.wall - 3600, clocks.steady + 60


def set_forward(clocks: Clocks) -> None:
    clocks.wall += 3600


PASSES = pytest.mark.parametrize("passes", [suspend, set_back])  # ten minutes, or one


@PASSES
async def test_silence_is_noticed(clocks: Clocks, passes: Callable[[Clocks], None]) -> None:
    with pytest.raises(TimeoutError):
        async with Watchdog(30.0):
            passes(clocks)
            await asyncio.Event().wait()


async def test_what_came_while_the_program_was_busy_is_heard_first(clocks: Clocks) -> None:
    async with Watchdog(30.0) as watch:
        for _ in range(3):
            suspend(clocks)
            watch._look()
            watch.hear()
            watch._look()
        clocks.wall -= 3600
        watch._look()
        watch._look()
        assert not watch._timeout.expired()


@PASSES
async def test_a_wait_ends(clocks: Clocks, passes: Callable[[Clocks], None]) -> None:
    waiting = asyncio.create_task(pause(50.0))
    await asyncio.sleep(0)
    passes(clocks)
    await waiting


@PASSES
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_connection_that_goes_silent_then_is_replaced(
        daemon: RunDaemon, clocks: Clocks, transport: str, passes: Callable[[Clocks], None]) -> None:
    requests: list[bytes] = []

    def note(request: bytes) -> bool:
        requests.append(request)
        return False

    async with daemon() as server, proxied(server) as proxy, Client(proxy.url, transports=[transport]) as client:
        proxy.cut_requests = note
        async with client.subscribe("a") as subscription, Client(server.url) as publisher:
            await until(lambda: subscription.state.name == "open")
            await publisher.publish("a", 1)
            first = await subscription.get()
            await until(lambda: b"ack=1" in requests[-1] or transport != "poll")
            proxy.silent = True
            await publisher.publish("a", 2)
            passes(clocks)
            await until(lambda: subscription.state.name == "waiting")
            assert "nothing came for too long" in subscription.state.reason
            proxy.silent = False
            second = await subscription.get()
            assert isinstance(first, Message) and isinstance(second, Message) and (first.data, second.data) == (1, 2)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_clock_set_forward_loses_and_repeats_nothing(daemon: RunDaemon, clocks: Clocks, transport: str) -> None:
    async with daemon() as server, Client(server.url, transports=[transport]) as client, client.subscribe("a") as subscription:
        got = []
        for n in range(4):
            await client.publish("a", n)
            set_forward(clocks)
            item = await subscription.get()
            assert isinstance(item, Message)
            got.append(item.data)
        assert got == [0, 1, 2, 3]


@PASSES
async def test_a_publish_is_not_repeated_beyond_the_window(
        daemon: RunDaemon, clocks: Clocks, passes: Callable[[Clocks], None]) -> None:
    async with daemon("--idempotency-window=40s") as server, proxied(server) as proxy, Client(proxy.url) as client:
        async with client.subscribe("a"):  # tells the window
            def lost(request: bytes) -> bool:
                if b"/messages" not in request:
                    return False
                passes(clocks)
                return True

            proxy.cut_requests = lost
            with pytest.raises(Problem) as end:
                await client.publish("a", 1)
            assert end.value.code == "unknown" and proxy.cuts == 1


async def test_a_publish_is_repeated_although_the_clock_was_set_back(daemon: RunDaemon, clocks: Clocks) -> None:
    async with daemon() as server, proxied(server) as proxy, Client(proxy.url) as client:
        def lost(request: bytes) -> bool:
            clocks.wall -= 3600
            return b"/messages" in request and proxy.cuts < 2

        proxy.cut_requests = lost
        assert (await client.publish("a", 1)).position.offset == 1


@PASSES
async def test_a_token_is_renewed_in_time(daemon: RunDaemon, clocks: Clocks, passes: Callable[[Clocks], None]) -> None:
    asked = [0]

    def token() -> str:
        asked[0] += 1
        return f"t{asked[0]}"

    async with daemon() as server, Client(server.url, token=token) as client, client.subscribe("a") as subscription:
        subscription._keep(65.0)
        await asyncio.sleep(0)
        passes(clocks)
        await until(lambda: asked[0] == 2)
