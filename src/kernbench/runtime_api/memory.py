"""The tensors of one context, created, read, written and freed in simulated time, and the context's extra memories."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

from kernbench.common.dtypes import Array, DType, Shape
from kernbench.common.errors import AllocationError, InputError
from kernbench.common.ids import pe_part
from kernbench.common.units import format_size
from kernbench.common.values import state, value
from kernbench.engine.engine import GraphEngine
from kernbench.engine.requests import RequestHandle
from kernbench.messages.requests import HostMsg, MappedShard, MmuMapMsg, MmuUnmapMsg, PeCoord, TensorMapping
from kernbench.policy.address.free_list import FreeList
from kernbench.policy.placement.deploy import Slab, deploy_slab, deploy_tensor, release_deployment, unit_bytes
from kernbench.policy.placement.dp import DPPolicy
from kernbench.policy.placement.geometry import Window
from kernbench.policy.placement.views import ShardView, shard_views
from kernbench.runtime_api.arrays import Tolerance
from kernbench.runtime_api.layout import JoinedRanges, TensorKey, TensorLayout, reshape_layout
from kernbench.runtime_api.read_watch import Look, ReadWatch
from kernbench.runtime_api.requests import Requests, Uses, is_queued
from kernbench.runtime_api.transfers import (
    HostSource,
    TensorCopy,
    copies,
    copy_launch,
    copy_messages,
    fill_messages,
    fill_pattern,
    gather,
    read_messages,
    update_messages,
)


@value
class FreedTensor:
    """A tensor that the context had to free because the program did not free it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    sip: int
    nbytes: int

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape)} ({format_size(self.nbytes)}) on sip{self.sip}"


@value
class LeakedMemory:
    """Memory that was free when the context began, and is allocated after the context has freed all its tensors."""

    part: str
    nbytes: int

    def __str__(self) -> str:
        return f"{format_size(self.nbytes)} of {self.part}"


@value
class CleanupReport:
    """The result of ``cleanup``: the tensors that ``cleanup`` freed, and memory still allocated without a tensor.

    ``left``: unfinished work of ranks, such as requests that no rank waited for.
    """

    freed: tuple[FreedTensor, ...] = ()
    leaked: tuple[LeakedMemory, ...] = ()
    left: tuple[str, ...] = ()

    def __str__(self) -> str:
        freed = ", ".join(map(str, self.freed)) or "nothing"
        leaked = ", ".join(map(str, self.leaked)) or "nothing"
        left = f"; left by ranks: {', '.join(self.left)}" if self.left else ""
        return f"freed at exit: {freed}; leaked: {leaked}{left}"


SLAB_BYTES = 2 << 20
"""Bytes of virtual memory that a slab of tensors has at least."""


