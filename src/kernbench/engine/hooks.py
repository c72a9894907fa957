"""Typed hooks: where observers (op-log, trace, statistics) subscribe. A hook nobody listens to costs a test.

Events are immutable; tuples, because there are several for every command and message.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from kernbench.core.hook import Hook
from kernbench.core.log import Row
from kernbench.messages.commands import (
    AtomicCommand,
    GemmComposite,
    LoadCommand,
    MathComposite,
    PeCommand,
    StoreCommand,
)
from kernbench.messages.operands import Operand
from kernbench.messages.requests import HostMsg, PeCoord
from kernbench.transport import Transfer


class Moved(NamedTuple):
    """What a DMA operation moves: ``segments`` are the physical (address, nbytes) ranges of the memory side."""

    what: LoadCommand | StoreCommand | AtomicCommand | HostMsg
    segments: tuple[tuple[int, int], ...]


class Streamed(NamedTuple):
    """A composite; ``segments`` are the physical ranges of what it streams: inputs, epilogue operands, output."""

    what: GemmComposite | MathComposite
    segments: tuple[tuple[tuple[int, int], ...], ...]


class TileMoved(NamedTuple):
    """A tile of operation ``parent`` moves its window of ``operand``: ``a``, ``b``, ``x0``, ``epilogue0``, ``out`` …"""

    parent: int
    operand: str
    tile: tuple[int, ...]
    reading: bool


class OpStarted(NamedTuple):
    """Operation ``op`` of a launch (-1: of none) occupies ``component`` from ``start_ps`` on.

    ``reads``: how many memory accesses have to happen before its operands are read; 0: they are read now. ``writes``:
    how many have to happen before its result is in memory; 0: it is there when it ends.
    """

    op: int
    component: str
    what: Moved | Streamed | TileMoved | PeCommand
    start_ps: int
    reads: int
    writes: int
    launch_id: int


class MemoryServed(NamedTuple):
    """The memory behind ``node`` works on operation ``op`` from ``start_ps`` to ``end_ps``, or until its next event:
    an access that is cut short for another's turn was announced with the end it would have had."""

    node: str
    op: int
    writing: bool
    start_ps: int
    end_ps: int


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

    command: PeCommand
    writes: bool
    start_ps: int
    end_ps: int


class Inverted(NamedTuple):
    """The ``later`` of two commands in a kernel's program took place first, and both touch the same ``nbytes``.

    The first of them is at ``address``.
    """

    pe: PeCoord
    kernel: str
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
        "sent",
        "served",
        "slot_released",
    )

    def __init__(self) -> None:
        self.sent: Hook[Transfer] = Hook()  # put on the fabric; its ``arg`` is the message
        self.served: Hook[MemoryServed] = Hook()
        self.printed: Hook[Printed] = Hook()
        self.scratch_waited: Hook[ScratchWaited] = Hook()
        self.inverted: Hook[Inverted] = Hook()
        self.queue: Hook[QueueEvent] = Hook()
        self.queue_waited: Hook[QueueWaited] = Hook()
        self.slot_released: Hook[SlotReleased] = Hook()
