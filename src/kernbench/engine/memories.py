"""The allocators of a machine, made on first use: host and kernels share one budget of every memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kernbench.messages.requests import PeCoord
from kernbench.policy.address.allocator import CubeMemAllocator, PEMemAllocator, address_config
from kernbench.policy.address.va_allocator import VirtualAllocator
from kernbench.topology.spec import TopologySpec


class Memories:
    """Physical allocators by coordinates, virtual ones by SIP."""

    def __init__(self, spec: TopologySpec) -> None:
        self.config = address_config(spec)
        self._pes = _PeAllocators(self, spec)
        self.pes: Mapping[PeCoord, PEMemAllocator] = self._pes
        self._spec = spec
        self._cubes: dict[tuple[int, int], CubeMemAllocator] = {}
        self._va: dict[int, VirtualAllocator] = {}

    @property
    def used_pes(self) -> Mapping[PeCoord, PEMemAllocator]:
        """The allocators of PEs that anything was asked of."""
        return self._pes.made

    def cube(self, sip: int, cube: int) -> CubeMemAllocator:
        """The SRAM allocator of a cube."""
        found = self._cubes.get((sip, cube))
        if found is None:
            found = self._cubes[sip, cube] = CubeMemAllocator(0, sip, cube, self.config)
        return found

    def va(self, sip: int) -> VirtualAllocator:
        """The virtual addresses of a SIP."""
        found = self._va.get(sip)
        if found is None:
            found = self._va[sip] = VirtualAllocator.for_machine(self.config, self._spec.pe.mmu.page_bytes)
        return found


class _PeAllocators(Mapping[PeCoord, PEMemAllocator]):
    """Allocators of all PEs of the machine; each exists from when it is asked for."""

    def __init__(self, memories: Memories, spec: TopologySpec) -> None:
        self._memories = memories
        self._spec = spec
        self.made: dict[PeCoord, PEMemAllocator] = {}

    def __getitem__(self, key: PeCoord) -> PEMemAllocator:
        found = self.made.get(key)
        if found is None:
            sip, cube, pe = key
            spec = self._spec
            if not (0 <= sip < spec.num_sips and 0 <= cube < spec.cubes_per_sip and 0 <= pe < spec.pes_per_cube):
                raise KeyError(key)
            found = self.made[key] = PEMemAllocator(0, sip, cube, pe, self._memories.config)
        return found

    def __iter__(self) -> Iterator[PeCoord]:
        for sip in range(self._spec.num_sips):
            for cube in range(self._spec.cubes_per_sip):
                yield from ((sip, cube, pe) for pe in range(self._spec.pes_per_cube))

    def __len__(self) -> int:
        return self._spec.num_pes