@state(eq=False)
class StorageSlab:
    """Tensors of one size and placement that are allocated and mapped together; a program takes them one by one.

    ``pes``: the PEs that map them. ``n_taken``: the number of tensors taken so far. ``n_live``: those of them that are
    not freed. A slab without live tensors is freed, and no longer open.
    """

    slab: Slab
    dtype: DType
    dp: DPPolicy
    sip: int
    views: tuple[ShardView, ...]
    pes: tuple[PeCoord, ...]
    n_taken: int = 0
    n_live: int = 0
    is_open: bool = True

    @property
    def has_more(self) -> bool:
        """True if a further tensor can be taken."""
        return self.is_open and self.n_taken < self.slab.count

    def next_layout(self, name: str) -> TensorLayout:
        """Return the next tensor, as ``name``."""
        deployment = self.slab.tensor(self.n_taken, name)
        self.n_taken += 1
        self.n_live += 1
        assert deployment.va_base is not None, "a slab has virtual addresses"
        return TensorLayout(
            shape=(deployment.nbytes // self.dtype.itemsize,),
            dtype=self.dtype,
            dp=self.dp,
            sip=self.sip,
            va=deployment.va_base,
            deployment=deployment,
            views=self.views,
        )


class LaterRenewals:
    """Memory that counts as unwritten as soon as a launch in a queue has ended on its SIP, by launch."""

    def __init__(self, engine: GraphEngine) -> None:
        self.after: defaultdict[int, list[tuple[MappedShard, ...]]] = defaultdict(list)
        self._engine = engine

    def begin(self, launch: int, now_ps: int) -> None:
        """Do nothing: the launch is simulated."""

    def end(self, launch: int, now_ps: int) -> int:
        """Mark the memory that waited for a launch, before a later launch can write it. Return 0: it has ended."""
        for shards in self.after.pop(launch, ()):
            self._engine.renew((shard.pa, shard.nbytes) for shard in shards)
        return 0


class TensorMemory:
    """The live tensors of a context: their placement on the machine, and the transfers of their data."""

    __slots__ = (
        "_before",
        "_engine",
        "_joined",
        "_live",
        "_mapped",
        "_requests",
        "_slabs",
        "_unmapped_slabs",
        "_watch",
        "_workspaces",
        "renewals",
        "uses",
    )

    def __init__(self, engine: GraphEngine, requests: Requests) -> None:
        self._engine, self._requests = engine, requests
        self._watch = ReadWatch(engine)
        self.uses = Uses(requests)
        self._joined = JoinedRanges(engine)
        self._live: dict[TensorKey, TensorLayout] = {}
        self._mapped: dict[TensorKey, set[PeCoord]] = {}
        self._slabs: dict[TensorKey, StorageSlab] = {}  # by live tensor
        self._unmapped_slabs: list[StorageSlab] = []
        self._workspaces: dict[tuple[int, Shape, DType, DPPolicy], TensorLayout] = {}
        self._before = _measure_use(engine)
        self.renewals = LaterRenewals(engine)

    @property
    def has_data(self) -> bool:
        """True when values can be read."""
        return self._engine.enable_data

    def create(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: DType,
        dp: DPPolicy,
        sip: int,
        fill: float | None = None,
        *,
        is_mapped: bool = True,
    ) -> TensorLayout:
        """Allocate a tensor, map it in the MMUs of its owners, and initialise it to ``fill``.

        Allocation takes no simulated time; the messages that map and fill the tensor are in flight together. With
        ``fill`` None, the tensor stays uninitialised. With ``is_mapped`` False, only `map_on` maps the tensor.
        """
        self._requests.check()
        if fill is not None:
            fill_pattern(fill, dtype)  # check the fill value before allocating
        layout = self._place(name, shape, dtype, dp, sip)
        self._begin(layout)
        self._live[layout.key] = layout
        self._mapped[layout.key] = set()
        mapping = self._make_mappings([layout], layout.owners if is_mapped else ())
        self._requests.transfer([*mapping, *(() if fill is None else fill_messages(layout, fill))])
        return layout

    def create_slab(self, n: int, dtype: DType, dp: DPPolicy, sip: int, pes: tuple[PeCoord, ...]) -> StorageSlab:
        """Allocate tensors of ``n`` elements, together at least `SLAB_BYTES`, or one if memory lacks room for more.

        The launch that follows maps them on ``pes``, by a message before its own. Raises AllocationError if memory is
        full.
        """
        self._requests.check()
        views, va_allocator = self._make_views((n,), dtype, dp, sip), self._engine.va_allocator(sip)
        nbytes, name, placement = n * dtype.itemsize, f"storage of {n:,} {dtype}", [view.spec for view in views]
        count = -(-SLAB_BYTES // unit_bytes(nbytes, va_allocator))
        try:
            slab = deploy_slab(name, count, nbytes, placement, self._engine.allocators, va_allocator)
        except AllocationError:
            slab = deploy_slab(name, 1, nbytes, placement, self._engine.allocators, va_allocator)
        created = StorageSlab(slab, dtype, dp, sip, views, pes)
        self._unmapped_slabs.append(created)
        return created

    def take(self, slab: StorageSlab, name: str) -> TensorLayout:
        """Return the next tensor of a slab, uninitialised, as ``name``."""
        layout = slab.next_layout(name)
        self._begin(layout)
        self._live[layout.key] = layout
        self._mapped[layout.key] = set()
        self._slabs[layout.key] = slab
        return layout

    def _post_maps(self) -> list[RequestHandle]:
        slabs, self._unmapped_slabs = self._unmapped_slabs, []
        return [
            self._requests.submit(
                MmuMapMsg(name=created.slab.name, sip=created.sip, mapping=created.slab.mapping, target_pe=created.pes)
            )
            for created in slabs
            if created.is_open
        ]

    def workspace(self, shape: Shape, dtype: DType, dp: DPPolicy, sip: int) -> TensorLayout:
        """Return memory for intermediate values of kernels, the same for all calls with the same arguments.

        The first call allocates the memory. The context frees it at its end, without a mention in the report. Launches
        in flight together must not share a workspace.
        """
        key = sip, shape, dtype, dp
        if key not in self._workspaces:
            self._workspaces[key] = self.create("workspace", shape, dtype, dp, sip)
        return self._workspaces[key]

    def create_like(self, layout: TensorLayout, name: str, dtype: DType, fill: float | None = None) -> TensorLayout:
        """Create a tensor with the shape and the layout of another tensor, on the same SIP."""
        shape = layout.shape if layout.made_as is None else layout.made_as
        created = self.create(name, shape, dtype, layout.dp, layout.sip, fill)
        if shape == layout.shape:
            return created
        under_its_shape = self.reshape(created, layout.shape)
        assert under_its_shape is not None, "a tensor of the same layout can have the same shape"
        return under_its_shape

    def renew(self, layout: TensorLayout) -> None:
        """Mark all elements of the tensor as unwritten, after the launches in a queue that still use it.

        While another request in flight uses the tensor, the call has no effect.
        """
        log = self._engine.machine.log
        using = [
            handle
            for handle in self.uses.under_way(layout.key)
            if not handle.done and not log.has_ended_on_device(handle.request_id)
        ]
        if all(map(is_queued, using)):
            self._engine.retire()
            if using:
                self.renewals.after[using[-1].request_id].append(layout.shards)
            else:
                self._begin(layout)

    def _begin(self, layout: TensorLayout) -> None:
        self._engine.renew((shard.pa, shard.nbytes) for shard in layout.shards)

    def map_on(self, wanted: Iterable[tuple[Iterable[TensorLayout], tuple[PeCoord, ...]]]) -> list[RequestHandle]:
        """Map tensors in the MMUs of PEs that do not map them yet, and wait until this is done.

        Return the messages in flight that map new slabs: a launch that starts later reaches the PEs behind them.
        """
        posted = self._post_maps()
        self._requests.transfer(chain.from_iterable(self._make_mappings(layouts, pes) for layouts, pes in wanted))
        return posted

    def join(self, layouts: Sequence[TensorLayout]) -> int:
        """Map tensors of one layout to consecutive virtual addresses on their owners, and return the first address.

        The data does not move, and each tensor retains its own address too. The range exists until one of the tensors
        is freed.
        """
        va, messages = self._joined.join(layouts)
        self._requests.transfer(messages)
        return va

    def _make_mappings(self, layouts: Iterable[TensorLayout], pes: tuple[PeCoord, ...]) -> list[HostMsg]:
        messages: list[HostMsg] = []
        for layout in layouts:
            mapped, slab = self._mapped[layout.key], self._slabs.get(layout.key)
            new = tuple(pe for pe in pes if pe not in mapped and (slab is None or pe not in slab.pes))
            if new:
                mapped.update(new)
                mapping = layout.deployment.mapping()
                messages.append(MmuMapMsg(name=layout.name, sip=layout.sip, mapping=mapping, target_pe=new))
        return messages

    def _make_unmappings(self, layouts: Sequence[TensorLayout]) -> Iterator[HostMsg]:
        for layout in layouts:
            mapped = tuple(sorted(self._mapped[layout.key]))
            if mapped:  # else no launch has mapped the tensor
                yield MmuUnmapMsg(name=layout.name, sip=layout.sip, va_base=layout.va, target_pe=mapped)
        for created in self._emptied_slabs(layouts):
            if created not in self._unmapped_slabs:
                slab = created.slab
                yield MmuUnmapMsg(name=slab.name, sip=created.sip, va_base=slab.va_base, target_pe=created.pes)

    def _emptied_slabs(self, layouts: Sequence[TensorLayout]) -> list[StorageSlab]:
        """Return the slabs whose live tensors are all among ``layouts``."""
        counts = Counter([self._slabs[layout.key] for layout in layouts if layout.key in self._slabs])
        return [slab for slab, count in counts.items() if count == slab.n_live]

    def clone(self, layout: TensorLayout, name: str) -> TensorLayout:
        """Create a tensor of the same layout: every owner PE copies its shards."""
        self.settle(layout)
        copied = self.create_like(layout, name, layout.dtype)
        posted = self.map_on([([layout], layout.owners)])
        copying = self._requests.submit(copy_launch(layout, copied))
        self.uses.note(copying, (layout.key, copied.key))
        self._requests.wait([*posted, copying])
        return copied

    def reshape(self, layout: TensorLayout, shape: tuple[int, ...]) -> TensorLayout | None:
        """Return the tensor under another shape of as many elements; None if a shard is no box of the new shape."""
        self._check_live(layout)
        return reshape_layout(layout, shape, lambda policy: self._make_views(shape, layout.dtype, policy, layout.sip))

    def _make_views(self, shape: tuple[int, ...], dtype: DType, dp: DPPolicy, sip: int) -> tuple[ShardView, ...]:
        spec = self._engine.spec
        return shard_views(
            dp,
            shape=shape,
            itemsize=dtype.itemsize,
            num_pe=spec.pes_per_cube,
            num_cubes=spec.cubes_per_sip,
            target_sip=sip,
        )

    def _place(self, name: str, shape: tuple[int, ...], dtype: DType, dp: DPPolicy, sip: int) -> TensorLayout:
        views = self._make_views(shape, dtype, dp, sip)
        deployment = deploy_tensor(
            name,
            shape,
            dtype,
            [view.spec for view in views],
            self._engine.allocators,
            va_allocator=self._engine.va_allocator(sip),
        )
        va = deployment.mapping().va_base
        return TensorLayout(shape=shape, dtype=dtype, dp=dp, sip=sip, va=va, deployment=deployment, views=views)

    def is_live(self, layout: TensorLayout) -> bool:
        """Return True when the tensor, under any shape, has not been freed."""
        live = self._live.get(layout.key)
        return live is not None and live.deployment is layout.deployment

    def bytes_in_use(self, sip: int) -> int:
        """Return the bytes of the SIP's HBM that tensors occupy, those of other contexts included."""
        use = _measure_use(self._engine)
        return sum(nbytes for (pe, part), nbytes in use.items() if part == "hbm" and pe[0] == sip)

    def fill(self, layout: TensorLayout, value: float) -> None:
        """Set every element to ``value``, which the device writes without data from the host."""
        self._write(layout, fill_messages(layout, value))

    def copy(self, layout: TensorLayout, source: HostSource | None) -> None:
        """Write ``source``, broadcast to the tensor's shape, to every replica by a transfer from the host.

        With ``source`` None, the transfer has the same duration and no values.
        """
        self._write(layout, copy_messages(layout, source if self.has_data else None))

    def update(self, layout: TensorLayout, window: Window, values: Array | None, chosen: Array) -> None:
        """Set the elements of ``window`` where ``chosen`` is true to ``values``; only the bytes of these are sent.

        With ``values`` None, the transfer has the same duration and no values.
        """
        if window == layout.whole and chosen.all():
            self.copy(layout, values)
        else:
            self._write(layout, update_messages(layout, window, values if self.has_data else None, chosen))

    def read(self, layout: TensorLayout, window: Window, index: Any = ...) -> Array:
        """Read the elements of ``window`` by a host transfer.

        ``index``: the elements of the window that the program uses; observers report errors only in these elements.
        Raises NoDataError in a run without data, before any simulated time passes.
        """
        self._requests.check()
        self._check_live(layout)
        self._engine.keeping.read(window.size, f"tensor {layout.name!r}")
        values = self.pass_on(layout, window, index)
        return np.zeros(window.shape, layout.dtype.numpy) if values is None else values

    def pass_on(self, layout: TensorLayout, window: Window, index: Any = ...) -> Array | None:
        """Read values that the host only writes to the machine again, unseen by the program. None without data."""
        start_ps = self._engine.machine.clock.time
        self.settle(layout)
        self._requests.transfer(read_messages(layout, layout.first_stretches(window)))
        if not self.has_data:
            return None
        held = self._gather(layout, window)
        if self._watch.is_on:
            self._watch.check(
                Look(action="read", layout=layout, window=window, held=held, start_ps=start_ps, index=index)
            )
        return held

    def look(self, layout: TensorLayout) -> Array:
        """Return all elements as they are stored now, in no simulated time: for reports, not for programs.

        Raises NoDataError in a run without values.
        """
        self._check_live(layout)
        window = layout.whole
        has_values = self._engine.keeping.read(window.size, f"tensor {layout.name!r}")
        return self._gather(layout, window) if has_values else np.zeros(window.shape, layout.dtype.numpy)

    def copies(self, layout: TensorLayout, first: Array) -> Iterator[TensorCopy]:
        """Yield every replica as it is stored now; ``first`` is the content of the first replica."""
        return copies(layout, layout.whole, first, self._engine.read_memory) if layout.has_copies else iter(())

    def check(self, layout: TensorLayout, tolerance: Tolerance) -> None:
        """Report errors in a tensor to observers: unwritten elements, and replicas that differ beyond the tolerance."""
        if self._watch.is_on:
            now, held = self._engine.machine.clock.time, self._gather(layout, layout.whole)
            self._watch.check(
                Look(
                    action="assert_close",
                    layout=layout,
                    window=layout.whole,
                    held=held,
                    start_ps=now,
                    tolerance=tolerance,
                )
            )

    def settle(self, layout: TensorLayout, *, writes: bool = True) -> None:
        """Wait for requests in flight that use the tensor. Raises InputError if it is freed.

        ``writes``: the caller will write the tensor; without it, the call does not wait for requests that only read.
        """
        self._requests.check()
        self._check_live(layout)
        self.uses.settle(layout.key, writes=writes)

    def release(self, layout: TensorLayout) -> None:
        """Unmap the tensor, then free its memory."""
        self.settle(layout)
        self._requests.transfer([*self._make_unmappings([layout]), *self._joined.unmappings([layout])])
        self._forget([layout])

    def release_all(self, *, unmap: bool = True) -> CleanupReport:
        """Free all live tensors, in the order of creation, and report them.

        Without ``unmap``, only free the allocations, because after an error the machine may not respond.
        """
        left = tuple(self._live.values())
        if unmap:
            for layout in left:
                self.settle(layout)
            self._requests.transfer([*self._make_unmappings(left), *self._joined.unmappings(left)])
        freed = tuple(
            FreedTensor(layout.name, layout.shape, layout.dtype.name, layout.sip, layout.nbytes)
            for layout in left
            if layout not in self._workspaces.values()
        )
        self._forget(left)
        return CleanupReport(freed, tuple(self._find_leaks()))

    def _write(self, layout: TensorLayout, messages: Iterable[HostMsg]) -> None:
        self.settle(layout)
        self._requests.transfer(messages)

    def _gather(self, layout: TensorLayout, window: Window) -> Array:
        return gather(layout, window, layout.first_stretches(window), self._engine.read_memory)

    def _check_live(self, layout: TensorLayout) -> None:
        if not self.is_live(layout):
            raise InputError(f"tensor {layout.name!r} has been freed")

    def _forget(self, layouts: Sequence[TensorLayout]) -> None:
        self._joined.forget(layouts)
        emptied = self._emptied_slabs(layouts)
        for layout in layouts:
            del self._live[layout.key], self._mapped[layout.key]
            slab = self._slabs.pop(layout.key, None)
            if slab is not None:
                slab.n_live -= 1
                continue
            self._workspaces = {
                key: workspace for key, workspace in self._workspaces.items() if workspace is not layout
            }
            release_deployment(layout.deployment, self._engine.allocators, self._engine.va_allocator(layout.sip))
        for slab in emptied:
            slab.is_open = False
            slab.slab.release(self._engine.allocators, self._engine.va_allocator(slab.sip))
        if layouts:
            self._engine.retire()

    def _find_leaks(self) -> Iterable[LeakedMemory]:
        for (pe, part), nbytes in _measure_use(self._engine).items():
            more = nbytes - self._before.get((pe, part), 0)
            if more > 0:
                yield LeakedMemory(pe_part(*pe, part), more)


def _measure_use(engine: GraphEngine) -> dict[tuple[PeCoord, str], int]:
    """Return the bytes in use in the memories of every PE that has been used."""
    used: dict[tuple[PeCoord, str], int] = {}
    for pe, allocator in sorted(engine.used_allocators.items()):
        used[pe, "hbm"], used[pe, "tcm"] = _count_bytes(allocator.hbm), _count_bytes(allocator.tcm)
    return used


def _count_bytes(space: FreeList) -> int:
    return sum(extent.nbytes for extent in space.live)


class ExtraMemories:
    """The memories at ``cube.extra`` and ``pe.extra`` that a program has mapped to virtual addresses of their SIP."""

    __slots__ = ("_engine", "_mapped", "_requests")

    def __init__(self, engine: GraphEngine, requests: Requests) -> None:
        self._engine, self._requests = engine, requests
        self._mapped: dict[str, tuple[int, TensorMapping]] = {}

    def map(self, part: str) -> int:
        """Return the virtual address of the first byte. The first call maps the memory on the PEs of the SIP."""
        if part not in self._mapped:
            node = self._engine.topology.topology_obj.node(part)
            pa, nbytes = self._engine.addresses_of(part)
            sip, cube = node.cube_coord
            shard = MappedShard(sip=sip, cube=cube, pe=node.pe or 0, offset_bytes=0, nbytes=nbytes, pa=pa)
            va = self._engine.va_allocator(sip).alloc(nbytes)
            mapping = TensorMapping(name=part, va_base=va, nbytes=nbytes, shards=(shard,))
            self._mapped[part] = sip, mapping
            self._requests.transfer([MmuMapMsg(name=part, sip=sip, mapping=mapping)])
        return self._mapped[part][1].va_base

    def release(self, *, unmap: bool = True) -> None:
        """Unmap all of these memories; without ``unmap`` only free their virtual addresses."""
        if unmap:
            self._requests.transfer(self._make_unmappings())
        for sip, mapping in self._mapped.values():
            self._engine.va_allocator(sip).free(mapping.va_base, mapping.nbytes)
        self._mapped.clear()

    def _make_unmappings(self) -> Iterator[MmuUnmapMsg]:
        for sip, mapping in self._mapped.values():
            yield MmuUnmapMsg(name=mapping.name, sip=sip, va_base=mapping.va_base)
