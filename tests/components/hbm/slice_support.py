"""Requests at a slice alone, of HBM3 with 8 pseudo-channels, interleaved; or without banks; time in ps."""

from __future__ import annotations

from itertools import chain

from kernbench.components.hbm.banks import BankedMemory, Grant, Histories
from kernbench.components.hbm.channel import PER_PC, Counters
from kernbench.components.hbm.controller import Request, SliceArbiter, SliceMemory
from kernbench.components.hbm.ideal import Channels, IdealMemory
from kernbench.core.clock import Clock
from kernbench.messages.fabric import Access
from kernbench.topology.hbm_spec import HBM3, HbmSpec, interleave

QUANTUM = 2048
MIB = 1 << 20


class Asked(Request):
    """Remembers what it was promised: (from, to, first ps, last ps) of its bytes."""

    def __init__(self, requester: int, pa: int, nbytes: int, write: bool = False, since: int = 0) -> None:
        super().__init__(requester, Access(pa, nbytes), write, since)
        self.turns: list[tuple[int, int, int, int]] = []

    def begin(self, first: int, grant: Grant) -> None:
        self.turns.append((first, grant.end, grant.first_ps, grant.last_ps))

    def cut(self, end: int) -> None:
        first, promised, start, last = self.turns.pop()
        self.turns.append((first, end, start, start + (last - start) * (end - first) // (promised - first)))

    @property
    def served_bytes(self) -> int:
        return sum(end - first for first, end, _, _ in self.turns)

    @property
    def last_ps(self) -> int:
        return max(last for *_, last in self.turns)


def banked() -> BankedMemory:
    """All work takes longer by what refresh takes: there is no outage."""
    return BankedMemory(Histories(HBM3, 8, interleave(8, xor=True), 64, "spread"), QUANTUM)


def refreshed() -> BankedMemory:
    """All banks are refreshed at once."""
    return BankedMemory(Histories(HBM3, 8, interleave(8, xor=True), 64, "all-bank"), QUANTUM)


def ideal() -> IdealMemory:
    """8 channels of 25.6 GB/s that are usable."""
    hbm = HbmSpec(slices=8, bytes_per_slice=6 << 30, num_pcs=8, quantum_bytes=QUANTUM)
    return IdealMemory(Channels(hbm), QUANTUM, 1000 / 25.6)


def counters_of(memory: BankedMemory) -> Counters:
    """What the channels of a slice have done, as of one with all their PCs; when the last byte of each was over."""
    each = memory.at.history.channels
    ends = [end + one.behind_ps for one in each for end in one.history.counters.ends]
    heads = map(sum, zip(*(one.done[:PER_PC] for one in each), strict=True))
    per_pc = [(one.done[PER_PC:], len(one.history.counters.ends)) for one in each]
    turned, rows = [done[:pcs] for done, pcs in per_pc], [done[pcs:] for done, pcs in per_pc]
    return Counters((*heads, *chain(*turned), *chain(*rows)), tuple(ends))


def run(memory: SliceMemory, *asked: tuple[int, Asked]) -> Clock:
    """Each request at its time."""
    clock = Clock()
    slice_ = SliceArbiter(memory, clock)
    for when, request in asked:
        clock.call_at(when, slice_.submit, request)
    clock.advance()
    return clock
