"""A client for pubsubd, on asyncio."""

from .client import Client, HistoryPage, Publication, Published
from .presence import Member, Presence, PresenceChange
from .subscription import State, Subscription
from .wire import Gap, Item, Message, Position, Problem

__version__ = "0.1.0"
__all__ = ["Client", "Gap", "HistoryPage", "Item", "Member", "Message", "Position", "Presence", "PresenceChange", "Problem",
           "Publication", "Published", "State", "Subscription"]
