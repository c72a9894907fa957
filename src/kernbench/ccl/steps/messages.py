"""What a collective's messages are made of (element type, reduction, how many elements travel at once), and a tensor in
pieces of one message each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from kernbench.common.dtypes import dtype as element_type
from kernbench.common.errors import InputError, UnknownNameError
from kernbench.kernels.shares import blocks

ReduceName: TypeAlias = Literal["sum", "max", "min", "avg"]
REDUCE_OPS: tuple[ReduceName, ...] = get_args(ReduceName)
MESSAGE_KEYS = ("reduce_op", "chunk_size")
"""What ``message_args`` takes of an algorithm's configuration, for its ``config_keys``."""
SLOT_BYTES = 4096
SEGMENT_BYTES = 2 << 20
"""How much of a tensor a kernel holds in scratch at a time."""


def on_the_way(nbytes: int, each: int) -> int:
    """How many messages of ``each`` bytes it takes to have ``nbytes`` on the way, while one more is being added."""
    return 1 - -nbytes // each


class Messages(NamedTuple):
    """Messages of up to ``chunk`` elements of ``dtype``, reduced by ``op``."""

    dtype: str
    op: str
    chunk: int

    @property
    def nbytes(self) -> int:
        """Bytes of a full message."""
        return self.chunk * element_type(self.dtype).itemsize

    def combine(self, a: Any, b: Any, tl: Any) -> Any:
        """Two contributions as one."""
        if self.op == "max":
            return tl.maximum(a, b)
        return tl.minimum(a, b) if self.op == "min" else a + b

    def finish(self, x: Any, contributions: int, tl: Any) -> Any:
        """The result of reducing so many contributions to ``x``: for ``avg`` their mean, rounded once.

        Of integers towards zero.
        """
        if self.op != "avg" or contributions == 1:
            return x
        # The number of contributions may be more than a narrow type can say.
        wide = tl.cast(x, "f32" if x.dtype.is_float else "i32")
        return tl.cast(wide / contributions, x.dtype)

    def segment(self, share: int = 1) -> int:
        """Elements that fit in a ``share``-th of what is held at a time."""
        return max(self.chunk, SEGMENT_BYTES // (share * element_type(self.dtype).itemsize))


def message_args(
    *,
    dtype: object = "f32",
    reduce_op: str = "sum",
    slot_size: int = SLOT_BYTES,
    chunk_size: int | None = None,
    **_: object,
) -> tuple[str, str, int]:
    """The fields of ``Messages`` for a configuration; ``chunk_size``, in bytes, is ``slot_size`` when not given.

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
    return item.name, reduce_op, nbytes // item.itemsize


_LOADS_AHEAD = 16


def split_evenly(n: int, parts: int) -> list[tuple[int, int]]:
    """First and number of elements of each of ``parts`` parts of ``n``: the first ``n % parts`` have one more."""
    size, more = divmod(n, parts)
    return [(i * size + min(i, more), size + (i < more)) for i in range(parts)]


def places(ptr: int, n: int, messages: Messages, tl: Any) -> list[tuple[int, int]]:
    """Address and number of elements of each piece of ``n`` elements at ``ptr``."""
    item = int(tl.itemsize(messages.dtype))
    return [(ptr + first * item, count) for first, count in blocks(n, messages.chunk)]


def loaded(where: Sequence[tuple[int, int]], messages: Messages, tl: Any) -> Iterator[Any]:
    """Handles of the pieces at ``where``, in order; some loads are under way ahead of what is taken."""
    under_way: deque[Any] = deque()
    for ptr, count in where:
        under_way.append(tl.load(ptr, count, messages.dtype))
        if len(under_way) > _LOADS_AHEAD:
            yield under_way.popleft()
    while under_way:
        yield under_way.popleft()


def store_all(where: Iterable[tuple[int, int]], values: Iterable[Any], tl: Any) -> None:
    """Write each value to its place."""
    for (ptr, _), value in zip(where, values, strict=True):
        tl.store(ptr, value)


class Parts:
    """``n`` elements at ``ptr``, held in scratch: ``values`` has their handles, ``parts`` which make up a part.

    A message never spans two parts.
    """

    __slots__ = ("parts", "places", "values")

    def __init__(self, ptr: int, n: int, parts: int, messages: Messages, tl: Any) -> None:
        item = int(tl.itemsize(messages.dtype))
        self.places: list[tuple[int, int]] = []
        self.parts: list[list[int]] = []
        self.values: list[Any] = []
        for first, count in split_evenly(n, parts):
            found = places(ptr + first * item, count, messages, tl)
            self.parts.append(list(range(len(self.places), len(self.places) + len(found))))
            self.places += found

    def load(self, messages: Messages, order: Iterable[int], tl: Any) -> None:
        """Read everything, the parts in the ``order`` in which they are needed, and wait until it is there.

        Messages come over the link that loads come over: with both at once the ring would go at the pace of the loads.
        """
        self.values = [None] * len(self.places)
        for part in order:
            for i in self.parts[part]:
                ptr, count = self.places[i]
                self.values[i] = tl.load(ptr, count, messages.dtype)
        self.settle(tl)

    def settle(self, tl: Any) -> None:
        """Wait until every value is there."""
        for x in self.values:
            tl.wait(x)

    def store(self, tl: Any) -> None:
        """Write everything back, once all of it is there: stores would share the link with messages."""
        self.settle(tl)
        store_all(self.places, self.values, tl)
