"""A memory with its own latency and banks: a bank works at one access at a time, and rows lie in banks in turn.

    kernbench probe --case pe-hotspot \\
        --set cube.components.hbm_ctrl.impl=examples.parts.banked_memory.BankedMemory \\
        --set cube.components.hbm_ctrl.attrs.banks=1

Eight PEs read from one slice: a bank gives them 4 KiB every 50 ns, 82 GB/s in all; 16 banks fill the link, 255 GB/s.
"""

from collections.abc import Generator

import simpy

from kernbench.components.hbm_ctrl import HbmCtrl
from kernbench.components.memory import MemoryAccess
from kernbench.sim_engine.component import Machine
from kernbench.topology.graph import Node


class BankedMemoryAttrs(HbmCtrl.Attrs):
    """``attrs`` in YAML: those of a slice, and the banks."""

    banks: int = 16
    row_bytes: int = 1024
    bank_ns: float = 50.0


class BankedMemory(HbmCtrl):
    """An access takes ``bank_ns`` of the bank where it begins, however many bytes it has."""

    Attrs = BankedMemoryAttrs

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        self.attrs = self.attrs_as(BankedMemoryAttrs)
        self.banks = [simpy.Resource(self.env) for _ in range(self.attrs.banks)]

    def serve(self, access: MemoryAccess) -> Generator[simpy.Event, object, None]:
        """Wait for the bank, then for the access; when this is over, its bytes leave or are acknowledged."""
        bank = self.banks[access.pa // self.attrs.row_bytes % len(self.banks)]
        with bank.request() as turn:
            yield turn
            yield self.wait_ns(self.attrs.bank_ns)
