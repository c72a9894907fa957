"""A flow: who reads or writes which memory. Probe cases are made of flows; here a flow becomes requests."""

from __future__ import annotations

from dataclasses import dataclass

from kernbench.messages.requests import HostMsg, MemoryReadMsg, MemoryWriteMsg, PeCoord, PeDmaMsg


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Traffic between ``initiator`` and ``memory`` (node ids), at physical address ``pa`` (encoded).

    ``pe`` is the PE whose DMA it is, None when it is the host; ``room_bytes`` is what the flow has of the memory.
    """

    initiator: str
    memory: str
    pa: int
    room_bytes: int
    reading: bool
    pe: PeCoord | None

    @property
    def data_ends(self) -> tuple[str, str]:
        """Where the data comes from and where it goes."""
        return (self.memory, self.initiator) if self.reading else (self.initiator, self.memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlan:
    """``transactions`` of ``nbytes`` for every flow, at most ``outstanding`` of them under way at once."""

    nbytes: int
    transactions: int
    outstanding: int


def transaction(flow: Flow, nbytes: int, number: int = 0) -> HostMsg:
    """Transaction ``number`` of a flow: successive ones lie side by side as far as the flow has room."""
    pa = flow.pa + number % (flow.room_bytes // nbytes) * nbytes
    if flow.pe is not None:
        return PeDmaMsg(pe=flow.pe, pa=pa, nbytes=nbytes, op="read" if flow.reading else "write")
    return MemoryReadMsg(pa=pa, nbytes=nbytes) if flow.reading else MemoryWriteMsg(pa=pa, nbytes=nbytes)


def dma_stream(flow: Flow, pe: PeCoord, plan: StreamPlan) -> PeDmaMsg:
    """A whole stream of a PE's DMA as one request."""
    fits = plan.transactions * plan.nbytes <= flow.room_bytes
    return PeDmaMsg(
        pe=pe,
        pa=flow.pa,
        nbytes=plan.nbytes,
        op="read" if flow.reading else "write",
        repeat=plan.transactions,
        outstanding=plan.outstanding,
        stride_bytes=plan.nbytes if fits else 0,
    )
