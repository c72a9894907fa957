"""Typed hooks: where observers (op-log, trace, statistics, sanitizer) subscribe. A hook nobody listens to costs a test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

E = TypeVar("E")


class Hook(Generic[E]):
    """A list of listeners. Models test ``if hook.listeners`` before they build the event."""

    __slots__ = ("listeners",)

    def __init__(self) -> None:
        self.listeners: list[Callable[[E], None]] = []

    def subscribe(self, listener: Callable[[E], None]) -> None:
        """Call ``listener(event)`` from now on, after those that came before."""
        self.listeners.append(listener)

    def unsubscribe(self, listener: Callable[[E], None]) -> None:
        """Stop calling ``listener``; ValueError when it never subscribed."""
        self.listeners.remove(listener)

    def emit(self, event: E) -> None:
        """Hand ``event`` to every listener in order."""
        for listener in self.listeners:
            listener(event)


@dataclass(frozen=True, slots=True)
class LinkBusy:
    """A link carried ``nbytes`` of transfer ``transfer_id`` from ``start_ps`` to ``end_ps`` (one or more packets)."""

    src: str
    dst: str
    transfer_id: int
    start_ps: int
    end_ps: int
    nbytes: int
