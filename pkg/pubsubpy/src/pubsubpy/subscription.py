"""A subscription: a session, the transport that carries it, and what waits for the reader."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, NamedTuple, Self, TypeVar, cast

from .clock import Watchdog, moment, pause, since
from .server import MAX_WAIT, Server, backoff, frames, members
from .wire import NAME, Frame, Gap, Hello, Item, Message, Moved, Position, Problem, check_topic, decode, is_pattern, matches

ItemT = TypeVar("ItemT")

HELLO_PATIENCE = 5.0  # seconds until a transport that says nothing is replaced
POLL_SLACK = 10.0  # seconds that a long poll may take beyond what the server promised
MANY_FAILURES = 6  # in a row, after which a transport that once worked is replaced
RUSH = 5  # answers in a row, soon and with nothing new, after which a new session begins; three times as many: wait longest
QUEUE_BYTES = 16 << 20  # of frames that wait for the reader
# After these problems a new session begins at the positions. The server has ended the old one after those of ENDED.
ENDED = {"session_ended", "session_unknown", "draining"}
LOST = ENDED | {"stale_ack", "ack_beyond_sent", "poll_replaced", "crowded", "repeated", "incomplete"}


class State(NamedTuple):
    """The state of a connection, for a program to show."""

    name: str  # connecting, open, waiting or closed
    transport: str = ""  # of an open one: websocket, stream or poll
    wait: float = 0.0  # seconds until the next attempt
    reason: str = ""  # why it waits or is closed


From = str | Iterable[str] | Mapping[str, int]
MOST_NEWEST = 1000  # messages with which a subscription begins, or of a page of history


def begins(topics: str | Iterable[str], from_: From) -> tuple[dict[str, str], dict[str, Position]]:
    """Returns where each name begins, and the positions in from_, by topic."""
    names = [check_topic(name, NAME) for name in ([topics] if isinstance(topics, str) else topics)]
    if from_ == "oldest":
        return {name: f"{name}@oldest" for name in names}, {}
    if isinstance(from_, Mapping):
        if set(from_) != {"newest"} or type(from_["newest"]) is not int or not 1 <= from_["newest"] <= MOST_NEWEST:
            raise Problem("invalid_position", f'from_ is {{"newest": N}} with N from 1 to {MOST_NEWEST}; got {from_!r}')
        return {name: f"{name}@newest-{from_['newest']}" for name in names}, {}
    texts = [] if from_ == "now" else from_ if isinstance(from_, Iterable) and not isinstance(from_, str) else [from_]
    positions = {position.topic: position for position in map(Position, texts)}
    if not any(map(is_pattern, names)) and (others := positions.keys() - names):
        raise Problem("invalid_position", f"from_ has a position of {others.pop()}, which is not among the topics")
    return {name: name for name in names}, positions


class Subscription(Generic[ItemT]):
    """Delivers the items of some topics, in order, each once. Leaving an `async for` closes it.

    Items wait in a bounded queue. When the queue is full, the subscription leaves its connection until
    the reader has taken half. Meanwhile the server's history holds what comes.
    """

    _fixed = False  # whether add and remove are refused

    def __init__(self, server: Server, transports: Sequence[str], names: Mapping[str, str],
                 positions: Mapping[str, Position], *, length: int, max_rate: str, own: str,
                 load: Callable[[Position], Awaitable[object]] | None, report: Callable[[State], None],
                 closed: Callable[[Subscription[Any]], None]) -> None:
        self.state = State("connecting")
        self._server, self._transports, self._length, self._max_rate = server, transports, length, max_rate
        self._own, self._load, self._report, self._closed = own, load, report, closed
        self._names = dict(names)  # and where each begins
        self._patterned = any(map(is_pattern, names))
        self._came = dict(positions)  # of the last items that came: a new session begins here
        self._positions = dict(positions)  # of the last items that the reader took
        self._queue: deque[tuple[Any, int]] = deque()  # with the sizes of frames, _bytes together
        self._waiting: Counter[str] = Counter()  # items in the queue, by topic
        self._stale = True  # load must be called before the next message
        self._error: Exception | None = None
        self._arrived, self._taken, self._ready, self._changing = asyncio.Event(), asyncio.Event(), asyncio.Event(), asyncio.Lock()
        self._session, self._count = "", 0  # its id, a capability, and how many of its frames came
        self._had: set[str] = set()  # names that the session has or had
        # Of more topics than _crowd, the server may have forgotten some. Failures are those in a row.
        self._bytes = self._crowd = self._failures = self._rush = 0
        self._level = self._floor = 0  # the transport to try, and the one that worked last
        # Some transport worked; this one was answered; it works; it brought something.
        self._settled = self._answered = self._proven = self._useful = False
        self._refused, self._renewal = False, asyncio.create_task(asyncio.sleep(0))  # of the token
        self._watch: Watchdog | None = None
        self._task = asyncio.create_task(self._run())

    @property
    def positions(self) -> list[Position]:
        """Where the reader is in each topic: a later subscription that starts here misses nothing."""
        return list(self._positions.values())

    async def ready(self) -> list[Position]:
        """Waits until the subscription has begun, and returns its positions."""
        await self._ready.wait()
        if self._error:
            raise self._error
        return self.positions

    async def get(self) -> ItemT:
        """Returns the next item. Raises Problem: closed after close(), or why the subscription ended."""
        while True:
            if self._load and self._stale:
                (position,) = await self.ready()
                await self._load(position)
                self._stale = False
            item = await self._pop()
            self._positions[item.topic] = item.position
            self._waiting[item.topic] -= 1
            if not self._waiting[item.topic]:
                del self._waiting[item.topic]
                # Only messages of our own can have come after it.
                self._positions[item.topic] = self._came.get(item.topic, item.position)
                if self._patterned and item.topic not in self._came:  # the server leaves it out, or has forgotten it
                    del self._positions[item.topic]
            if not (self._load and isinstance(item, Gap)):
                return cast(ItemT, item)
            self._stale = True

    async def _pop(self) -> Any:
        while not self._queue:
            if self._error:
                raise self._error
            self._arrived.clear()
            await self._arrived.wait()
        item, size = self._queue.popleft()
        self._bytes -= size
        self._taken.set()
        return item

    async def __aiter__(self) -> AsyncIterator[ItemT]:
        try:
            while True:
                yield await self.get()
        except Problem as problem:
            if problem.code != "closed":
                raise
        finally:
            self.close()

    async def __aenter__(self) -> Self:
        await self.ready()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the subscription. Items that wait are dropped; positions stay."""
        self._queue.clear()
        self._fail(Problem("closed", "the subscription was closed"))

    def _fail(self, error: Exception) -> None:
        if not self._error:
            self._error = error
            self._show(State("closed", reason=str(error)))
            self._task.cancel()
            self._lose()
            self._arrived.set()
            self._ready.set()
            self._closed(self)

    async def add(self, topics: str | Iterable[str], *, from_: From = "now") -> None:
        """Adds topics while the others go on. Raises Problem, and changes nothing, if the server refuses it."""
        await self._change(*begins(topics, from_), set())

    async def remove(self, topics: str | Iterable[str]) -> None:
        """Removes topics while the others go on. Their items that wait are dropped."""
        await self._change({}, {}, {topics} if isinstance(topics, str) else set(topics))

    async def _change(self, names: dict[str, str], positions: dict[str, Position], gone: set[str]) -> None:
        if self._load or self._fixed or self._patterned or any(map(is_pattern, names)):
            raise Problem("invalid_request", "a subscription with patterns, or by follow or presence, does not change",
                          remedy="open another subscription")
        async with self._changing:
            await self.ready()
            before, session, add, gone = self._names, self._session, names.keys() - self._names, gone & self._names.keys()
            self._names = {n: s for n, s in {**before, **names}.items() if n not in gone}
            for marks in (self._came, self._positions):
                marks.update({name: positions[name] for name in add & positions.keys()})
            try:
                # Frames of a topic that the session had before may be on their way. They would hide others.
                if not session or add & self._had:
                    self._restart()
                elif add or gone:
                    begin = [self._came.get(name, names[name]) for name in add]
                    change = {"add": begin, "remove": [*gone]}
                    answer = await self._server.call("PATCH", f"/v1/sessions/{session}", members(), json=change)
                    self._had |= add
                    if session == self._session:
                        self._settle(answer["positions"])
            except BaseException as error:
                if isinstance(error, Problem) and error.by_server and not error.uncertain and error.code not in LOST:
                    self._names, gone = before, set(add)
                    raise
                if session == self._session:
                    self._restart()
                if not isinstance(error, Problem):
                    raise
            finally:
                for name in gone:
                    self._came.pop(name, None)
                    self._positions.pop(name, None)
                self._queue = deque(entry for entry in self._queue if entry[0].topic not in gone)
                self._bytes = sum(size for _, size in self._queue)
                self._waiting = Counter(item.topic for item, _ in self._queue)
            await self.ready()
            if refused := add - self._names.keys():
                raise Problem("forbidden", f"the token does not permit {', '.join(sorted(refused))}", status=403)

    def _restart(self) -> None:
        self._lose()
        self._ready.clear()
        self._task.cancel()
        self._task = asyncio.create_task(self._run())

    def _lose(self) -> None:
        self._renewal.cancel()
        self._server.leave(self._session)
        self._session = ""

    def _show(self, state: State) -> None:
        if state != self.state:
            self.state = state
            try:
                self._report(state)
            except Exception as error:
                asyncio.get_running_loop().call_exception_handler({"message": "on_state raised an exception", "exception": error})

    async def _run(self) -> None:
        try:
            while True:
                while len(self._queue) > self._length // 2 or self._bytes > QUEUE_BYTES // 2:
                    self._taken.clear()
                    await self._taken.wait()
                began, self._answered, self._proven, self._useful = moment(), False, False, False
                try:
                    if not self._session:
                        self._show(State("connecting"))
                        await self._open()
                    elif self._refused:
                        self._keep(await self._server.extend(self._session))
                    transport = self._transports[self._level]
                    await (self._websocket() if transport == "websocket" else self._poll(transport))
                except Problem as problem:
                    if problem.status == 401 and self._session and not self._refused:
                        self._refused = True
                    elif wait := self._failed(problem, since(began)):
                        suspicion = "; nothing new comes: does a proxy in between answer or cut?" if self._rush >= RUSH else ""
                        self._show(State("waiting", wait=wait, reason=f"{problem}{suspicion}"))
                        await pause(wait)
        except Exception as error:
            self._fail(error)

    def _failed(self, problem: Problem, lasted: float) -> float:
        """Decides what to try next, and returns after how long. Raises the problem if nothing helps."""
        attached, lost = bool(self._session), problem.code in LOST
        if self._useful or lasted > MAX_WAIT:
            self._failures = self._rush = 0
        elif self._answered and lasted < 1.0:
            self._rush += 1
        # What the server wrote to a stream counts as acked, though it may not have come.
        if lost or self._rush == RUSH or (self._proven and self._transports[self._level] == "stream"):
            if problem.code in ENDED:
                self._session = ""
            self._lose()
        elif attached and not self._proven and problem.code != "unreachable" and problem.status != 401:
            patient = problem.by_server or (self._settled and self._failures < MANY_FAILURES)
            if not (problem.transient and patient):
                self._level += 1
                if self._level < len(self._transports):
                    return 0.0
            self._level = self._floor
        if problem.code in ("full", "crowded"):
            return 0.0
        if problem.by_server and not (lost or problem.transient):
            raise problem
        self._failures += 1
        at_once = lost and problem.status < 500 and self._failures == 1
        longest = self._rush >= 3 * RUSH or not (lost or problem.transient)
        return max(problem.retry_after, 0.0 if at_once else backoff(self._failures - 1, longest))

    async def _open(self) -> None:
        marks = {name: mark for name, mark in {**self._names, **self._came}.items() if self._patterned or name in self._names}
        try:
            answer = await self._begin(marks)
        except Problem as problem:
            if problem.code != "forbidden" or not self._had:
                raise
            refused = await self._refusals(marks)
            if len(refused) == len(marks):
                raise
            # A topic that its pattern leaves out is refused only without the pattern.
            refused = [n for n in refused if n in self._names or not any(matches(p, n) for p in self._names.keys() - refused)] or refused
            for name in refused:
                if (at := self._came.get(name)) and (name in self._had or name not in self._names):
                    self._put(Gap(name, "forbidden", at, at), 0)
                self._forbid(name)
            return await self._open()
        self._session, self._count, self._had = answer["session"], 0, set(self._names)
        self._settle(answer["positions"])
        self._keep(answer["expires"])
        self._crowd = max(500, 2 * len(self._came))
        self._ready.set()

    async def _begin(self, marks: Mapping[str, str]) -> Any:
        rate = self._max_rate
        return await self._server.begin([{"topic": mark, "max_rate": rate} if rate else mark for mark in marks.values()])

    async def _refusals(self, marks: Mapping[str, str]) -> list[str]:
        """Finds the names that the token no longer permits: the server refuses all together."""
        try:
            self._server.leave((await self._begin(marks))["session"])
            return []
        except Problem as problem:
            if problem.code != "forbidden":
                raise
        names, half = [*marks], len(marks) // 2
        parts = [names[:half], names[half:]] if half else []
        return [name for part in parts for name in await self._refusals({name: marks[name] for name in part})] or names

    def _forbid(self, name: str) -> None:
        """Forgets a name that the token no longer permits, so that the others go on."""
        self._names.pop(name, None)
        self._came.pop(name, None)
        if is_pattern(name):
            self._came = {topic: at for topic, at in self._came.items() if any(matches(other, topic) for other in self._names)}

    def _keep(self, left: float) -> None:
        """Renews the token of the session, which has so many seconds left, from now on."""
        self._renewal.cancel()
        self._renewal = asyncio.create_task(self._renew(left))

    async def _renew(self, left: float) -> None:
        """Renews the token when about 80 % of its time is over; after a failure, when most of the rest is."""
        told = moment()
        while (rest := left - since(told)) > 1.0:
            await pause(rest * (0.75 + secrets.randbelow(100) / 1000))
            with suppress(Problem):
                await self._server.authorize(await self._server.authorize())
                left, told = await self._server.extend(self._session), moment()

    def _settle(self, told: Iterable[str]) -> None:
        """Adopts positions that the server told: of patterns, and of topics without a position."""
        for position in map(Position, told):
            topic, came = position.topic, self._came.get(position.topic)
            if came is None or is_pattern(topic):
                self._came[topic] = self._positions[topic] = position
            elif position.offset == 0 < came.offset and topic not in self._names:
                del self._came[topic]  # forgotten; its next message comes without being asked for
                self._positions.pop(topic, None)

    async def _websocket(self) -> None:
        acked = self._count
        async with self._server.connect(f"/v1/ws?session={self._session}&ack={acked}", HELLO_PATIENCE) as (socket, self._watch):
            self._answered = True
            async for line in socket:
                self._take(decode(line), len(line))
                # Acks in time: the server waits for one after `unacked` frames.
                if self._count - acked > self._server.limits.get("unacked", 1024) // 4:
                    acked = self._count
                    await socket.send(json.dumps({"ack": acked}))
        raise Problem("cut", "the WebSocket was closed")

    async def _poll(self, transport: str) -> None:
        streams, timeout = transport == "stream", self._server.seconds("poll_timeout_ms", 25.0)
        query = {"ack": str(self._count), "mode": "stream" if streams else "batch", "r": secrets.token_hex(8)}  # r: against caches
        began, before = moment(), self._count
        if not (streams or self._failures):
            self._show(State("open", transport))  # the server may hold its first answer for long
        # The token in the header is not the session's: if one is refused, the session is renewed first.
        async with self._server.open("GET", f"/v1/sessions/{self._session}/poll", HELLO_PATIENCE if streams else timeout + POLL_SLACK,
                                     renew=False, params=query) as (response, self._watch):
            self._answered = True
            async for frame, size in frames(response, self._watch):
                self._take(frame, size)
        if streams:
            raise Problem("cut", "the stream ended without an end frame")
        if not self._useful and self._count > before:
            raise Problem("repeated", "a poll was answered with what came before")
        if not self._useful and since(began) < min(1.0, timeout / 2):
            raise Problem("cut", "a poll was answered at once with nothing")
        self._prove()
        self._failures = self._rush = 0

    def _prove(self) -> None:
        """Notes that the transport gets through."""
        if self._watch:
            self._watch.patience = 2 * self._server.seconds("heartbeat_ms", 15.0)
        self._settled, self._proven, self._floor, self._refused = True, True, self._level, False
        self._show(State("open", self._transports[self._level]))

    def _take(self, frame: Frame, size: int) -> None:
        if isinstance(frame, Problem):
            raise frame
        if isinstance(frame, Hello):
            self._server.limits.update(frame.limits)
        if frame and not self._proven:
            self._prove()
        if isinstance(frame, Moved):
            for at in frame.positions:
                if self._is_new(Message(at, 0, None)) and self._came.get(at.topic, at).epoch == at.epoch:
                    self._pass(at)
        if not isinstance(frame, (Message, Gap)):
            return
        if len(self._queue) >= self._length or self._bytes >= QUEUE_BYTES:
            raise Problem("full", "the reader is slow")
        self._count += 1
        if not self._is_new(frame):
            return
        self._came[frame.topic], self._useful = frame.position, True
        # There may be any number of topics that are left out. If one fits later, it begins with its first message.
        if isinstance(frame, Gap) and frame.is_left_out and frame.topic not in self._names:
            del self._came[frame.topic]
        if not (self._own and isinstance(frame, Message) and (frame.id or "").startswith(self._own)):
            self._put(frame, size)
        else:
            self._pass(frame.position)
        # The pattern of a topic stays, and the position with it: the topic may be permitted again.
        if isinstance(frame, Gap) and frame.reason == "forbidden" and frame.topic in self._names:
            self._forbid(frame.topic)
            if not self._names:
                raise Problem("forbidden", frame.detail or f"the token no longer permits {frame.topic}", status=403)
        if self._patterned and len(self._came) > self._crowd:
            raise Problem("crowded", "the server may have forgotten some topics")

    def _pass(self, position: Position) -> None:
        """Notes a position that is reached by messages of the caller, which are left out."""
        self._came[position.topic], self._useful = position, True
        if position.topic not in self._waiting:
            self._positions[position.topic] = position

    def _put(self, item: Item, size: int) -> None:
        self._queue.append((item, size))
        self._bytes += size
        self._waiting[item.topic] += 1
        self._arrived.set()

    def _is_new(self, item: Item) -> bool:
        """Whether the subscriber wants the item and does not have it."""
        came, now, wanted = self._came.get(item.topic), item.position, self._patterned or item.topic in self._names
        if not came or came.epoch != now.epoch or now.offset > came.offset:
            return wanted
        if not isinstance(item, Gap):
            return False
        # Only these gaps lead back, or nowhere: the topic's numbering is behind the position, or nothing of it follows.
        if item.reason == "restarted" or item.is_left_out:
            return wanted and item.after == came
        return wanted and item.reason == "forbidden"
