"""GPU figures that programs query: SIPs are the devices, and PEs are their multiprocessors."""

from __future__ import annotations

from uuid import UUID

from kernbench.common.values import value
from kernbench.runtime_api.context import AnyContext

DEVICE = "ahbm"
WARP_SIZE = 32
THREADS = 1024
"""Number of threads that a PE reports as its maximum. The machine has no threads: a PE runs one program at a time."""
REGISTERS = 65536
"""Number of registers that a PE reports. A warmed-up kernel reports using all: its occupancy is one program."""
CLOCK_KHZ = 1_000_000
MEMORY_BUS_BITS = 8192


@value
class DeviceProperties:
    """The result of ``torch.cuda.get_device_properties`` for a SIP, with PyTorch's field names."""

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
        """Return the bytes of TCM of a PE. A kernel may use all of them without opting in."""
        return self.shared_memory_per_block

    @property
    def shared_memory_per_multiprocessor(self) -> int:
        """Return the bytes of TCM of a PE."""
        return self.shared_memory_per_block

    @property
    def gcnArchName(self) -> str:  # noqa: N802 - PyTorch's name
        """Return the device name, which PyTorch returns for every GPU but those of AMD."""
        return self.name

    @property
    def uuid(self) -> UUID:
        """Return a UUID that is unique to the SIP."""
        return UUID(int=self.pci_bus_id)


def device_properties(context: AnyContext, sip: int) -> DeviceProperties:
    """Return the properties of a SIP. Its multiprocessors are the PEs that PyTorch tensors are sharded over."""
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
