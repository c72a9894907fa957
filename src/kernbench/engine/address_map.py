"""Which part of the machine answers at a physical address, and how a range falls on several of them."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from kernbench.common.errors import PhysAddrError
from kernbench.common.ids import cube_part, pe_part
from kernbench.policy.address.layout import AddressFormat, AddressOwner
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.topology.spec import TopologySpec

Segment: TypeAlias = tuple[int, int]
"""(encoded physical address, nbytes)"""
# Windows of this many bits lie in one part: every part begins at a multiple of one.
_WINDOW_BITS = 24


class Place(NamedTuple):
    """A memory of the machine: its ``space`` (hbm, sram, tcm) and ``owner``, (sip, cube) or (sip, cube, pe).

    It holds ``nbytes`` from encoded address ``base`` on, ``node_bytes`` behind each of its ``nodes``.
    """

    space: str
    owner: tuple[int, ...]
    base: int
    nbytes: int
    node_bytes: int
    nodes: tuple[str, ...]


class AddressMap:
    """Addresses of one machine."""

    def __init__(self, spec: TopologySpec) -> None:
        self.format = AddressFormat(spec.address.format)
        self._spec = spec
        self._places: dict[int, Place] = {}

    def decode(self, pa: int) -> PhysAddr:
        """The address ``pa`` encodes. PhysAddrError outside the format or outside this machine."""
        addr = PhysAddr.decode(pa, self.format)
        self._check("sip_id", addr.sip_id, self._spec.num_sips, addr)
        self._check("cube_id", addr.cube_id, self._spec.cubes_per_sip, addr)
        if addr.pe_id is not None:
            self._check("pe_id", addr.pe_id, self._spec.pes_per_cube, addr)
        self._check("offset", addr.component_offset, self._installed(addr), addr)
        return addr

    def place_of(self, pa: int) -> Place:
        """The memory that holds ``pa``; errors as of ``decode``. Cheap when asked again for near addresses."""
        place = self._places.get(pa >> _WINDOW_BITS)
        if place is None or pa - place.base >= place.nbytes:
            place = self._places[pa >> _WINDOW_BITS] = self._place(self.decode(pa))
        return place

    def node_of(self, pa: int) -> str:
        """The node that serves reads and writes of ``pa``; a PE's TCM is reached through its DMA."""
        place = self.place_of(pa)
        return place.nodes[(pa - place.base) // place.node_bytes]

    def memory_node(self, addr: PhysAddr) -> str:
        """As ``node_of``, of a decoded address."""
        return self.node_of(addr.value)

    def by_node(self, segments: tuple[Segment, ...]) -> tuple[tuple[str, Segment], ...]:
        """The segments with the node that serves each, cut where an HBM slice ends."""
        found: list[tuple[str, Segment]] = []
        for pa, nbytes in segments:
            start, left = pa, nbytes
            while left:
                place = self.place_of(start)
                node, offset = divmod(start - place.base, place.node_bytes)
                here = min(left, place.node_bytes - offset)
                found.append((place.nodes[node], (start, here)))
                start, left = start + here, left - here
        return tuple(found)

    def _check(self, field: str, value: int, limit: int, addr: PhysAddr) -> None:
        if value >= limit:
            raise PhysAddrError(f"{addr!r}: this machine has {field} 0..{limit - 1:#x}, not {value:#x}")

    def _installed(self, addr: PhysAddr) -> int:
        sizes = {
            AddressOwner.HBM: self._spec.cube.hbm.bytes,
            AddressOwner.SRAM: self._spec.cube.sram.bytes,
            AddressOwner.TCM: self._spec.pe.tcm.bytes,
        }
        size = sizes.get(addr.component)
        if size is None:
            raise PhysAddrError(f"{addr!r}: data can be in hbm, sram or tcm, not in {addr.component}")
        return size

    def _place(self, addr: PhysAddr) -> Place:
        cube = sip_id, cube_id = addr.sip_id, addr.cube_id
        base, nbytes = addr.value - addr.component_offset, self._installed(addr)
        if addr.component == AddressOwner.HBM:
            hbm = self._spec.cube.hbm
            nodes = tuple(cube_part(sip_id, cube_id, f"hbm{n}") for n in range(hbm.slices))
            return Place("hbm", cube, base, nbytes, hbm.bytes_per_slice, nodes)
        if addr.component == AddressOwner.SRAM:
            return Place("sram", cube, base, nbytes, nbytes, (cube_part(sip_id, cube_id, "sram"),))
        assert addr.pe_id is not None
        return Place("tcm", (*cube, addr.pe_id), base, nbytes, nbytes, (pe_part(*cube, addr.pe_id, "pe_dma"),))
