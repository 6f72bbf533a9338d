"""Requests to the server."""

from __future__ import annotations

import asyncio
import inspect
import json
import random
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

from .clock import Watchdog
from .wire import MAX_LINE, NONSENSE, Frame, Position, Problem, decode

T = TypeVar("T")
Token = str | Callable[[], str | Awaitable[str]]

MAX_WAIT = 10.0  # seconds between two attempts, unless the server asks for more
LONGEST_WAIT = 30.0  # the same, if something else answers for the server
CALL_PATIENCE = 30.0  # seconds that a request that is not a poll may be silent
MAX_BODY = 4 << 20  # bytes of an answer that is not a sequence of frames; a list of 500 members may have 1.6 MB


def backoff(failed: int, longest: bool = False) -> float:
    """Returns how long to wait after so many failures in a row: a random part of a bound that doubles."""
    return min(LONGEST_WAIT if longest else MAX_WAIT, 0.2 * 2.0 ** min(failed, 10)) * random.uniform(0.5, 1.0)


@contextmanager
def failures() -> Iterator[None]:
    """Turns errors of connections and answers into Problems."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, ConnectionRefusedError) as error:
        raise Problem("unreachable", f"no connection: {error}") from error
    except TimeoutError as error:
        raise Problem("cut", "nothing came for too long") from error
    except (httpx.HTTPError, WebSocketException, OSError, EOFError) as error:
        raise Problem("cut", f"the connection failed: {type(error).__name__} {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise Problem("malformed", f"the answer makes no sense: {error!r}") from error


async def frames(response: httpx.Response, watch: Watchdog) -> AsyncIterator[tuple[Frame, int]]:
    """Yields the frames of an answer as they come, and their bytes. Raises Problem if one makes no sense or is not whole."""
    rest = b""
    async for chunk in response.aiter_bytes():
        watch.hear()
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield understand(response.status_code, line, decode), len(line)
        if len(rest) > MAX_LINE:
            raise ValueError("a line is too long")
    if rest:
        raise strange(response.status_code, rest)


async def body(response: httpx.Response, watch: Watchdog) -> bytes:
    """Returns the body of an answer. Only the beginning of one that is longer than any of pubsubd."""
    content = b""
    async for chunk in response.aiter_bytes():
        watch.hear()
        content += chunk
        if len(content) > MAX_BODY:
            break
    return content


def refusal(status: int, headers: Mapping[str, str], content: bytes | bytearray) -> Problem:
    """Reads pubsubd's problem, or what something in between says."""
    wait = float(said) if (said := headers.get("Retry-After", "")).isdecimal() else 0.0
    try:
        return Problem.read({"retry_after_ms": wait * 1000, **json.loads(content), "status": status})
    except NONSENSE:
        return foreign(status, "without pubsubd's error body", wait)


def understand(status: int, content: bytes, read: Callable[[bytes], T]) -> T:
    """Reads what an answer has. What cannot be read is no answer, or another program's."""
    try:
        return read(content)
    except NONSENSE as error:
        raise strange(status, content) from error


def strange(status: int, content: bytes) -> Problem:
    """Tells what a 2xx is that was not understood: half of pubsubd's answer, or the words of another program."""
    with suppress(ValueError, RecursionError):
        json.loads(content)
        return foreign(status, "with JSON that is not pubsubd's")
    if content.lstrip()[:1] in (b"", b"{", b"["):
        return Problem("cut", "the answer is not whole")
    return foreign(status, "with a page in place of an answer")


def foreign(status: int, what: str, wait: float = 0.0) -> Problem:
    if status in (502, 503, 504):
        what, remedy = f"{what}: the proxy does not reach pubsubd", "start pubsubd, or correct its address in the proxy"
    else:
        remedy = "is a proxy in between, or is this not a pubsubd server?"
    return Problem("unexpected_answer", f"{status} {what}", status=status, retry_after=wait, remedy=remedy)


def members(*names: str) -> Callable[[Any], dict[str, Any]]:
    """Returns a function that reads the answer to a request about a session."""
    def read(answer: Any) -> dict[str, Any]:
        told = {name: answer[name] for name in names}
        return {**told, "positions": [*map(Position, answer["positions"])], "expires": float(answer.get("expires_ms", 0)) / 1000}
    return read


def address(url: str) -> httpx.URL:
    """Returns the URL of a server. Raises ValueError with what to write."""
    if "@" in url:
        raise ValueError("the URL must not have user:password@; pass credentials as token=")
    with suppress(httpx.InvalidURL):
        parts = httpx.URL(url)
        if parts.scheme in ("http", "https") and parts.host and not (parts.query or parts.fragment):
            return parts
    raise ValueError(f"the URL must begin with http:// or https://, and have a host and nothing after the path; got {url!r}")


def bearer(token: object) -> dict[str, str]:
    """Returns the header with a token, without white space around it. Raises ValueError, which does not quote the token."""
    text = token.strip() if isinstance(token, str) else ""
    if not re.fullmatch("[!-~]+", text):
        raise ValueError('the token must be text of visible ASCII characters, and not empty: no spaces, no "Bearer"')
    return {"Authorization": f"Bearer {text}"}


