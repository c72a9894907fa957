"""A rank's data in pieces of one message each: what schedules load, send, reduce and store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from kernbench.common.dtypes import dtype as element_type
from kernbench.common.errors import InputError, UnknownNameError
from kernbench.kernels.shares import blocks
from kernbench.messages.steps import REDUCE_OPS, Chunk, ChunkSource, ReduceName, Step, load, reduce, scale

SLOT_BYTES = 4096
"""A slot, where nobody says how large one is."""
SCRATCH_BYTES = 4 << 20
"""TCM for handles, where nobody says how much there is."""


class Messages(NamedTuple):
    """Messages of up to ``chunk`` elements of ``item`` bytes, reduced by ``op``, and what there is room for.

    A queue has ``n_slots`` of them, TCM ``scratch_bytes`` for arrays. ``load_bytes``, ``hop_bytes``: what is under way
    from memory, and on a hop there and back within a cube, between cubes, between SIPs.
    """

    op: ReduceName
    chunk: int
    item: int
    n_slots: int = 2
    load_bytes: int = SLOT_BYTES
    hop_bytes: tuple[int, ...] = (SLOT_BYTES,) * 3
    scratch_bytes: int = SCRATCH_BYTES

    def pieces(self, chunk: Chunk) -> list[Chunk]:
        """``chunk`` in messages."""
        return [Chunk(first, count, chunk.tensor) for first, count in blocks(chunk.size, self.chunk, chunk.offset)]

    def segments(self, n_elem: int, copies: int = 1) -> Iterator[Chunk]:
        """Yield parts of a tensor of which scratch holds so many ``copies``, with what is made of them on the way."""
        for first, count in blocks(n_elem, max(self.chunk, self.scratch_bytes // copies // (4 * self.item))):
            yield Chunk(first, count)

    def under_way(self, nbytes: int) -> int:
        """Return how many messages keep ``nbytes`` on the way while one more is being added."""
        return 1 - -nbytes // (self.chunk * self.item)

    def load_ahead(
        self, pieces: Sequence[Chunk], order: Iterable[int] | None = None
    ) -> Iterator[tuple[int, list[Step]]]:
        """Yield, for each of ``pieces`` in ``order``, the loads that come before its use: others are under way."""
        buffers = list(range(len(pieces)) if order is None else order)
        ahead, begun = self.under_way(self.load_bytes), 0
        for at, buffer in enumerate(buffers):
            until = min(at + 1 + ahead, len(buffers))
            yield buffer, [load(i, pieces[i]) for i in buffers[begun:until]]
            begun = until

    def add(self, buffer: int, what: ChunkSource) -> Step:
        """``what`` is reduced into ``buffer``."""
        return reduce(buffer, buffer, what, self.op)

    def finish(self, buffer: int, contributions: int) -> list[Step]:
        """Return the steps that end a reduction: for ``avg``, the mean of all contributions in ``buffer``."""
        return [scale(buffer, buffer, contributions)] if self.op == "avg" and contributions > 1 else []


def messages_of(
    reduce_op: str,
    chunk_size: int | None,
    /,
    *,
    dtype: object = "f32",
    slot_size: int = SLOT_BYTES,
    n_slots: int = 2,
    load_bytes: int = SLOT_BYTES,
    hop_bytes: tuple[int, ...] = (SLOT_BYTES,) * 3,
    scratch_bytes: int = SCRATCH_BYTES,
    **_others: object,
) -> Messages:
    """Messages as a configuration says; ``chunk_size``, in bytes, is ``slot_size`` when None.

    UnknownNameError for a dtype or a reduction that does not exist; InputError for a chunk that fits no slot.
    """
    item = element_type(dtype)
    if reduce_op not in REDUCE_OPS:
        raise UnknownNameError("reduce_op", reduce_op, REDUCE_OPS)
    nbytes = slot_size if chunk_size is None else chunk_size
    if not item.itemsize <= nbytes <= slot_size:
        raise InputError(
            f"chunk_size {nbytes}: a message has at least one element ({item.itemsize} bytes of {item}) and fits a "
            f"slot (slot_size {slot_size})"
        )
    chunk = nbytes // item.itemsize
    return Messages(reduce_op, chunk, item.itemsize, n_slots, load_bytes, hop_bytes, scratch_bytes)


def split_evenly(chunk: Chunk, parts: int) -> list[Chunk]:
    """``chunk`` in so many parts: the first ones have one element more where it does not come out even."""
    size, more = divmod(chunk.size, parts)
    return [Chunk(chunk.offset + i * size + min(i, more), size + (i < more), chunk.tensor) for i in range(parts)]


def number_pieces(parts: Iterable[Sequence[Chunk]]) -> list[range]:
    """Return the range of numbers of each part's pieces, when all are numbered one part after the other."""
    found: list[range] = []
    for part in parts:
        first = found[-1].stop if found else 0
        found.append(range(first, first + len(part)))
    return found
