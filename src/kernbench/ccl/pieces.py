"""A rank's data in pieces of one message each: what schedules load, send, reduce and store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from kernbench.common.dtypes import dtype as element_type
from kernbench.common.errors import InputError, UnknownNameError
from kernbench.kernels.shares import blocks
from kernbench.messages.steps import REDUCE_OPS, Chunk, ReduceName, Source, Step, load, reduce, scale

SLOT_BYTES = 4096
"""A slot, where nobody says how large one is."""
SCRATCH_BYTES = 4 << 20
"""TCM for handles, where nobody says how much there is."""


class Messages(NamedTuple):
    """Messages of up to ``chunk`` elements of ``item`` bytes, reduced by ``op``."""

    op: ReduceName
    chunk: int
    item: int

    @property
    def nbytes(self) -> int:
        """Bytes of a full message."""
        return self.chunk * self.item

    def pieces(self, chunk: Chunk) -> list[Chunk]:
        """``chunk`` in messages."""
        return [Chunk(first, count, chunk.tensor) for first, count in blocks(chunk.size, self.chunk, chunk.offset)]

    def segments(self, n_elem: int, scratch_bytes: int) -> Iterator[Chunk]:
        """A tensor in parts that scratch holds, with what is made of them on the way."""
        for first, count in blocks(n_elem, max(self.chunk, scratch_bytes // (4 * self.item))):
            yield Chunk(first, count)

    def under_way(self, nbytes: int) -> int:
        """How many messages it takes to have ``nbytes`` on the way, while one more is being added."""
        return 1 - -nbytes // self.nbytes

    def add(self, buffer: int, what: Source) -> Step:
        """``what`` is reduced into ``buffer``."""
        return reduce(buffer, buffer, what, self.op)

    def finish(self, buffer: int, contributions: int) -> list[Step]:
        """For ``avg``, once all contributions are in ``buffer``: their mean."""
        return [scale(buffer, buffer, contributions)] if self.op == "avg" and contributions > 1 else []


def messages_of(dtype: object, reduce_op: str, slot_size: int, chunk_size: int | None) -> Messages:
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
    return Messages(reduce_op, nbytes // item.itemsize, item.itemsize)


def split_evenly(chunk: Chunk, parts: int) -> list[Chunk]:
    """``chunk`` in so many parts: the first ones have one element more where it does not come out even."""
    size, more = divmod(chunk.size, parts)
    return [Chunk(chunk.offset + i * size + min(i, more), size + (i < more), chunk.tensor) for i in range(parts)]


def numbered(parts: Iterable[Sequence[Chunk]]) -> list[range]:
    """Which pieces of all are those of each part, when they are numbered one part after the other."""
    found: list[range] = []
    for part in parts:
        first = found[-1].stop if found else 0
        found.append(range(first, first + len(part)))
    return found


def loaded(pieces: Sequence[tuple[int, Chunk]], ahead: int) -> Iterator[tuple[int, list[Step]]]:
    """For each buffer and its piece the loads that come before its use: ``ahead`` more of them are under way."""
    begun = 0
    for at, (buffer, _) in enumerate(pieces):
        until = min(at + 1 + ahead, len(pieces))
        yield buffer, [load(*each) for each in pieces[begun:until]]
        begun = until
