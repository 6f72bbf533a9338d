"""Frames, positions and problems, as PROTOCOL.md describes them."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

MAX_LINE = 64 << 20  # bytes of a frame: more than the largest message that a server can allow, 8 MiB, with escapes

_TOKEN = "[A-Za-z0-9_-]+"
_BOUND = r"(?:_presence\.)?(?![^@]{256})"  # at most 255 bytes; those of a presence topic are of the topic that it is about
TOPIC = rf"{_BOUND}(?:{_TOKEN}\.){{0,15}}{_TOKEN}"
NAME = rf"{_BOUND}(?:(?:{_TOKEN}|\*)\.){{0,15}}(?:{_TOKEN}|\*|>)"
_POSITION = re.compile(rf"({NAME})@([0-9a-z]{{1,16}}):(0|[1-9][0-9]{{0,15}})")


class Problem(Exception):
    """An error with a code to act on.

    The server's codes are listed in PROTOCOL.md. The client's own codes are: unreachable (no
    connection), cut (an answer is missing or not whole), malformed and unexpected_answer (not pubsubd's words),
    token_failed, queue_full, closed, and unknown (the message may have been published).
    """

    def __init__(self, code: str, detail: str, *, status: int = 0, remedy: str = "", retry_after: float = 0) -> None:
        super().__init__(f"{code}: {detail}" + (f" ({remedy})" if remedy else ""))
        self.code, self.detail, self.remedy, self.status = code, detail, remedy, status  # 0 if the server did not answer
        self.retry_after = min(max(retry_after, 0.0), 3600.0)  # seconds to wait at least

    @classmethod
    def read(cls, members: dict[str, Any]) -> Problem:
        if not isinstance(members["code"], str):
            raise TypeError("code is not text")
        return cls(members["code"], str(members.get("detail", members["title"])), status=int(members["status"]),
                   remedy=str(members.get("remedy", "")), retry_after=members.get("retry_after_ms", 0) / 1000)

    @property
    def by_server(self) -> bool:
        """Whether pubsubd itself answered this, not something in between."""
        return self.status > 0 and self.code != "unexpected_answer"

    @property
    def transient(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in (0, 408, 425, 429) or self.status >= 500

    @property
    def uncertain(self) -> bool:
        """Whether the server may have carried out the request."""
        if self.by_server:
            return self.status >= 500 and self.status != 503
        return self.transient and self.code in ("cut", "malformed", "unexpected_answer")


class Position(str):
    """The last message of a topic that a subscriber has: topic@epoch:offset. Patterns have positions, too."""

    topic: str
    epoch: str
    offset: int

    def __new__(cls, text: str) -> Position:
        """Raises Problem invalid_position."""
        parts = _POSITION.fullmatch(text) if isinstance(text, str) else None
        if not parts or int(parts[3]) >= 1 << 53:
            raise Problem("invalid_position", f"{repr(text)[:300]} is not a position", remedy="write topic@epoch:offset, now or oldest")
        self = super().__new__(cls, text)
        self.topic, self.epoch, self.offset = parts[1], parts[2], int(parts[3])
        return self


@dataclass(frozen=True, slots=True)
class Message:
    """A message. data is a JSON value; if the message has a media type, it is text or bytes.

    by is the verified subject of the publisher, and claims are the public claims of its token, if the topic tells them.
    """

    position: Position
    time: int  # Unix milliseconds
    data: Any
    type: str | None = None
    id: str | None = None
    key: str | None = None
    by: str | None = None
    claims: dict[str, Any] | None = None

    @property
    def topic(self) -> str:
        return self.position.topic


@dataclass(frozen=True, slots=True)
class Gap:
    """The messages after `after`, up to and including `position`, are lost to this subscriber."""

    topic: str
    reason: str
    after: Position
    position: Position
    detail: str = ""  # of a topic that is forbidden: the application's own words

    @property
    def is_left_out(self) -> bool:
        """Whether no message of the topic follows, because the patterns match more topics than fit."""
        return self.reason == "unfollowed" and self.after == self.position


class Hello(NamedTuple):
    """The first frame of a stream. Limits are by name, times in milliseconds."""

    positions: list[Position]
    limits: dict[str, int]


class Moved(NamedTuple):
    """Positions that the subscriber has reached although no message came: the server left out its own."""

    positions: list[Position]


class Done(NamedTuple):
    """The last frame of a history. Where the next page begins, and whether the history holds more."""

    position: Position
    more: bool


Item = Message | Gap
# A Problem ends the answer. None says nothing: a heartbeat, a reply, or a frame of an unknown kind.
Frame = Message | Gap | Moved | Hello | Done | Problem | None

# What reading an answer raises that is not what it should be.
NONSENSE = (Problem, ValueError, KeyError, TypeError, AttributeError, RecursionError)


def check_topic(name: str, form: str = TOPIC) -> str:
    """Returns the name of a topic, or with the form NAME of a pattern too. Raises Problem invalid_topic."""
    if not re.fullmatch(form, name):
        raise Problem("invalid_topic", f"{name[:300]!r} is not a topic",
                      remedy="write up to 16 segments of ASCII letters, digits, - and _, with dots between")
    return name


def is_pattern(name: str) -> bool:
    return "*" in name or ">" in name


def matches(name: str, topic: str) -> bool:
    """Whether a topic is the one of that name, or a pattern of that name covers it."""
    return bool(re.fullmatch(name.replace(".", r"\.").replace("*", "[^.]+").replace(">", ".+"), topic))


def decode(line: str | bytes) -> Frame:
    """Reads a line of NDJSON. Raises Problem malformed."""
    try:
        frame = json.loads(line) if line.strip() else {}
        if not (kinds := {"position", "gap", "moved", "hello", "end", "reply", "done"} & frame.keys()):
            return None
        (kind,) = kinds
        if kind == "position":
            return _message(frame)
        inner = frame[kind]
        if kind == "moved":
            return Moved([Position(p) for p in inner["positions"]])
        if kind == "hello":
            return Hello([Position(p) for p in inner["positions"]], inner.get("limits", {}))
        if kind == "gap":
            gap = Gap(inner["topic"], inner["reason"], Position(inner["after"]), Position(inner["position"]), inner.get("detail", ""))
            if not gap.topic == gap.after.topic == gap.position.topic:
                raise ValueError("the gap is of two topics")
            return gap
        if kind == "done":
            return Done(Position(inner["position"]), inner["more"])
        problem = inner if kind == "end" else inner.get("problem")
        return problem and Problem.read(problem)
    except NONSENSE as error:
        raise Problem("malformed", f"a frame makes no sense: {error!r}") from error


def _message(frame: dict[str, Any]) -> Message:
    (payload,) = {"data", "text", "base64"} & frame.keys()
    kind, time = frame.get("type"), frame["time"]
    if not isinstance(time, int) or (kind is None) != (payload == "data"):
        raise ValueError("the members do not fit together")
    data = base64.b64decode(frame[payload], validate=True) if payload == "base64" else frame[payload]
    return Message(Position(frame["position"]), time, data, kind, *map(frame.get, ("id", "key", "by", "claims")))
