"""Storage of PyTorch tensors: one-dimensional tensors of the machine, from a pool that reuses dropped ones."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from threading import current_thread, main_thread
from types import EllipsisType
from typing import Any, Literal, TypeAlias
from weakref import finalize

import numpy as np
import torch

from kernbench.common.dtypes import BF16, F8E4M3, F8E5M2, F16, F32, I8, I16, I32, I64, U8, U16, U32, U64, Array, DType
from kernbench.common.errors import AllocationError, InputError, NoDataError, NoMachineError
from kernbench.common.units import format_size
from kernbench.common.values import state, value
from kernbench.frontends.placed import pes_with_access, policy_for
from kernbench.frontends.torch.modules import ProgramPlace, current_module, program_place
from kernbench.frontends.torch.rings import install_rings
from kernbench.runtime_api.context import AnyContext, current_context
from kernbench.runtime_api.memory import StorageSlab
from kernbench.runtime_api.tensor import KnownValues, Tensor
from kernbench.triton_emu.kernel_runner import check_host_calls

TorchOperator: TypeAlias = torch._ops.OpOverload  # noqa: SLF001 - the class of PyTorch's operators
CallArguments: TypeAlias = Sequence[Any]
"""Positional arguments of an operator, as PyTorch passes them."""
CallOptions: TypeAlias = Mapping[str, Any]
"""Arguments of an operator that PyTorch passes by name."""
Lowering: TypeAlias = Callable[..., Any]
"""A function that carries out an operator: it takes the operator's arguments and returns its results."""
Missing: TypeAlias = Literal["raise", "zeros"]
"""The result of reading elements whose values a run without data lacks: NoDataError, or zeros."""
ElementIndex: TypeAlias = "EllipsisType | slice | Array"
"""The elements of a range that a transfer moves."""
MACHINE_TYPES: Mapping[torch.dtype, DType] = {
    torch.float32: F32,
    torch.float16: F16,
    torch.bfloat16: BF16,
    torch.float8_e4m3fn: F8E4M3,
    torch.float8_e5m2: F8E5M2,
    torch.int32: I32,
    torch.int64: I64,
    torch.int16: I16,
    torch.int8: I8,
    torch.uint8: U8,
    torch.uint16: U16,
    torch.uint32: U32,
    torch.uint64: U64,
    torch.bool: I8,
}
"""The machine's type for each PyTorch type; a bool is stored as a byte of 0 or 1."""
# Integer types of the same width as types that NumPy lacks or that the machine names differently.
_BITS = {
    torch.bfloat16: (torch.int16, np.int16),
    torch.float8_e4m3fn: (torch.int8, np.int8),
    torch.float8_e5m2: (torch.int8, np.int8),
    torch.bool: (torch.int8, np.int8),
}


def machine_bits(flat: torch.Tensor) -> Array:
    """Return the elements of a host tensor as an array of the machine's type."""
    bits = _BITS.get(flat.dtype)
    return flat.numpy() if bits is None else flat.view(bits[0]).numpy().view(machine_type(flat.dtype).numpy)


def overload_of(name: str) -> TorchOperator:
    """Return the operator ``aten::name``. Without an overload (``sum.dim_IntList``) it is the default one."""
    packet, _, overload = name.partition(".")
    operator: TorchOperator = getattr(getattr(torch.ops.aten, packet), overload or "default")
    return operator


KNOWN_BYTES = 1 << 20
"""Maximum bytes of an integer tensor whose values a run without data stores, such as ids, tables or routing."""


class UnknownTypeError(InputError):
    """A PyTorch type that the machine does not have."""


def machine_type(ty: torch.dtype) -> DType:
    """Return the machine's type for a PyTorch type. Raises UnknownTypeError if it has none."""
    item = MACHINE_TYPES.get(ty)
    if item is None:
        raise UnknownTypeError(f"{ty} on ahbm: the machine has {', '.join(map(str, MACHINE_TYPES))}")
    return item


