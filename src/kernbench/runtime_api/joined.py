"""Several tensors of one layout as one range of virtual addresses: how a kernel sees a list of tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kernbench.engine.engine import GraphEngine
from kernbench.messages.mapping import TensorMapping
from kernbench.messages.requests import HostMsg, MmuMapMsg, MmuUnmapMsg, PeCoord
from kernbench.runtime_api.layout import TensorLayout
from kernbench.runtime_api.work import TensorKey


@dataclass(frozen=True, slots=True)
class _Joined:
    va: int
    nbytes: int
    sip: int
    name: str
    pes: tuple[PeCoord, ...]


class JoinedRanges:
    """The lists of tensors that were joined and whose tensors all live."""

    __slots__ = ("_engine", "_joined")

    def __init__(self, engine: GraphEngine) -> None:
        self._engine = engine
        self._joined: dict[tuple[TensorKey, ...], _Joined] = {}

    def join(self, layouts: Sequence[TensorLayout]) -> tuple[int, list[HostMsg]]:
        """The address of the first; the others follow each other. With it the messages that make it so, if needed."""
        keys = tuple(layout.key for layout in layouts)
        if keys in self._joined:
            return self._joined[keys].va, []
        first = layouts[0]
        nbytes = first.nbytes * len(layouts)
        va = self._engine.va_allocator(first.sip).alloc(nbytes)
        name = f"[{', '.join(layout.name for layout in layouts)}]"
        pes = tuple(sorted({pe for layout in layouts for pe in layout.owners}))
        self._joined[keys] = _Joined(va, nbytes, first.sip, name, pes)
        shards = tuple(
            replace(shard, offset_bytes=shard.offset_bytes + at * first.nbytes)
            for at, layout in enumerate(layouts)
            for shard in layout.shards
        )
        mapping = TensorMapping(name=name, va_base=va, nbytes=nbytes, shards=shards)
        return va, [MmuMapMsg(name=name, sip=first.sip, mapping=mapping, target_pe=pes)]

    def unmappings(self, layouts: Sequence[TensorLayout]) -> Iterator[HostMsg]:
        """The messages that take every list with one of these tensors out of the MMUs."""
        for _, joined in self._with_any(layouts):
            yield MmuUnmapMsg(name=joined.name, sip=joined.sip, va_base=joined.va, target_pe=joined.pes)

    def forget(self, layouts: Sequence[TensorLayout]) -> None:
        """These tensors are gone, and so is every list with one of them."""
        for keys, joined in self._with_any(layouts):
            del self._joined[keys]
            self._engine.va_allocator(joined.sip).free(joined.va, joined.nbytes)

    def _with_any(self, layouts: Sequence[TensorLayout]) -> list[tuple[tuple[TensorKey, ...], _Joined]]:
        gone = {layout.key for layout in layouts}
        return [(keys, joined) for keys, joined in self._joined.items() if gone.intersection(keys)]
