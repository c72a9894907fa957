"""A typed hook: where who has to be told at once subscribes. One that nobody listens to costs a test."""

from __future__ import annotations

from collections.abc import Callable
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