def current() -> AnyContext:
    """Return the context of the running program. Raises NoMachineError without one, and KernelError in a kernel."""
    check_host_calls()
    context = current_context()
    if context is None:
        thread = current_thread()
        if thread is not main_thread():
            raise NoMachineError(
                f"device ahbm: thread {thread.name!r} has no machine; the thread that runs the program has it, if any"
            )
        raise NoMachineError(
            "device ahbm: there is no machine; kernbench run --script FILE, or --bench FILE, gives one"
        )
    return context


StorageKind: TypeAlias = "tuple[int, DType, int]"
"""Number of elements, their type, and the SIP. A dropped storage is reused for one with the same three values."""
BLOCK_BYTES = 512
"""Allocation granularity of PyTorch's allocators, in bytes."""
_MOST_NAMED = 5


class DeviceOutOfMemoryError(AllocationError, torch.OutOfMemoryError):
    """An allocation exceeds the free HBM of a SIP. The message names the largest tensors."""


Shelves: TypeAlias = dict[StorageKind, list[Tensor]]
"""Dropped storages by kind"""


@value
class Holder:
    """The kind of a storage in use, and the module and the line that allocated the storage.

    ``shelves``: where the storage is put when the program drops it.
    """

    kind: StorageKind
    module: str
    place: ProgramPlace | None
    shelves: Shelves

    def __str__(self) -> str:
        n, item, _ = self.kind
        origin = " ".join(filter(None, (self.module, "" if self.place is None else str(self.place))))
        return f"{format_size(n * item.itemsize)} ({n:,} of {item}{', ' if origin else ''}{origin})"


class _Collector:
    """The state of Python's garbage collector. The time of a collection must not change simulated time."""

    def __init__(self) -> None:
        self.is_running = False
        gc.callbacks.append(self._note)

    def _note(self, phase: str, _: Mapping[str, int]) -> None:
        self.is_running = phase == "start"


_COLLECTOR = _Collector()


