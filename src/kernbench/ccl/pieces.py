"""A rank's data in pieces of one message each, which schedules load, send, reduce and store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from kernbench.common.dtypes import dtype as element_type
from kernbench.common.errors import InputError, UnknownNameError
from kernbench.kernels.shares import blocks
from kernbench.messages.steps import (
    BIT_OPS,
    REDUCE_OPS,
    Chunk,
    ChunkSource,
    ReduceName,
    Step,
    load,
    reduce,
    scale,
    store,
)

SLOT_BYTES = 4096
"""The default bytes of a slot."""
SCRATCH_BYTES = 4 << 20
"""The default bytes of TCM for handles."""


class Messages(NamedTuple):
    """Messages of up to ``chunk`` elements of ``item`` bytes, reduced by ``op``, and the space for them.

    A queue has ``n_slots`` slots, and TCM has ``scratch_bytes`` for arrays. ``load_bytes`` is the number of bytes in
    flight that sustain the memory's bandwidth. ``hop_bytes`` is the number of bytes in flight on a hop and back, for
    hops within a cube, between cubes and between SIPs. ``far``: the PEs load and store over links that they
    share, so they load pieces in the order of use, and store each when it is complete, beside the messages.
    """

    op: ReduceName
    chunk: int
    item: int
    n_slots: int = 2
    load_bytes: int = SLOT_BYTES
    hop_bytes: tuple[int, ...] = (SLOT_BYTES,) * 3
    scratch_bytes: int = SCRATCH_BYTES
    far: bool = False

    def pieces(self, chunk: Chunk) -> list[Chunk]:
        """Return ``chunk`` as pieces of one message each."""
        return [Chunk(first, count, chunk.tensor) for first, count in blocks(chunk.size, self.chunk, chunk.offset)]

    def segments(self, n_elem: int, copies: int = 1) -> Iterator[Chunk]:
        """Yield parts of a tensor; scratch can hold ``copies`` arrays of a part's size and intermediate arrays."""
        for first, count in blocks(n_elem, max(self.chunk, self.scratch_bytes // copies // (4 * self.item))):
            yield Chunk(first, count)

    def in_flight(self, nbytes: int) -> int:
        """Return how many messages keep ``nbytes`` in flight while another one is being added."""
        return 1 - -nbytes // (self.chunk * self.item)

    def load_ahead(
        self, pieces: Sequence[Chunk], order: Iterable[int] | None = None
    ) -> Iterator[tuple[int, list[Step]]]:
        """Yield (index, loads) for each piece in ``order``: the loads to issue before the piece is used.

        The loads run ahead, so that ``load_bytes`` stay in flight.
        """
        buffers = list(range(len(pieces)) if order is None else order)
        ahead, begun = self.in_flight(self.load_bytes), 0
        for at, buffer in enumerate(buffers):
            until = min(at + 1 + ahead, len(buffers))
            yield buffer, [load(i, pieces[i]) for i in buffers[begun:until]]
            begun = until

    def add(self, buffer: int, source: ChunkSource) -> Step:
        """Return the step that reduces ``source`` into ``buffer``."""
        return reduce(buffer, buffer, source, self.op)

    def store_all(self, steps: Sequence[Step], stores: Iterable[tuple[int, Chunk]]) -> list[Step]:
        """Return ``steps`` with a store of each (buffer, chunk): at the end, or after the last write of the buffer."""
        later = dict(stores)
        if not self.far:
            return [*steps, *(store(buffer, chunk) for buffer, chunk in later.items())]
        backwards: list[Step] = []
        for step in reversed(steps):
            if isinstance(step.to, int) and step.to in later and step.does not in ("send", "store"):
                backwards.append(store(step.to, later.pop(step.to)))
            backwards.append(step)
        return backwards[::-1]

    def finish(self, buffer: int, contributions: int) -> list[Step]:
        """Return the steps that end a reduction: for ``avg`` a division by the number of contributions, else none."""
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
    far: bool = False,
    **_others: object,
) -> Messages:
    """Return the messages of a configuration; ``chunk_size`` is in bytes and defaults to ``slot_size``.

    Raises UnknownNameError for an unknown dtype or reduction, and InputError for a chunk that does not fit a slot.
    """
    item = element_type(dtype)
    if reduce_op not in REDUCE_OPS:
        raise UnknownNameError("reduce_op", reduce_op, REDUCE_OPS)
    if reduce_op in BIT_OPS and item.is_float:
        raise InputError(f"reduce_op {reduce_op!r} of {item}: {', '.join(BIT_OPS)} combine the bits of integers")
    nbytes = slot_size if chunk_size is None else chunk_size
    if not item.itemsize <= nbytes <= slot_size:
        raise InputError(
            f"chunk_size {nbytes}: a message has at least one element ({item.itemsize} bytes of {item}) and fits a "
            f"slot (slot_size {slot_size})"
        )
    chunk = nbytes // item.itemsize
    return Messages(reduce_op, chunk, item.itemsize, n_slots, load_bytes, hop_bytes, scratch_bytes, far)


def split_evenly(chunk: Chunk, parts: int) -> list[Chunk]:
    """Split ``chunk`` into ``parts`` parts; if the division has a remainder r, the first r have one element more."""
    size, more = divmod(chunk.size, parts)
    return [Chunk(chunk.offset + i * size + min(i, more), size + (i < more), chunk.tensor) for i in range(parts)]


def number_pieces(parts: Iterable[Sequence[Chunk]]) -> list[range]:
    """Return the range of piece numbers of each part; pieces are numbered consecutively over all parts."""
    ranges: list[range] = []
    for part in parts:
        first = ranges[-1].stop if ranges else 0
        ranges.append(range(first, first + len(part)))
    return ranges
