"""The MMU of a PE."""

from __future__ import annotations

from kernbench.di.part import InnerAttrs
from kernbench.di.registry import register
from kernbench.engine.machine import Component, Machine
from kernbench.policy.address.pe_mmu import PeMMU
from kernbench.topology.graph import Node


@register("builtin.pe_mmu", kind="pe_mmu")
class PeMmuPart(Component):
    """Holds the translation table of a PE."""

    Attrs = InnerAttrs

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        mmu = machine.spec.pe.mmu
        self.table = PeMMU(
            *node.pe_coord,
            page_bytes=mmu.page_bytes,
            tlb_hit_ns=mmu.tlb_hit_ns,
            fmt=machine.addresses.format,
        )
