"""Queues between PEs (IPCQ): what is installed on a PE."""

from __future__ import annotations

from typing import Literal, TypeAlias

from kernbench.common.values import value
from kernbench.messages.requests import HostMsg, PeCoord

BufferKind: TypeAlias = Literal["tcm", "hbm", "sram"]
Backpressure: TypeAlias = Literal["sleep", "poll"]

OPPOSITE_DIRECTION = {"E": "W", "W": "E", "N": "S", "S": "N"}
OPPOSITE_DIRECTION |= {f"global_{a}": f"global_{b}" for a, b in tuple(OPPOSITE_DIRECTION.items())}


@value(kw_only=True)
class QueuePeer:
    """The other end of a queue pair: queue ``direction`` of PE ``pe``.

    ``rx_base_pa``: where its ring begins; None when it takes no messages from here.
    """

    pe: PeCoord
    direction: str
    rx_base_pa: int | None


@value(kw_only=True)
class QueueSetup:
    """One queue pair of a PE. ``rx_base_pa`` is where its own ring begins; None when nobody sends into it.

    A ring is ``n_slots`` slots of ``slot_size`` bytes. ``via_port`` ("E", "W", "N", "S"): the scale-up link that its
    messages leave their SIP by; None: the shortest way.
    """

    direction: str
    peer: QueuePeer
    rx_base_pa: int | None
    n_slots: int
    slot_size: int
    via_port: str | None = None


@value(kw_only=True)
class IpcqInitMsg(HostMsg):
    """Install queue pairs on one PE; an error when it has any. ``installation`` is what its removal refers to."""

    pe: PeCoord
    queues: tuple[QueueSetup, ...]
    buffer_kind: BufferKind = "tcm"
    backpressure: Backpressure = "sleep"
    poll_ns: float = 50.0
    credit_bytes: int = 16
    installation: int = 0


@value(kw_only=True)
class IpcqRemoveMsg(HostMsg):
    """Take all queue pairs off one PE, so that others can be installed; of one ``installation``, None: of any."""

    pe: PeCoord
    installation: int | None = None