class Socket(ClientConnection):
    """A WebSocket that tells when bytes come. It follows no redirect: the token is for this server."""

    hear: Callable[[], None] = staticmethod(lambda: None)

    def data_received(self, data: bytes) -> None:
        self.hear()
        super().data_received(data)

    async def handshake(self, *args: Any, **kwargs: Any) -> None:
        try:
            await super().handshake(*args, **kwargs)
        except InvalidStatus as error:
            answer = error.response
            raise refusal(answer.status_code, answer.headers, answer.body or b"") from error


class Server:
    """The server at a URL: sends requests, and asks for a new token when one is refused."""

    def __init__(self, url: str, token: Token | None, context: ssl.SSLContext | None) -> None:
        self.use(token)
        self.limits: dict[str, int] = {}  # as the server told last; empty until then
        self._asking, self._ssl = asyncio.Lock(), context or httpx.create_ssl_context()
        self._http = httpx.AsyncClient(base_url=address(url), verify=self._ssl, headers={"User-Agent": "pubsubpy"},
                                       limits=httpx.Limits(max_connections=None, max_keepalive_connections=20))
        self._leaving: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        await asyncio.gather(*self._leaving)
        await self._http.aclose()

    def seconds(self, limit: str, default: float) -> float:
        """Returns a limit of time. The server tells it in milliseconds."""
        return min(max(self.limits.get(limit, 0) / 1000, 0.0), 86_400.0) or default

    def use(self, token: Token | None) -> None:
        """Takes another token, or another function that returns one. Raises ValueError if it cannot be a token."""
        self._header = {} if token is None or callable(token) else bearer(token)
        self._source = token

    async def authorize(self, refused: Mapping[str, str] | None = None) -> dict[str, str]:
        """Returns the header with the token in use. If that is `refused`, gets a new token first.

        Others do not wait meanwhile: a function that takes long delays no poll and no publish.
        """
        if callable(source := self._source) and self._header == (refused or {}):
            async with self._asking:
                if source is self._source and self._header == (refused or {}):
                    try:
                        token = source()
                        token = await token if inspect.isawaitable(token) else token
                    except (Exception, asyncio.CancelledError) as error:
                        if isinstance(error, asyncio.CancelledError) and (task := asyncio.current_task()) and task.cancelling():
                            raise
                        raise Problem("token_failed", f"the token function failed: {type(error).__name__}: {error}") from error
                    try:
                        header = bearer(token)
                    except ValueError as error:
                        raise Problem("token_failed", f"the token function returned no token: {error}") from None
                    if source is self._source:
                        self._header = header
        return self._header

    @asynccontextmanager
    async def open(self, method: str, path: str, patience: float, *, renew: bool = True, headers: Mapping[str, str] | None = None,
                   **request: Any) -> AsyncIterator[tuple[httpx.Response, Watchdog]]:
        """Sends a request. The answer may be silent for `patience` seconds. Raises Problem unless it is 2xx.

        With renew, the request is repeated with a new token when one is refused.
        """
        with failures():
            sent = await self.authorize()
            for last in (not renew, True):
                request["headers"], request["timeout"] = {**(headers or {}), **sent}, httpx.Timeout(10.0, read=None)
                async with Watchdog(patience) as watch, self._http.stream(method, path, **request) as response:
                    if response.is_success:
                        yield response, watch
                        return
                    problem = refusal(response.status_code, response.headers, await body(response, watch))
                if last or problem.status != 401 or sent == (sent := await self.authorize(sent)):
                    raise problem

    async def call(self, method: str, path: str, read: Callable[[Any], Any] | None = lambda answer: answer, **request: Any) -> Any:
        """Sends a request, and reads the JSON of its answer."""
        async with self.open(method, path, CALL_PATIENCE, **request) as (response, watch):
            content = await body(response, watch)
        return read and understand(response.status_code, content, lambda content: read(json.loads(content)))

    @asynccontextmanager
    async def connect(self, path: str, patience: float) -> AsyncIterator[tuple[Socket, Watchdog]]:
        """Opens a WebSocket, which may be silent for `patience` seconds."""
        url = "ws" + str(self._http.base_url).rstrip("/").removeprefix("http") + path
        with failures():
            sent = await self.authorize()
            async with Watchdog(patience) as watch, connect(
                    url, additional_headers=sent, ssl=self._ssl if url.startswith("wss") else None, compression=None,
                    max_size=MAX_LINE, open_timeout=None, close_timeout=0.1, ping_interval=self.seconds("heartbeat_ms", 15.0),
                    ping_timeout=None, create_connection=Socket) as socket:
                assert isinstance(socket, Socket)
                socket.hear = watch.hear
                yield socket, watch

    async def begin(self, topics: list[Any]) -> Any:
        """Opens a session and learns the server's limits."""
        answer = await self.call("POST", "/v1/sessions", members("session", "limits"), json={"topics": topics})
        self.limits.update(answer["limits"])
        return answer

    async def extend(self, session: str) -> float:
        """Renews a session with the token in use. Returns the seconds until that expires; 0 if it does not."""
        return float((await self.call("PATCH", f"/v1/sessions/{session}", members(), json={}))["expires"])

    def leave(self, session: str) -> None:
        """Ends a session in the background. Otherwise the server ends it when no poll comes."""
        async def end() -> None:
            with suppress(Problem, TimeoutError):
                await asyncio.wait_for(self.call("DELETE", f"/v1/sessions/{session}", None), 2.0)
        if session:
            task = asyncio.create_task(end())
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
