"""Memory for a tensor: a physical allocation for every shard and one virtual range for the tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from math import prod

from kernbench.common.dtypes import dtype as dtype_of
from kernbench.common.errors import InputError
from kernbench.common.values import value
from kernbench.messages.requests import MappedShard, TensorMapping
from kernbench.policy.address.allocator import ALIGNMENT_BYTES, PEMemAllocator
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.policy.address.va_allocator import VirtualAllocator
from kernbench.policy.placement.dp import PlacementError, ShardSpec

Allocators = Mapping[tuple[int, int, int], PEMemAllocator]
MEM_KINDS = ("hbm", "tcm")


@value(kw_only=True)
class Deployment:
    """A tensor of ``nbytes`` in memory of ``mem_kind``; ``va_base`` is None without a virtual range.

    ``shards`` are in (cube, pe, offset) order.
    """

    name: str
    nbytes: int
    mem_kind: str
    va_base: int | None
    shards: tuple[MappedShard, ...]

    def mapping(self) -> TensorMapping:
        """Return the mapping for the MMUs. Raises InputError without a virtual range."""
        if self.va_base is None:
            raise InputError(f"tensor {self.name!r} was deployed without virtual addresses")
        return TensorMapping(name=self.name, va_base=self.va_base, nbytes=self.nbytes, shards=self.shards)


def deploy_tensor(
    name: str,
    shape: tuple[int, ...],
    dtype: object,
    placement: Sequence[ShardSpec],
    allocators: Allocators,
    mem_kind: str = "hbm",
    va_allocator: VirtualAllocator | None = None,
) -> Deployment:
    """Allocate the shards of ``placement``, each from the allocator of its (sip, cube, pe), and a virtual range.

    The function installs no mapping. Raises AllocationError if a memory is full, and InputError for another
    ``mem_kind``, a PE without an allocator, or a placement of another shape or dtype. An error frees all allocations.
    """
    nbytes = prod(shape) * dtype_of(dtype).itemsize
    _check(name, nbytes, placement, allocators, mem_kind)
    ordered = sorted(placement, key=lambda spec: (spec.sip, spec.cube, spec.pe, spec.offset_bytes))
    with ExitStack() as undo:
        va_base = None
        if va_allocator is not None:
            va_base = va_allocator.alloc(nbytes)
            undo.callback(va_allocator.free, va_base, nbytes)
        shards = tuple(_allocate(spec, allocators, mem_kind, undo) for spec in ordered)
        undo.pop_all()
    return Deployment(name=name, nbytes=nbytes, mem_kind=mem_kind, va_base=va_base, shards=shards)


def release_deployment(
    deployment: Deployment, allocators: Allocators, va_allocator: VirtualAllocator | None = None
) -> None:
    """Free all allocations of ``deploy_tensor``. Raises AllocationError if they were freed before."""
    if deployment.va_base is not None and va_allocator is not None:
        va_allocator.free(deployment.va_base, deployment.nbytes)
    for shard in deployment.shards:
        allocator = allocators[shard.sip, shard.cube, shard.pe]
        addr = PhysAddr.decode(shard.pa, allocator.cfg.address_format)
        _free(allocator, deployment.mem_kind, addr, shard.nbytes)


@value(kw_only=True)
class Slab:
    """Memory for ``count`` tensors of ``nbytes`` bytes, allocated together; all have the same placement.

    The tensors begin ``unit_bytes`` apart in virtual memory, in pages of their own. ``blocks`` are the shards of the
    first tensor. The shards of the next tensor follow in the same memories. A gap follows the last of several tensors:
    slabs are of similar sizes, and without gaps the first tensors of all slabs would lie in the same banks.
    """

    name: str
    count: int
    nbytes: int
    va_base: int
    unit_bytes: int
    blocks: tuple[MappedShard, ...]

    @property
    def mapping(self) -> TensorMapping:
        """The mapping of all tensors."""
        shards = tuple([shard for number in range(self.count) for shard in self._shards(number, number)])
        return TensorMapping(
            name=self.name,
            va_base=self.va_base,
            nbytes=self.count * self.unit_bytes,
            shards=shards,
            unit_bytes=self.unit_bytes,
        )

    def tensor(self, number: int, name: str) -> Deployment:
        """Return tensor ``number``, which is called ``name``."""
        va = self.va_base + number * self.unit_bytes
        shards = tuple(self._shards(number, 0))
        return Deployment(name=name, nbytes=self.nbytes, mem_kind="hbm", va_base=va, shards=shards)

    def _shards(self, number: int, units: int) -> list[MappedShard]:
        """Return the shards of tensor ``number``, at offsets from ``units`` units before it."""
        return [
            MappedShard(
                sip=block.sip,
                cube=block.cube,
                pe=block.pe,
                offset_bytes=block.offset_bytes + units * self.unit_bytes,
                nbytes=block.nbytes,
                pa=block.pa + number * _aligned(block.nbytes),
            )
            for block in self.blocks
        ]

    def release(self, allocators: Allocators, va_allocator: VirtualAllocator) -> None:
        """Free all memory of the slab."""
        va_allocator.free(self.va_base, self.count * self.unit_bytes)
        for block in self.blocks:
            allocator = allocators[block.sip, block.cube, block.pe]
            addr = PhysAddr.decode(block.pa, allocator.cfg.address_format)
            allocator.free_hbm(addr, _block_bytes(self.count, block.nbytes, allocator))


def unit_bytes(nbytes: int, va_allocator: VirtualAllocator) -> int:
    """Return the bytes of virtual memory that a tensor of ``nbytes`` takes in a slab: complete pages."""
    return -(-nbytes // va_allocator.page_size) * va_allocator.page_size


def deploy_slab(
    name: str,
    count: int,
    nbytes: int,
    placement: Sequence[ShardSpec],
    allocators: Allocators,
    va_allocator: VirtualAllocator,
) -> Slab:
    """Allocate HBM for ``count`` tensors of ``nbytes``, each with ``placement``, and a virtual range for all of them.

    Raises the errors of `deploy_tensor`. An error frees all allocations.
    """
    _check(name, nbytes, placement, allocators, "hbm")
    ordered = sorted(placement, key=lambda spec: (spec.sip, spec.cube, spec.pe, spec.offset_bytes))
    with ExitStack() as undo:
        unit = unit_bytes(nbytes, va_allocator)
        va_base = va_allocator.alloc(count * unit)
        undo.callback(va_allocator.free, va_base, count * unit)
        blocks = tuple([_allocate(spec, allocators, "hbm", undo, count=count) for spec in ordered])
        undo.pop_all()
    return Slab(name=name, count=count, nbytes=nbytes, va_base=va_base, unit_bytes=unit, blocks=blocks)


def _block_bytes(count: int, nbytes: int, allocator: PEMemAllocator) -> int:
    return count * _aligned(nbytes) + (allocator.cfg.bank_step_bytes if count > 1 else 0)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _check(name: str, nbytes: int, placement: Sequence[ShardSpec], allocators: Allocators, mem_kind: str) -> None:
    if mem_kind not in MEM_KINDS:
        raise InputError(f"tensor {name!r}: mem_kind={mem_kind!r}; there are: {', '.join(MEM_KINDS)}")
    for spec in placement:
        if (spec.sip, spec.cube, spec.pe) not in allocators:
            raise InputError(f"tensor {name!r}: sip{spec.sip}.cube{spec.cube}.pe{spec.pe} has no allocator")
    parts = {spec.offset_bytes: spec.nbytes for spec in placement}
    if sum(parts.values()) != nbytes:
        raise PlacementError(f"tensor {name!r} has {nbytes} bytes, its placement holds {sum(parts.values())}")


def _allocate(
    spec: ShardSpec, allocators: Allocators, mem_kind: str, undo: ExitStack, *, count: int | None = None
) -> MappedShard:
    """Allocate a shard, or the block of ``count`` tensors of a slab that begins with it."""
    allocator = allocators[spec.sip, spec.cube, spec.pe]
    size = spec.nbytes if count is None else _block_bytes(count, spec.nbytes, allocator)
    addr = allocator.alloc_tcm(size) if mem_kind == "tcm" else allocator.alloc_hbm(size)
    undo.callback(_free, allocator, mem_kind, addr, size)
    return MappedShard(
        sip=spec.sip,
        cube=spec.cube,
        pe=spec.pe,
        offset_bytes=spec.offset_bytes,
        nbytes=spec.nbytes,
        pa=addr.encode(),
    )


def _free(allocator: PEMemAllocator, mem_kind: str, addr: PhysAddr, nbytes: int) -> None:
    free = allocator.free_tcm if mem_kind == "tcm" else allocator.free_hbm
    free(addr, nbytes)
