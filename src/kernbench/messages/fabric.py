"""What crosses the fabric between an initiator (a DMA, the host) and a memory. One message per transfer."""

from __future__ import annotations

from dataclasses import dataclass

from kernbench.messages.queues import Arrival


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """Header to a memory: send these bytes to ``requester``. ``op`` is the operation it belongs to."""

    op: int
    part: int
    requester: str
    access: Access


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadReply:
    """The bytes of a ReadRequest."""

    op: int
    part: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteData:
    """Bytes to a memory; it acknowledges to ``requester`` when they are committed.

    With an ``arrival`` they are a message of a queue: nothing is acknowledged, and the receiver is told instead.
    """

    op: int
    part: int
    requester: str
    access: Access
    arrival: Arrival | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteAck:
    """The bytes of a WriteData are in memory."""

    op: int
    part: int
