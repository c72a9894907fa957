"""A map from physical addresses to memories, which also splits address ranges at the borders of memory nodes."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from kernbench.common.errors import PhysAddrError, UnsupportedError
from kernbench.common.ids import cube_part, pe_part
from kernbench.policy.address.layout import AddressFormat, AddressOwner
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.topology.fields import WINDOW_BYTES, AddressWindow
from kernbench.topology.graph import Node
from kernbench.topology.spec import TopologySpec

Segment: TypeAlias = tuple[int, int]
"""(encoded physical address, nbytes)"""
# Address bits within an aligned window of WINDOW_BYTES. A window never holds two memories: each begins at a multiple.
_WINDOW_BITS = WINDOW_BYTES.bit_length() - 1


class MemoryPlace(NamedTuple):
    """A memory of the machine: its ``space`` (hbm, sram, tcm) and ``owner``, (sip, cube) or (sip, cube, pe).

    Extra memories are in space sram. The memory covers ``nbytes`` from encoded address ``base`` on. Each of its
    ``nodes``, in order, serves the next ``node_bytes`` of this range.
    """

    space: str
    owner: tuple[int, ...]
    base: int
    nbytes: int
    node_bytes: int
    nodes: tuple[str, ...]


class AddressMap:
    """The physical addresses of one machine."""

    def __init__(self, spec: TopologySpec) -> None:
        self.format = AddressFormat(spec.address.format)
        self._spec = spec
        cube, pe = spec.cube, spec.pe
        self._memories = {
            AddressOwner.HBM: (AddressWindow("hbm", 0, cube.hbm.bytes),),
            AddressOwner.SRAM: (AddressWindow("sram", 0, cube.sram.bytes), *cube.extra_memories),
            AddressOwner.TCM: (AddressWindow("pe_dma", 0, pe.tcm.bytes),),  # the PE's DMA serves the TCM
            AddressOwner.SCRATCHPAD: pe.extra_memories,
        }
        self._places: dict[int, MemoryPlace] = {}

    def decode(self, pa: int) -> PhysAddr:
        """Decode the address ``pa``. Raises PhysAddrError outside the format or outside this machine."""
        addr = PhysAddr.decode(pa, self.format)
        self._check("sip_id", addr.sip_id, self._spec.num_sips, addr)
        self._check("cube_id", addr.cube_id, self._spec.cubes_per_sip, addr)
        if addr.pe_id is not None:
            self._check("pe_id", addr.pe_id, self._spec.pes_per_cube, addr)
        self._window(addr)
        return addr

    def range_of(self, node: Node) -> Segment:
        """Return the address range of an extra memory. Raises UnsupportedError if ``node`` is no extra memory."""
        if node.window is None:
            raise UnsupportedError(f"{node.id} has no addresses: it is no extra part with bytes")
        offset, nbytes = node.window.offset, node.window.nbytes
        if node.pe is None:
            return PhysAddr.cube_sram_addr(0, *node.cube_coord, offset, self.format).value, nbytes
        return PhysAddr.pe_scratchpad_addr(0, *node.pe_coord, offset, self.format).value, nbytes

    def base_of_slice(self, node: Node) -> int:
        """Return the first address of an HBM slice."""
        size = self._spec.cube.hbm.bytes_per_slice
        return PhysAddr.pe_hbm_addr(0, *node.cube_coord, node.index or 0, 0, size, self.format).value

    def place_of(self, pa: int) -> MemoryPlace:
        """Return the memory that contains ``pa``. Raises the errors of ``decode``.

        The memory is cached for the aligned window of ``WINDOW_BYTES`` addresses around ``pa``.
        """
        place = self._places.get(pa >> _WINDOW_BITS)
        if place is None or pa - place.base >= place.nbytes:
            place = self._places[pa >> _WINDOW_BITS] = self._place(self.decode(pa))
        return place

    def node_of(self, pa: int) -> str:
        """Return the node that serves reads and writes of ``pa``; a PE's DMA serves its TCM."""
        place = self.place_of(pa)
        return place.nodes[(pa - place.base) // place.node_bytes]

    def memory_node(self, addr: PhysAddr) -> str:
        """Return the node that serves a decoded address, as ``node_of`` does."""
        return self.node_of(addr.value)

    def by_node(self, segments: tuple[Segment, ...]) -> tuple[tuple[str, Segment], ...]:
        """Return the segments with the node that serves each, split at the ends of HBM slices."""
        pieces: list[tuple[str, Segment]] = []
        for pa, nbytes in segments:
            start, left = pa, nbytes
            while left:
                place = self.place_of(start)
                node, offset = divmod(start - place.base, place.node_bytes)
                here = min(left, place.node_bytes - offset)
                pieces.append((place.nodes[node], (start, here)))
                start, left = start + here, left - here
        return tuple(pieces)

    def _check(self, field: str, value: int, limit: int, addr: PhysAddr) -> None:
        if value >= limit:
            raise PhysAddrError(f"{addr!r}: this machine has {field} 0..{limit - 1:#x}, not {value:#x}")

    def _window(self, addr: PhysAddr) -> AddressWindow:
        """Return the address window of the memory that contains ``addr``. Raises PhysAddrError outside every memory."""
        memories = self._memories.get(addr.component)
        if not memories:
            raise PhysAddrError(f"{addr!r}: data can be in hbm, sram or tcm, not in {addr.component}")
        before = [memory for memory in memories if memory.offset <= addr.component_offset]
        window = before[-1] if before else memories[0]
        if not window.offset <= addr.component_offset < window.end:
            ranges = ", ".join(f"{memory.offset:#x}..{memory.end - 1:#x}" for memory in memories)
            raise PhysAddrError(f"{addr!r}: this machine has offset {ranges}, not {addr.component_offset:#x}")
        return window

    def _place(self, addr: PhysAddr) -> MemoryPlace:
        cube, window = (addr.sip_id, addr.cube_id), self._window(addr)
        base, nbytes = addr.value - addr.component_offset + window.offset, window.nbytes
        if addr.component == AddressOwner.HBM:
            hbm = self._spec.cube.hbm
            nodes = tuple(cube_part(*cube, f"hbm{n}") for n in range(hbm.slices))
            return MemoryPlace("hbm", cube, base, nbytes, hbm.bytes_per_slice, nodes)
        if addr.pe_id is None:
            return MemoryPlace("sram", cube, base, nbytes, nbytes, (cube_part(*cube, window.name),))
        space = "tcm" if addr.component == AddressOwner.TCM else "sram"
        node = pe_part(*cube, addr.pe_id, window.name)
        return MemoryPlace(space, (*cube, addr.pe_id), base, nbytes, nbytes, (node,))