@state
class Pool:
    """The storages of a rank: in use (``live``), dropped by the program, or freed by the garbage collector.

    Dropped storages are reused. Storages that the garbage collector freed are reused only when memory is full, so the
    moment of a collection has no effect on simulated time.
    """

    context: AnyContext
    known_values: KnownValues
    live: dict[Tensor, Holder] = field(default_factory=dict)
    dropped: Shelves = field(default_factory=dict)
    captured: Shelves | None = None
    """The dropped storages that the capture of a graph may use; None outside of a capture."""
    slabs: dict[StorageKind, StorageSlab] = field(default_factory=dict)
    """The slab from which the next storage of a kind is taken."""
    collected: list[Tensor] = field(default_factory=list)
    count: int = 0
    """Storages allocated so far; it numbers their names."""
    allocated: dict[int, int] = field(default_factory=dict)
    peak: dict[int, int] = field(default_factory=dict)

    def take(self, n: int, item: DType, sip: int) -> Tensor:
        """Return a storage of ``n`` elements. Raises DeviceOutOfMemoryError if the tensors in use leave no room."""
        kind = (n, item, sip)
        shelves = self.dropped if self.captured is None else self.captured
        reused = self._take_dropped(shelves.get(kind))
        if reused is not None:
            reused.renew()
        tensor = self._make(kind) if reused is None else reused
        self.live[tensor] = Holder(kind, current_module(), program_place(), shelves)
        if self.context.n_ranks > 1:
            self.context.alike_work.note_fresh(tensor.layout.key)
        total = self.allocated[sip] = self.allocated.get(sip, 0) + _blocks(n * item.itemsize)
        self.peak[sip] = max(self.peak.get(sip, 0), total)
        return tensor

    def _take_dropped(self, shelf: list[Tensor] | None) -> Tensor | None:
        """Take a dropped storage from its shelf; None if there is none.

        In ranks, it is one that no collective uses: a launch on any other would wait for ranks that may wait for it.
        """
        if not shelf:
            return None
        if self.context.multiprocessing.n_ranks == 1:
            return shelf.pop()
        at = next((at for at in reversed(range(len(shelf))) if not shelf[at].is_exchanged), None)
        return None if at is None else shelf.pop(at)

    def give(self, tensor: Tensor) -> None:
        """Put ``tensor``, which is no longer in use, back into the pool."""
        self.known_values.forget(tensor)
        holder = self.live.pop(tensor)
        n, item, sip = holder.kind
        self.allocated[sip] -= _blocks(n * item.itemsize)
        if _COLLECTOR.is_running:
            self.collected.append(tensor)
        else:
            holder.shelves.setdefault(holder.kind, []).append(tensor)

    def return_shelves(self, shelves: Shelves) -> None:
        """Make the dropped storages of a graph available to all, when no graph uses them any more."""
        for kind, tensors in shelves.items():
            self.dropped.setdefault(kind, []).extend(tensors)
        shelves.clear()

    def _make(self, kind: StorageKind) -> Tensor:
        try:
            return self._allocate(kind)
        except AllocationError:
            gc.collect()
            self._free_dropped()
        try:
            return self._allocate(kind)
        except AllocationError as error:
            raise self._full(kind) from error

    def _allocate(self, kind: StorageKind) -> Tensor:
        slab = self.slabs.get(kind)
        if slab is None or not slab.has_more:
            (n, item, sip), context = kind, self.context
            install_rings(context, sip)
            # A kernel may load this tensor's address from memory, so all PEs that run kernels get access to it.
            pes = pes_with_access(context, sip)
            slab = self.slabs[kind] = context.slab(n, item, policy_for(context, n * item.itemsize), sip, pes)
        self.count += 1
        return self.context.take(slab, f"storage{self.count}")

    def _free_dropped(self) -> None:
        """Free the memory of all dropped and collected tensors."""
        tensors = [*[tensor for shelf in self.dropped.values() for tensor in shelf], *self.collected]
        self.dropped, self.collected = {}, []
        for tensor in tensors:
            tensor.free()

    def _full(self, kind: StorageKind) -> DeviceOutOfMemoryError:
        n, item, sip = kind
        on_sip = [holder for holder in self.live.values() if holder.kind[2] == sip]
        largest = sorted(on_sip, key=lambda holder: -holder.kind[0] * holder.kind[1].itemsize)[:_MOST_NAMED]
        has = self.context.topology.hbm_bytes_per_sip
        cubes = self.context.frontends.torch.cubes
        return DeviceOutOfMemoryError(
            f"ahbm:{sip} is out of memory: {format_size(n * item.itemsize)} asked for, "
            f"{format_size(self.allocated.get(sip, 0))} in {len(on_sip):,} tensors; its HBM has {format_size(has)}, "
            f"and tensors lie on {cubes} of {self.context.topology.cubes_per_sip} cubes (--set torch.cubes=N). "
            f"The largest: {'; '.join(map(str, largest)) or 'none'}"
        )


