"""Messages between an initiator (a DMA, the host) and a memory, one for each transfer."""

from __future__ import annotations

from kernbench.common.values import value
from kernbench.messages.requests import PeCoord


@value(guarded=False)
class Access:
    """Bytes of one memory: ``rows`` runs of ``row_bytes``, the first at address ``pa``, ``stride`` bytes apart."""

    pa: int
    row_bytes: int
    rows: int = 1
    stride: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes moved."""
        return self.rows * self.row_bytes


@value(eq=False, guarded=False)
class ReadRequest:
    """Header to a memory: send these bytes to ``requester``. ``op`` is the operation it belongs to."""

    op: int
    part: int
    requester: str
    access: Access


@value(eq=False, guarded=False)
class ReadReply:
    """The bytes of a ReadRequest."""

    op: int
    part: int


@value(eq=False, guarded=False)
class WriteData:
    """Bytes to a memory; it acknowledges to ``requester`` when they are committed."""

    op: int
    part: int
    requester: str
    access: Access


@value(eq=False, guarded=False)
class AtomicData(WriteData):
    """Operands of an atomic: the memory changes its bytes when it would have written them.

    ``answers``: the acknowledgement brings the bytes that were there before.
    """

    answers: bool


@value(eq=False, guarded=False)
class QueueData(WriteData):
    """A message of a queue to its slot: number ``sequence`` from ``sender`` to ``pe``.

    Nothing is acknowledged: the memory tells ``pe`` instead. Which of its queues it belongs to is decided by the
    address. In the log it is ``row``, and ``sent`` while it is on its way.
    """

    sequence: int
    pe: PeCoord
    sender: PeCoord
    row: int
    sent: int


@value(eq=False, guarded=False)
class WriteAck:
    """The bytes of a WriteData are in memory."""

    op: int
    part: int


@value(kw_only=True, eq=False, guarded=False)
class QueueArrival:
    """A memory outside the PE tells it that a message is in its slot."""

    data: QueueData
