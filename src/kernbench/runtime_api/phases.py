"""What a request is for, in the words of reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from kernbench.messages.queues import IpcqInitMsg, IpcqRemoveMsg
from kernbench.messages.requests import (
    HostMsg,
    KernelLaunchMsg,
    MemoryReadMsg,
    MemoryWriteMsg,
    MmuMapMsg,
    MmuUnmapMsg,
    PeDmaMsg,
)
from kernbench.policy.address.phyaddr import AddressFormat, PhysAddr

Phase: TypeAlias = Literal["h2d", "d2h", "init", "map", "unmap", "queues", "launch", "dma", "other"]
PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(frozen=True, slots=True)
class Purpose:
    """The phase a request belongs to, the SIP it concerns (None: several, or unknown) and the bytes it moves.

    ``algorithm``: what carries a collective out.
    """

    phase: Phase
    sip: int | None
    nbytes: int = 0
    algorithm: str | None = None


def purpose_of(msg: HostMsg, fmt: AddressFormat) -> Purpose:
    """``launch``, ``h2d``, ``d2h``, ``init`` (filled by the device), ``map``, ``unmap``, ``dma``, else ``other``.

    ``queues``: they are installed or taken off.
    """
    match msg:
        case KernelLaunchMsg():
            sips = {sip for sip, _, _ in msg.targets}
            return Purpose("launch", sips.pop() if len(sips) == 1 else None, algorithm=msg.algorithm)
        case MemoryWriteMsg() | MemoryReadMsg():
            return Purpose(_transfer_phase(msg), PhysAddr.decode(msg.pa, fmt).sip_id, msg.nbytes)
        case MmuMapMsg() | MmuUnmapMsg():
            return Purpose("map" if isinstance(msg, MmuMapMsg) else "unmap", msg.sip)
        case PeDmaMsg():
            return Purpose("dma", msg.pe[0], msg.nbytes * msg.repeat)
        case IpcqInitMsg() | IpcqRemoveMsg():
            return Purpose("queues", msg.pe[0])
        case _:
            return Purpose("other", None)


def _transfer_phase(msg: MemoryWriteMsg | MemoryReadMsg) -> Phase:
    if isinstance(msg, MemoryReadMsg):
        return "d2h"
    return "h2d" if msg.pattern is None else "init"