def _blocks(nbytes: int) -> int:
    return -(-nbytes // BLOCK_BYTES) * BLOCK_BYTES


def pool_of(context: AnyContext) -> Pool:
    """Return the pool of the current rank."""
    local = context.rank_local
    pool = local.get(Pool)
    if pool is None:
        local.put(pool := Pool(context, context.known_values))
    return pool


class Storage:
    """``n`` contiguous elements of a type, sharded over PEs of a SIP.

    ``inference``: True if it was created in inference mode. Its views are then not part of an autograd graph.

    The program may give the memory back while tensors use the storage, and take memory again before they are used.
    """

    __slots__ = ("__weakref__", "_give", "_pool", "_tensor", "dtype", "inference", "n", "sip")

    def __init__(self, n: int, dtype: torch.dtype, sip: int) -> None:
        self.n, self.dtype, self.sip = max(n, 1), dtype, sip
        self.inference = torch.is_inference_mode_enabled()
        self._pool = pool_of(current())
        self._take()

    def _take(self) -> None:
        self._tensor: Tensor | None = self._pool.take(self.n, machine_type(self.dtype), self.sip)
        self._give = finalize(self, self._pool.give, self._tensor)
        self._give.atexit = False

    @property
    def tensor(self) -> Tensor:
        """The machine's tensor with the elements. Raises InputError after ``release``."""
        if self._tensor is None:
            raise InputError(
                f"{program_place()}: a tensor of {self.n:,} elements of {self.dtype} whose memory the program has "
                "given back (resize_(0) of its storage); resize the storage to its size before the tensor is used"
            )
        return self._tensor

    @property
    def nbytes(self) -> int:
        """The bytes of the storage; 0 after ``release``."""
        return 0 if self._tensor is None else self.n * self.dtype.itemsize

    def release(self) -> None:
        """Give the memory back, while tensors still use the storage."""
        if self._tensor is not None:
            self._tensor = None
            self._give()

    def renew(self) -> None:
        """Take memory again after ``release``. The elements are uninitialised."""
        if self._tensor is None:
            self._take()

    def read(self, first: int, end: int, index: ElementIndex = ..., missing: Missing = "raise") -> torch.Tensor:
        """Transfer elements ``first`` to ``end - 1`` to the host, or those of them that ``index`` selects.

        With ``missing="zeros"`` the elements go to another tensor, unseen by the program. A run without data then
        returns zeros for values that it lacks; else it raises NoDataError.
        """
        elements = self._known()
        if missing == "raise" and elements is None:
            return self._on_host(self._fetch(first, end, index))
        array = self.tensor.pass_on(first, end, index)
        if array is not None:
            return self._on_host(array)
        return torch.zeros(end - first, dtype=self.dtype) if elements is None else self._on_host(elements[first:end])

    def _fetch(self, first: int, end: int, index: ElementIndex) -> Array:
        """Read elements for the program. Raises NoDataError, with the line that allocated the storage."""
        try:
            return self.tensor.fetch(first, end, index)
        except NoDataError as refusal:
            place = pool_of(current()).live[self.tensor].place
            if place is None:
                raise
            raise NoDataError(f"{refusal}; the tensor is from {place}") from None

    def peek(self) -> torch.Tensor:
        """Return all elements, in no simulated time, for observers. The run must have data."""
        return self._on_host(self.tensor.peek())

    @property
    def has_values(self) -> bool:
        """True if the run has data, or knows the values of all elements."""
        return current().has_data or self._known() is not None

    def known(self) -> torch.Tensor | None:
        """Return the values of all elements if a run without data knows them, else None."""
        array = self._known()
        return None if array is None else self._on_host(array)

    def _known(self) -> Array | None:
        context = current()
        return None if context.has_data else context.known_values.of(self.tensor)

    def put_known(self, flat: torch.Tensor) -> None:
        """In a run without data, store the values ``flat`` of all elements, which are then known."""
        current().known_values.put(self.tensor, 0, machine_bits(flat))

    def write(self, first: int, flat: torch.Tensor, *, is_known: bool = True) -> None:
        """Transfer ``flat`` from the host to the elements from ``first`` on. ``is_known``: ``flat`` has real values."""
        array = machine_bits(flat)
        if len(array) == self.n:
            self.tensor.copy_(array)
        else:
            self.tensor[first : first + len(array)] = array
        context = current()
        if context.n_ranks > 1:
            self._note_bytes(context, first, array if is_known else None)
        if not is_known:
            context.known_values.forget(self.tensor)
        elif not context.has_data and not self.dtype.is_floating_point and self.tensor.nbytes <= KNOWN_BYTES:
            context.known_values.put(self.tensor, first, array)

    def note_drawn(self, numbers: torch.Tensor | None) -> None:
        """Note random numbers that a run without data wrote, though not their values; None: numbers not drawn."""
        flat = None if numbers is None else machine_bits(numbers.contiguous().reshape(-1))
        self._note_bytes(current(), 0, flat)

    def _note_bytes(self, context: AnyContext, first: int, array: Array | None) -> None:
        """Note bytes of the host for the report of work that ranks do alike; None: unknown ones."""
        work, key = context.alike_work, self.tensor.layout.key
        if array is None:
            work.note_unknown(key)
        else:
            work.note_bytes(key, first, array, is_whole=len(array) == self.n)

    def _on_host(self, array: Array) -> torch.Tensor:
        bits = _BITS.get(self.dtype)
        if bits is None:
            return torch.from_numpy(np.array(array)).to(self.dtype)
        return torch.from_numpy(np.array(array.view(bits[1]))).view(self.dtype)
