"""Typed hooks: where observers (op-log, trace, statistics) subscribe. A hook nobody listens to costs a test.

Events are immutable; tuples, because there are several for every command and message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Literal, NamedTuple, TypeVar

from kernbench.core.log import Row
from kernbench.messages.commands import Command, Operand
from kernbench.messages.requests import PeCoord

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


class Printed(NamedTuple):
    """A kernel printed a line: texts, and arrays whose values phase 2 knows."""

    pe: PeCoord
    time_ps: int
    line: int
    parts: tuple[Operand | str, ...]


class ScratchWaited(NamedTuple):
    """A kernel waited from ``start_ps`` to ``end_ps`` until a command gave back scratch, for ``nbytes`` of it."""

    pe: PeCoord
    kernel: str
    launch_id: int
    line: int
    nbytes: int
    start_ps: int
    end_ps: int


QueueEventKind = Literal["send", "arrive", "recv"]


class QueueEvent(NamedTuple):
    """Message ``sequence`` of queue ``direction`` of ``pe``, exchanged with ``peer``: it is sent, it is there, or the
    kernel takes it (``nbytes`` 0: it is yet to come, and has no ``row`` in the log). Its slot is at ``pa``."""

    pe: PeCoord
    kind: QueueEventKind
    direction: str
    nbytes: int
    sequence: int
    time_ps: int
    peer: PeCoord
    row: Row
    pa: int


class TookPlace(NamedTuple):
    """``command`` read or wrote bytes in memory, from ``start_ps`` to ``end_ps``; a load or a store at once."""

    command: Command
    writes: bool
    start_ps: int
    end_ps: int


class Inverted(NamedTuple):
    """The ``later`` of two commands in a kernel's program took place first, and both touch the same ``nbytes``.

    The first of them is at ``address``.
    """

    pe: PeCoord
    kernel: str
    launch_id: int
    earlier: TookPlace
    later: TookPlace
    address: int
    nbytes: int


class QueueWaited(NamedTuple):
    """A kernel waited from ``start_ps`` to ``end_ps`` at ``line``: to send, for a slot of queue ``direction``; to
    receive, for the message ``sequence`` of it."""

    pe: PeCoord
    kernel: str
    launch_id: int
    line: int
    kind: Literal["send", "recv"]
    direction: str
    sequence: int
    start_ps: int
    end_ps: int


class SlotReleased(NamedTuple):
    """The kernel of ``pe`` has done with message ``sequence`` of queue ``direction``, which ``peer`` sent by its queue
    ``peer_direction``. The credit is there at ``credited_ps``; None: an earlier message is still held."""

    pe: PeCoord
    direction: str
    sequence: int
    time_ps: int
    peer: PeCoord
    peer_direction: str
    credited_ps: int | None


class Hooks:
    """All hooks of a machine."""

    __slots__ = (
        "inverted",
        "printed",
        "queue",
        "queue_waited",
        "scratch_waited",
        "slot_released",
    )

    def __init__(self) -> None:
        self.printed: Hook[Printed] = Hook()
        self.scratch_waited: Hook[ScratchWaited] = Hook()
        self.inverted: Hook[Inverted] = Hook()
        self.queue: Hook[QueueEvent] = Hook()
        self.queue_waited: Hook[QueueWaited] = Hook()
        self.slot_released: Hook[SlotReleased] = Hook()
