"""Who is on a topic: a list, and the changes after it."""

from __future__ import annotations

from typing import Any, NamedTuple

from .subscription import Subscription
from .wire import Gap, Item, Position, Problem

PREFIX = "_presence."  # of the topic with the changes


class Member(NamedTuple):
    """A subscriber. The subject and the claims are of its token, so they are verified. The client is a name that it chose."""

    key: str  # of the subject and the client together
    subject: str | None
    client: str | None
    claims: dict[str, Any] | None
    since: int  # Unix milliseconds

    @classmethod
    def read(cls, key: str, told: dict[str, Any]) -> Member:
        return cls(key, told.get("subject"), told.get("client"), told.get("claims"), int(told["since"]))


class PresenceChange(NamedTuple):
    """A change of a Presence: join and leave of the member, count, or list, after the whole list was read."""

    event: str
    member: Member | None = None


class Presence(Subscription[PresenceChange]):
    """Knows who is on a topic. Iterate to get each PresenceChange. Leaving an `async for` closes it.

    members has them by key, and count is their number. It is a new dict after each change, so it stays as it is during a
    loop. anonymous: the number of subscribers that are no members. exact: false for a large audience; then members has
    only some of those who were there, and only the counts change. All of them change when the server tells a change,
    whether somebody iterates or not. When half of the client's queue is full of changes, one change, list, replaces them.
    """

    members: dict[str, Member] = {}
    count, anonymous, exact = 0, 0, False
    _fixed = True

    async def get(self) -> PresenceChange:
        """Returns the next change. Raises Problem: closed after close(), or why the presence ended."""
        change: PresenceChange = await self._pop()
        return change

    async def _open(self) -> None:
        """Begins a new session after the list. So the list is right after each loss of changes."""
        (name,) = self._names
        at, self.members, self.count, self.anonymous, self.exact = await self._server.call(
            "GET", f"/v1/topics/{name.removeprefix(PREFIX)}/presence", read_list)
        self._came = self._positions = {name: at}
        await super()._open()
        self._tell(PresenceChange("list"))

    def _put(self, item: Item, size: int) -> None:
        if isinstance(item, Gap):
            if item.reason not in ("conflated", "forbidden"):
                self._useful = False
                raise Problem("incomplete", f"changes are missing: {item.reason}")
            return
        told, key, members = item.data, str(item.key), dict(self.members)
        match told["event"]:
            case "count":
                self.count, self.anonymous, self.exact = told["count"], told["anonymous"], told["exact"]
                return self._tell(PresenceChange("count"))
            case "join":
                member = members[key] = Member.read(key, told)
            case "leave" if key in members:
                member = members.pop(key)
            case _:
                return
        self.members, self.count = members, len(members)
        self._tell(PresenceChange(told["event"], member))

    def _tell(self, change: PresenceChange) -> None:
        if len(self._queue) >= self._length // 2:  # with more, the subscription would wait for the reader
            self._queue.clear()
            change = PresenceChange("list")
        self._queue.append((change, 0))
        self._arrived.set()


def read_list(answer: Any) -> tuple[Position, dict[str, Member], int, int, bool]:
    members = {each["key"]: Member.read(each["key"], each) for each in answer["members"]}
    return Position(answer["position"]), members, int(answer["count"]), int(answer["anonymous"]), bool(answer["exact"])
