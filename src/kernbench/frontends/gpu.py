"""The figures that programs ask of a GPU: here SIPs are the devices, and PEs their multiprocessors."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from kernbench.common.values import value
from kernbench.runtime_api.context import RuntimeContext

DEVICE = "ahbm"
WARP_SIZE = 32
THREADS = 1024
"""Of a program, as programs that count them are told: a PE runs one program at a time."""
REGISTERS = 65536
"""Of a PE, as programs that count how many blocks fit are told: a kernel that was warmed up takes all of them."""
CLOCK_KHZ = 1_000_000
MEMORY_BUS_BITS = 8192


@value
class DeviceProperties:
    """``torch.cuda.get_device_properties``: a SIP, in the fields of PyTorch's object of that name."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    shared_memory_per_block: int
    L2_cache_size: int
    pci_bus_id: int
    max_threads_per_multi_processor: int = THREADS
    max_threads_per_block: int = THREADS
    warp_size: int = WARP_SIZE
    regs_per_multiprocessor: int = REGISTERS
    clock_rate: int = CLOCK_KHZ
    memory_clock_rate: int = CLOCK_KHZ
    memory_bus_width: int = MEMORY_BUS_BITS
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    pci_device_id: int = 0
    pci_domain_id: int = 0

    @property
    def shared_memory_per_block_optin(self) -> int:
        """All TCM of a PE: nobody has to ask for more."""
        return self.shared_memory_per_block

    @property
    def shared_memory_per_multiprocessor(self) -> int:
        """All TCM of a PE."""
        return self.shared_memory_per_block

    @property
    def gcnArchName(self) -> str:  # noqa: N802 - PyTorch's name
        """The device's name, as of a GPU that is none of AMD's."""
        return self.name

    @property
    def uuid(self) -> UUID:
        """A number of the SIP."""
        return UUID(int=self.pci_bus_id)


def device_properties(context: RuntimeContext[Any], sip: int) -> DeviceProperties:
    """Return the figures of a SIP; its multiprocessors are the PEs that a tensor of PyTorch spreads over."""
    spec, frontends = context.topology, context.frontends
    major, minor = frontends.triton.capability_numbers
    return DeviceProperties(
        name=DEVICE,
        major=major,
        minor=minor,
        total_memory=spec.hbm_bytes_per_sip,
        multi_processor_count=spec.pes_per_cube * frontends.torch.cubes,
        shared_memory_per_block=spec.pe.tcm.bytes,
        L2_cache_size=spec.cube.sram.bytes * frontends.torch.cubes,
        pci_bus_id=sip,
    )
