"""What a PE's MMU is told about a tensor: where every shard of it lies."""

from __future__ import annotations

from kernbench.common.values import value


@value(kw_only=True)
class MappedShard:
    """Bytes ``offset_bytes .. offset_bytes + nbytes`` of a tensor: the PE that owns them, and ``pa``, their address.

    Shards with the same offset and size are copies of each other; ``pa`` is an encoded physical address.
    """

    sip: int
    cube: int
    pe: int
    offset_bytes: int
    nbytes: int
    pa: int


@value(kw_only=True)
class TensorMapping:
    """The tensor ``name`` at virtual addresses ``va_base .. va_base + nbytes``."""

    name: str
    va_base: int
    nbytes: int
    shards: tuple[MappedShard, ...]

    @property
    def va_end(self) -> int:
        """The first virtual address behind the tensor."""
        return self.va_base + self.nbytes
