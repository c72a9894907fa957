"""Typed hooks, to which observers (op-log, trace, statistics) subscribe. A hook without listeners costs one test.

Events are tuples, because there are several for every command and message, and tuples are cheap to make.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Literal, NamedTuple, TypeVar

from kernbench.core.log import Row
from kernbench.messages.commands import Command, Operand
from kernbench.messages.requests import PeCoord

E = TypeVar("E")


class Hook(Generic[E]):
    """A list of listeners. Emitters test ``if hook.listeners`` before they make the event."""

    __slots__ = ("listeners",)

    def __init__(self) -> None:
        self.listeners: list[Callable[[E], None]] = []

    def subscribe(self, listener: Callable[[E], None]) -> None:
        """Call ``listener(event)`` from now on, after earlier subscribers."""
        self.listeners.append(listener)

    def emit(self, event: E) -> None:
        """Pass ``event`` to every listener, in order of subscription."""
        for listener in self.listeners:
            listener(event)


class Printed(NamedTuple):
    """A kernel printed a line: texts, and arrays whose values phase 2 computes."""

    pe: PeCoord
    time_ps: int
    line: int
    parts: tuple[Operand | str, ...]


class ScratchWaited(NamedTuple):
    """A kernel waited from ``start_ps`` to ``end_ps`` until commands had freed ``nbytes`` of scratch."""

    pe: PeCoord
    kernel: str
    launch_id: int
    line: int
    nbytes: int
    start_ps: int
    end_ps: int


QueueEventKind = Literal["send", "arrive", "recv"]


class QueueEvent(NamedTuple):
    """Message ``sequence`` of queue ``direction`` of ``pe``, exchanged with ``peer``, changed its state.

    ``kind``: the message is sent, has arrived, or is received by the kernel. A receive with ``nbytes`` 0 precedes the
    message's arrival, so there is no ``row`` in the log yet. The message's slot is at ``pa``.
    """

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
    """The access of ``command`` to memory, from ``start_ps`` to ``end_ps``; a load or store happens at one time."""

    command: Command
    writes: bool
    start_ps: int
    end_ps: int


class Inverted(NamedTuple):
    """Two commands of a kernel accessed the same bytes against program order: ``later`` before ``earlier``.

    These bytes are the ``nbytes`` from ``address`` on.
    """

    pe: PeCoord
    kernel: str
    launch_id: int
    earlier: TookPlace
    later: TookPlace
    address: int
    nbytes: int


class QueueWaited(NamedTuple):
    """A kernel waited from ``start_ps`` to ``end_ps`` at ``line`` for queue ``direction``.

    A ``send`` waits for a slot, a ``recv`` for the message ``sequence``.
    """

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
    """The kernel of ``pe`` released message ``sequence`` of queue ``direction``.

    ``peer`` had sent the message by its queue ``peer_direction``. The credit arrives at ``credited_ps``. None: an
    earlier message still occupies its slot, so no credit is sent yet.
    """

    pe: PeCoord
    direction: str
    sequence: int
    time_ps: int
    peer: PeCoord
    peer_direction: str
    credited_ps: int | None


class Hooks:
    """The hooks of a machine."""

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
