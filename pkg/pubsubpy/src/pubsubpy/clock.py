"""Durations are the larger of what two clocks say: the monotonic one may not count suspend, the other can be set back."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from types import TracebackType

TICK = 1.0  # seconds until a wait looks at both clocks again: timers of asyncio know only the monotonic one

Moment = tuple[float, float]


def moment() -> Moment:
    return time.monotonic(), time.time()


def since(start: Moment) -> float:
    """Returns how many seconds ago that was."""
    return max(now - then for now, then in zip(moment(), start))


async def pause(seconds: float, until: asyncio.Event | None = None) -> None:
    """Waits. Returns early when the event is set."""
    start = moment()
    while (left := min(seconds - since(start), TICK)) > 0 and not (until and until.is_set()):
        with suppress(TimeoutError):
            await (asyncio.wait_for(until.wait(), left) if until else asyncio.sleep(left))


class Watchdog:
    """Ends its block with TimeoutError when nothing was heard for `patience` seconds.

    It looks twice, so that what came while the program was busy or suspended is heard first.
    """

    def __init__(self, patience: float) -> None:
        self.patience, self._timeout, self._heard, self._late = patience, asyncio.timeout(None), moment(), False

    def hear(self) -> None:
        self._heard = moment()

    def _look(self) -> None:
        before, self._late = self._late, since(self._heard) >= self.patience
        if self._late and before:
            self._timeout.reschedule(0.0)
        else:
            self._timer = asyncio.get_running_loop().call_later(min(TICK, self.patience / 4), self._look)

    async def __aenter__(self) -> Watchdog:
        await self._timeout.__aenter__()
        self.hear()
        self._look()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._timer.cancel()
        await self._timeout.__aexit__(kind, error, trace)
