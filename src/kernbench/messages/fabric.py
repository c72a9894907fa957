"""Messages between an initiator, which is a DMA or the host, and a memory. Each message is one transfer."""

from __future__ import annotations

from kernbench.common.values import value
from kernbench.messages.requests import PeCoord


@value(guarded=False)
class Access:
    """An access to bytes of one memory.

    The bytes are ``rows`` runs of ``row_bytes``, the first at address ``pa``, ``stride`` bytes apart.
    """

    pa: int
    row_bytes: int
    rows: int = 1
    stride: int = 0

    @property
    def nbytes(self) -> int:
        """The number of bytes of all rows."""
        return self.rows * self.row_bytes


@value(eq=False, guarded=False)
class ReadRequest:
    """A header that requests bytes of a memory for ``requester``, as part of operation ``op``."""

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
    """Bytes to a memory. The memory sends an acknowledgement to ``requester`` when the bytes are committed."""

    op: int
    part: int
    requester: str
    access: Access


@value(eq=False, guarded=False)
class AtomicData(WriteData):
    """Operands of an atomic. The memory changes its bytes at the time at which it would commit a write.

    ``answers``: the acknowledgement carries the previous bytes.
    """

    answers: bool


@value(eq=False, guarded=False)
class QueueData(WriteData):
    """A message of a queue to its slot: number ``sequence`` from ``sender`` to ``pe``.

    The memory sends no acknowledgement, but notifies ``pe``. The address decides the queue. ``row`` is the message's
    row in the log, ``sent`` the row of its SEND.
    """

    sequence: int
    pe: PeCoord
    sender: PeCoord
    row: int
    sent: int


@value(eq=False, guarded=False)
class WriteAck:
    """The acknowledgement that the bytes of a WriteData are in memory."""

    op: int
    part: int


@value(kw_only=True, eq=False, guarded=False)
class QueueArrival:
    """A memory outside the PE reports to the PE that a message is in its slot."""

    data: QueueData
