"""Memories at ``cube.extra`` and ``pe.extra``, as kernels see them: at virtual addresses of their SIP."""

from __future__ import annotations

from collections.abc import Iterator

from kernbench.engine.engine import GraphEngine
from kernbench.messages.requests import MappedShard, MmuMapMsg, MmuUnmapMsg, TensorMapping
from kernbench.runtime_api.requests import Requests


class ExtraMemories:
    """Those that a program has asked for."""

    __slots__ = ("_engine", "_mapped", "_requests")

    def __init__(self, engine: GraphEngine, requests: Requests) -> None:
        self._engine, self._requests = engine, requests
        self._mapped: dict[str, tuple[int, TensorMapping]] = {}

    def map(self, part: str) -> int:
        """The virtual address of the first byte; the PEs of the SIP are told when it is asked for first."""
        if part not in self._mapped:
            node = self._engine.topology.topology_obj.node(part)
            pa, nbytes = self._engine.addresses_of(part)
            sip, cube = node.cube_coord
            whole = MappedShard(sip=sip, cube=cube, pe=node.pe or 0, offset_bytes=0, nbytes=nbytes, pa=pa)
            va = self._engine.va_allocator(sip).alloc(nbytes)
            mapping = TensorMapping(name=part, va_base=va, nbytes=nbytes, shards=(whole,))
            self._mapped[part] = sip, mapping
            self._requests.transfer([MmuMapMsg(name=part, sip=sip, mapping=mapping)])
        return self._mapped[part][1].va_base

    def release(self, *, unmap: bool = True) -> None:
        """Take all of them out of the MMUs; without ``unmap`` only their virtual addresses are given back."""
        if unmap:
            self._requests.transfer(self._unmappings())
        for sip, mapping in self._mapped.values():
            self._engine.va_allocator(sip).free(mapping.va_base, mapping.nbytes)
        self._mapped.clear()

    def _unmappings(self) -> Iterator[MmuUnmapMsg]:
        for sip, mapping in self._mapped.values():
            yield MmuUnmapMsg(name=mapping.name, sip=sip, va_base=mapping.va_base)
