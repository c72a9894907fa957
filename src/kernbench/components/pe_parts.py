"""The engines of a PE as its CPU sees them, each made when it is first used."""

from __future__ import annotations

from functools import cached_property

from kernbench.common.ids import pe_part
from kernbench.components.pe_dma import PeDma
from kernbench.components.pe_ipcq import PeIpcq
from kernbench.components.pe_math import PeMath
from kernbench.components.pe_mmu import PeMmuPart
from kernbench.components.pe_scheduler import PeScheduler
from kernbench.engine.machine import Machine
from kernbench.messages.requests import PeCoord


class PeParts:
    """The parts of PE ``coord``."""

    def __init__(self, machine: Machine, coord: PeCoord) -> None:
        self._machine = machine
        self._coord = coord

    @cached_property
    def dma(self) -> PeDma:
        """Its DMA."""
        return self._machine.part(pe_part(*self._coord, "pe_dma"), PeDma)

    @cached_property
    def ipcq(self) -> PeIpcq:
        """Its queues."""
        return self._machine.part(pe_part(*self._coord, "pe_ipcq"), PeIpcq)

    @cached_property
    def math(self) -> PeMath:
        """Its MATH engine."""
        return self._machine.part(pe_part(*self._coord, "pe_math"), PeMath)

    @cached_property
    def mmu(self) -> PeMmuPart:
        """Its MMU."""
        return self._machine.part(pe_part(*self._coord, "pe_mmu"), PeMmuPart)

    @cached_property
    def gemm_id(self) -> str:
        """The node of its GEMM engine, which the scheduler drives."""
        return pe_part(*self._coord, "pe_gemm")

    @cached_property
    def scheduler(self) -> PeScheduler:
        """Its tile scheduler."""
        return self._machine.part(pe_part(*self._coord, "pe_scheduler"), PeScheduler)
