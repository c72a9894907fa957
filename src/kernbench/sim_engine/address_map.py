"""Which part of the machine answers at a physical address, and how a range falls on several of them."""

from __future__ import annotations

from typing import TypeAlias

from kernbench.common.errors import PhysAddrError
from kernbench.common.ids import cube_part, pe_part
from kernbench.policy.address.layout import AddressFormat, Component
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.topology.spec import TopologySpec

Segment: TypeAlias = tuple[int, int]
"""(encoded physical address, nbytes)"""


class AddressMap:
    """Addresses of one machine."""

    def __init__(self, spec: TopologySpec) -> None:
        self.format = AddressFormat(spec.address.format)
        self._spec = spec
        self._slice_bytes = spec.cube.hbm.bytes_per_slice

    def decode(self, pa: int) -> PhysAddr:
        """The address ``pa`` encodes. PhysAddrError outside the format or outside this machine."""
        addr = PhysAddr.decode(pa, self.format)
        self._check("sip_id", addr.sip_id, self._spec.num_sips, addr)
        self._check("cube_id", addr.cube_id, self._spec.cubes_per_sip, addr)
        if addr.pe_id is not None:
            self._check("pe_id", addr.pe_id, self._spec.pes_per_cube, addr)
        self._check("offset", addr.component_offset, self._installed(addr), addr)
        return addr

    def _check(self, field: str, value: int, limit: int, addr: PhysAddr) -> None:
        if value >= limit:
            raise PhysAddrError(f"{addr!r}: this machine has {field} 0..{limit - 1:#x}, not {value:#x}")

    def _installed(self, addr: PhysAddr) -> int:
        sizes = {
            Component.HBM: self._spec.cube.hbm.bytes,
            Component.SRAM: self._spec.cube.sram.bytes,
            Component.TCM: self._spec.pe.tcm.bytes,
        }
        size = sizes.get(addr.component)
        if size is None:
            raise PhysAddrError(f"{addr!r}: data can be in hbm, sram or tcm, not in {addr.component}")
        return size

    def memory_node(self, addr: PhysAddr) -> str:
        """The node that serves reads and writes of ``addr``; a PE's TCM is reached through its DMA."""
        if addr.component == Component.HBM:
            return cube_part(addr.sip_id, addr.cube_id, f"hbm{addr.component_offset // self._slice_bytes}")
        if addr.component == Component.SRAM:
            return cube_part(addr.sip_id, addr.cube_id, "sram")
        assert addr.pe_id is not None
        return pe_part(addr.sip_id, addr.cube_id, addr.pe_id, "pe_dma")

    def by_node(self, segments: tuple[Segment, ...]) -> tuple[tuple[str, Segment], ...]:
        """The segments with the node that serves each, cut where an HBM slice ends."""
        found: list[tuple[str, Segment]] = []
        for pa, nbytes in segments:
            start, left = pa, nbytes
            while left:
                addr = self.decode(start)
                here = min(left, self._room(addr))
                found.append((self.memory_node(addr), (start, here)))
                start, left = start + here, left - here
        return tuple(found)

    def _room(self, addr: PhysAddr) -> int:
        """Bytes from ``addr`` to the end of the part that serves it."""
        size = self._slice_bytes if addr.component == Component.HBM else self._installed(addr)
        return size - addr.component_offset % size
