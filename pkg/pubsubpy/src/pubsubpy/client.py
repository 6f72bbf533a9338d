"""The client: subscribes and publishes."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from .clock import Moment, moment, pause, since
from .presence import PREFIX, Presence
from .server import CALL_PATIENCE, Server, T, Token, backoff, frames
from .subscription import MOST_NEWEST, From, State, Subscription, begins
from .wire import Done, Gap, Item, Message, Position, Problem, check_topic

SubscriptionT = TypeVar("SubscriptionT", bound=Subscription[Any])

WINDOW = 120.0  # seconds that a server remembers an idempotency key, unless it says otherwise
MANY, MANY_BYTES = 100, 250_000  # messages in a request, and their bytes


class Published(NamedTuple):
    """Where and when (Unix milliseconds) the server put a message."""

    position: Position
    time: int


class Publication(NamedTuple):
    """A message of publish_many. The fields are the arguments of publish."""

    topic: str
    data: Any
    type: str | None = None
    idempotency_key: str | None = None
    ttl: int | None = None
    key: str | None = None


class HistoryPage(NamedTuple):
    """A part of a topic's history.

    items: messages, and gaps among them, oldest first. before: for the page of older messages, of which more says
    whether there are any. next: as from_ of a subscription to what comes after the page.
    """

    items: list[Item]
    before: Position | None
    more: bool
    next: str


class Client(AbstractAsyncContextManager["Client"]):
    """Subscribes to topics of a pubsubd server, and publishes. Use it as `async with Client(url) as client`.

    token: a string, or a function (or coroutine function) that returns one. The client calls the function
    again when most of the token's time is over, and when the server refuses the token. White space around a
    token does not matter. Raises ValueError for a string that cannot be a token. queue: how many items
    may wait in each subscription. max_pending: how many publishes may wait while the server is away.
    transports: those to try, in order. on_state: called with each new State of a subscription; what it raises
    goes to the exception handler of the event loop. ssl: a context for https.
    """

    def __init__(self, url: str, *, token: Token | None = None, queue: int = 1000, max_pending: int = 1000,
                 transports: Sequence[str] = ("websocket", "stream", "poll"),
                 on_state: Callable[[State], None] = lambda state: None, ssl: ssl.SSLContext | None = None) -> None:
        if not transports or not {*transports} <= {"websocket", "stream", "poll"}:
            raise ValueError(f"transports must be some of websocket, stream and poll; got {transports!r}")
        self._server, self._transports, self._on_state = Server(url, token, ssl), tuple(transports), on_state
        self._queue, self._max_pending, self._pending = queue, max_pending, 0
        self._subscriptions: set[Subscription[Any]] = set()
        self._prefix = secrets.token_hex(8) + "-"  # of ids
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by topic
        self._slots, self._closed = asyncio.Semaphore(16), asyncio.Event()  # publishes at one time

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends all subscriptions, publishes that wait, and connections."""
        self._closed.set()
        for subscription in list(self._subscriptions):
            subscription.close()
        await self._server.close()

    def set_token(self, token: Token) -> None:
        """Takes another token, or a function that returns one, from now on. Open subscriptions continue with it.

        Raises ValueError for a string that cannot be a token.
        """
        self._server.use(token)

    def subscribe(self, topics: str | Iterable[str], *, from_: From = "now", max_rate: str = "",
                  echo: bool = True) -> Subscription[Item]:
        """Subscribes to topics and patterns. Items are Messages and Gaps.

        from_: "now", "oldest", a position, or positions (topics without one begin now). {"newest": N}: with the newest N
        messages of each topic, 1 to 1000. max_rate: limits the deliveries of each topic, such as 5/s. echo=False leaves
        out what this client publishes, unless the caller chose the id. Each subscription has its own session and
        connection. Raises Problem invalid_topic or invalid_position.
        """
        return self._subscribe(Subscription[Item], topics, from_, max_rate, echo)

    def follow(self, topic: str, load: Callable[[Position], Awaitable[object]], *, echo: bool = True) -> Subscription[Message]:
        """Calls load with a position, then delivers every message after that position.

        load fetches the application's state. The state must contain everything that was published up to the
        position. When messages are lost, the client calls load again, with the position after them.
        """
        return self._subscribe(Subscription[Message], check_topic(topic), echo=echo, load=load)

    def presence(self, topic: str) -> Presence:
        """Knows who is on a topic, and tells who comes and goes. Has its own session and connection.

        It ends with the Problem not_found if the topic's rule has no `presence: true`, and with forbidden without the
        right presence. Raises Problem invalid_topic.
        """
        return self._subscribe(Presence, PREFIX + check_topic(topic))

    async def history(self, topic: str, before: str | None = None, limit: int = 50) -> HistoryPage:
        """Returns the newest messages of a topic; with before, those just before that position. limit: how many, 1 to 1000.

        To read backwards, give the page's before, as long as more is true. A topic that does not exist has an empty
        page. If the server does not know the position, the page is one gap, restarted. Needs the right history. Waits
        while the server is away, overloaded or limits it. Raises Problem: the server's, unexpected_answer if another
        program refuses it, or closed.
        """
        check_topic(topic)
        if type(limit) is not int or not 1 <= limit <= MOST_NEWEST:
            raise Problem("invalid_request", f"limit must be 1 to {MOST_NEWEST}; got {limit!r}")
        if before is not None and Position(before).topic != topic:
            raise Problem("invalid_position", f"before must be a position of {topic}; got {before}")
        query = {"newest": str(limit)} if before is None else {"before": before, "limit": str(limit)}

        async def attempt(_: Moment | None) -> HistoryPage:
            async with self._server.open("GET", f"/v1/topics/{topic}/messages", CALL_PATIENCE, params=query) as (response, watch):
                came = [frame async for frame, _ in frames(response, watch)]
            if not came or not isinstance(done := came[-1], Done):
                raise Problem("cut", "the history ended without done")
            items = [frame for frame in came if isinstance(frame, Message | Gap)]
            return HistoryPage(items, done.position, done.more, items[-1].position if items else done.position)

        try:
            return await self._repeat(attempt, safe=True)
        except Problem as problem:
            if problem.code != "topic_unknown":
                raise
            return HistoryPage([], Position(before) if before else None, False, "oldest")  # its first message is new

    def _subscribe(self, kind: type[SubscriptionT], topics: str | Iterable[str], from_: From = "now", max_rate: str = "",
                   echo: bool = True, load: Callable[[Position], Awaitable[object]] | None = None) -> SubscriptionT:
        if self._closed.is_set():
            raise Problem("closed", "the client is closed")
        length = max(self._queue, 2 if kind is Presence else 1)  # a change that waits must not fill the queue of a Presence
        subscription = kind(self._server, self._transports, *begins(topics, from_), length=length, max_rate=max_rate,
                            own="" if echo else self._prefix, load=load, report=self._on_state, closed=self._subscriptions.discard)
        self._subscriptions.add(subscription)
        return subscription

    async def publish(self, topic: str, data: Any, *, type: str | None = None, idempotency_key: str | None = None,
                      ttl: int | None = None, key: str | None = None, wait: bool = False) -> Published:
        """Publishes a JSON value or bytes; with a media type, text or bytes.

        idempotency_key: 1 to 255 printable ASCII characters; a new one by default. ttl: whole seconds. key: for
        conflation. wait=True waits, too, when max_pending publishes wait. Publishes to a topic keep their order. They
        wait while the server is away, overloaded or limits them. If an answer is lost, the client repeats the publish
        while the server remembers its key. Raises Problem: the server's, unexpected_answer if another program refuses
        the message, queue_full, closed, or unknown if the message may have been published.
        """
        message = self._complete(Publication(topic, data, type, idempotency_key, ttl, key))
        name = str(message.idempotency_key).replace("\\", "\\\\").replace('"', '\\"')
        request = {"content": message.data if message.type else to_json(data),
                   "params": {k: str(v) for k, v in (("ttl", ttl), ("key", key)) if v is not None},
                   "headers": {"Content-Type": message.type or "application/json", "Idempotency-Key": f'"{name}"'}}
        if self._pending >= self._max_pending and not wait:
            raise Problem("queue_full", f"{self._pending} publishes wait", remedy="publish less, raise max_pending, or set wait=True")

        return await self._deliver({topic}, lambda _: self._server.call("POST", f"/v1/topics/{topic}/messages", read_published, **request))

    async def publish_many(self, messages: Iterable[Publication]) -> list[Published | Problem]:
        """Publishes messages in order. Returns a Published or a Problem for each.

        A request has up to 100 messages. The next ones are taken when it is answered, so an iterator may have any
        number. Publishes that wait do not matter, and the call counts as one of them. A mistake in one message does not
        stop the others. When the client is closed, it takes no more messages, and returns the results of those that it took.
        """
        results: list[Published | Problem] = []
        batch: dict[int, tuple[str, bytes]] = {}  # by the place of the result: the topic, and the JSON of the message
        for message in messages:
            try:
                item = to_item(self._complete(message))
            except Problem as problem:
                results.append(problem)
            else:
                if len(batch) == MANY or batch and len(item) + sum(len(other) for _, other in batch.values()) > MANY_BYTES:
                    await self._publish_batch(batch, results)
                    batch = {}
                batch[len(results)] = message.topic, item
                results.append(Problem("closed", "the client is closed"))
            if self._closed.is_set():
                return results
        if batch:
            await self._publish_batch(batch, results)
        return results

    async def _publish_batch(self, batch: dict[int, tuple[str, bytes]], results: list[Published | Problem]) -> None:
        async def attempt(lost: Moment | None) -> None:
            most, wait, later, answers = MANY, 0.0, None, list[Published | Problem]()  # most: fewer after a proxy refused a request
            while batch and not later:
                await self._wait(lost, wait)
                wait, part = 0.0, list(batch.items())[:most]
                try:
                    answers = await self._server.call("POST", "/v1/messages", partial(read_results, len(part)), headers={
                        "Content-Type": "application/json"}, content=b"[" + b",".join(item for _, (_, item) in part) + b"]")
                    most *= 2
                except Problem as problem:
                    if problem.transient or problem.by_server:
                        raise
                    # A request without the message that a proxy refuses may get through: find it soon, but do not flood the proxy.
                    most, wait, answers = max(len(part) // 2, 1), backoff(1), [problem] if len(part) == 1 else []
                for (place, _), answer in zip(part, answers, strict=False):
                    if not (isinstance(answer, Problem) and answer.transient):
                        results[place] = doubtful(answer) if lost and isinstance(answer, Problem) else answer
                        del batch[place]
                    elif later is None or (answer.uncertain and not later.uncertain):
                        later = answer  # an uncertain one begins the window
            if later:
                raise later

        try:
            await self._deliver({topic for topic, _ in batch.values()}, attempt)
        except Problem as problem:
            for place in batch:
                results[place] = problem

    def _complete(self, message: Publication) -> Publication:
        """Returns the message with an idempotency key, and with the type of its bytes. Raises Problem."""
        if not isinstance(message, Publication) or not isinstance(message.topic, str):
            raise Problem("invalid_request", f"publish_many takes Publications, and a topic is text; got {repr(message)[:300]}")
        topic, data, kind, name, *_ = message
        check_topic(topic)
        name = self._prefix + secrets.token_hex(8) if name is None else name
        if isinstance(data, bytes | bytearray | memoryview):
            data, kind = bytes(data), kind or "application/octet-stream"
        elif kind is not None and not (kind and isinstance(data, str)):
            raise Problem("invalid_body", "with a type, data must be text or bytes", remedy="leave out the type to publish JSON")
        if not all(isinstance(text, str) and text.isascii() and text.isprintable() for text in (name, kind or "")) or not 1 <= len(name) <= 255:
            raise Problem("invalid_request", "idempotency_key and type are text of printable ASCII, and the key has 1 to 255 characters")
        return message._replace(data=data, type=kind, idempotency_key=name)

    async def _deliver(self, topics: Iterable[str], attempt: Callable[[Moment | None], Awaitable[T]]) -> T:
        """Makes attempts, in the turn of the topics, until one succeeds or fails for good."""
        self._pending += 1
        try:
            async with AsyncExitStack() as held:
                for topic in sorted(topics):  # in one order, or two could wait for each other
                    await held.enter_async_context(self._turns.setdefault(topic, asyncio.Lock()))
                await held.enter_async_context(self._slots)
                return await self._repeat(attempt)
        finally:
            self._pending -= 1

    async def _repeat(self, attempt: Callable[[Moment | None], Awaitable[T]], safe: bool = False) -> T:
        """Makes attempts until one succeeds or fails for good. Safe ones may be repeated at any time."""
        lost, wait, tries, failed = None, 0.0, 0, ""  # lost: when the first attempt began whose outcome is unknown
        try:
            while True:
                await self._wait(lost, wait)
                if lost and not self._server.limits:
                    with suppress(Problem):  # without the right to subscribe, the default counts
                        self._server.leave((await self._server.begin([]))["session"])
                    await self._wait(lost, 0.0)
                began = moment()
                try:
                    return await attempt(lost)
                except Problem as problem:
                    if not problem.transient:
                        raise doubtful(problem) if lost else problem
                    lost = lost or (began if problem.uncertain and not safe else None)
                    wait, tries, failed = max(problem.retry_after, backoff(tries)), tries + 1, str(problem)
        except asyncio.CancelledError as cancelled:
            if failed:
                cancelled.add_note(f"The client retried after this: {failed}")
            raise

    async def _wait(self, lost: Moment | None, seconds: float) -> None:
        """Waits before an attempt. Raises unknown if the server may have forgotten the key of a publish when it is repeated."""
        # Not in the last quarter: a request takes some time to arrive.
        if lost and since(lost) + seconds > 0.75 * self._server.seconds("idempotency_ms", WINDOW):
            raise Problem("unknown", "no answer came in time", remedy="read the topic: the message may have been published")
        await pause(seconds, self._closed)
        if self._closed.is_set():
            raise Problem("unknown" if lost else "closed", "the client is closed")


def read_published(answer: Any) -> Published:
    return Published(Position(answer["position"]), int(answer["time"]))


def read_results(number: int, answer: Any) -> list[Published | Problem]:
    """Reads the answer to a publish of so many messages. Raises ValueError for another number of results."""
    return [Problem.read(each["problem"]) if "problem" in each else read_published(each)
            for each, _ in zip(answer, range(number), strict=True)]


def doubtful(problem: Problem) -> Problem:
    """Returns the refusal of a message that an earlier attempt may have published."""
    detail = f"{problem.detail}; an earlier attempt had no answer, so the message may have been published"
    return Problem(problem.code, detail, status=problem.status, remedy=problem.remedy)


def to_json(value: Any) -> bytes:
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise Problem("invalid_body", f"the data is not JSON: {error}", remedy="publish a JSON value or bytes; with a type, text or bytes") from error


def to_item(message: Publication) -> bytes:
    """Returns a complete message as POST /v1/messages takes it."""
    topic, data, kind, name, ttl, key = message
    form = "data" if not kind else "text" if isinstance(data, str) else "base64"
    rest = {k: v for k, v in (("ttl", ttl), ("key", key), ("type", kind)) if v is not None}
    return to_json({"topic": topic, "id": name, **rest, form: base64.b64encode(data).decode() if form == "base64" else data})
