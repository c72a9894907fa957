"""The MMU of a PE, and the cost of its TLB."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kernbench.common.units import transfer_ps
from kernbench.components.access_plan import pages
from kernbench.core.log import By, Cause, Kind
from kernbench.di.part import InnerAttrs
from kernbench.di.registry import register
from kernbench.engine.machine import Component, Machine
from kernbench.messages.requests import TensorMapping
from kernbench.policy.address.pe_mmu import PeMMU, SharedRanges, Tlb
from kernbench.topology.graph import Node

TLB_HITS, TLB_MISSES = "hits of TLBs", "misses of TLBs"
"""Names of counts"""


@register("builtin.pe_mmu", kind="pe_mmu")
class PeMmuPart(Component):
    """The MMU of a PE, with the translation ``table`` and, if configured, a ``tlb``.

    A page walk lasts ``tlb_miss_ns``. While the data of a page move, the walk for the next page proceeds. A walk delays
    only the descriptor that needs the page: walks of several descriptors overlap.
    """

    Attrs = InnerAttrs

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        mmu = machine.spec.pe.mmu
        self.table = PeMMU(*node.pe_coord, fmt=machine.addresses.format, shared_ranges=machine.shared(SharedRanges))
        self.tlb = Tlb(mmu.tlb_entries) if mmu.tlb_entries else None
        self._page_bytes = mmu.page_bytes
        self._first_ps = mmu.tlb_miss_ps
        page_ps = transfer_ps(mmu.page_bytes, machine.spec.cube.links.pe_to_xbar.bw_gbs)
        self._further_ps = max(0, mmu.tlb_miss_ps - page_ps)

    def map(self, mapping: TensorMapping) -> None:
        """Map a tensor; see ``PeMMU.map``."""
        self._forget_pages()
        self.table.map(mapping)

    def unmap(self, va_base: int) -> None:
        """Unmap a tensor; see ``PeMMU.unmap``."""
        self._forget_pages()
        self.table.unmap(va_base)

    def _forget_pages(self) -> None:
        if self.tlb is not None:
            self.tlb.clear()

    def pages(self, va: int, shape: tuple[int, ...], itemsize: int, strides: tuple[int, ...] | None) -> Sequence[int]:
        """Return the pages whose translation an array at ``va`` needs; none without a TLB."""
        return () if self.tlb is None else pages(va, shape, itemsize, strides, self._page_bytes)

    def walk(self, wanted: Sequence[int], launch: int, line: int, cause: Cause, then: Callable[[Cause], None]) -> None:
        """Look up the pages of a descriptor, and call ``then(cause)`` when they are translated.

        Without a miss the call comes at once.
        """
        walk_ps = self._walk_ps(wanted)
        if not walk_ps:
            then(cause)
            return
        log, now = self.machine.log, self.clock.time
        end = now + walk_ps
        row = log.open(
            log.part(self.node.id), Kind.TRANSLATION, now, cause, launch=launch, line=line, read=now, end=end
        )
        self.clock.call_at(end, then, (row, By.TRANSLATION))

    def counts(self) -> Mapping[str, int]:
        """Return the hits and misses of the TLB; none without a TLB."""
        return {} if self.tlb is None else {TLB_HITS: self.tlb.hits, TLB_MISSES: self.tlb.misses}

    def _walk_ps(self, wanted: Sequence[int]) -> int:
        tlb = self.tlb
        if tlb is None:
            return 0
        hits = [tlb.look_up(page) for page in wanted]
        return sum(0 if hit else self._further_ps if n else self._first_ps for n, hit in enumerate(hits))
