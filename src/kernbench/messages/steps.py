"""Steps of a schedule. A step stands for one call of ``tl`` in a kernel.

A step works on **buffers**, which are numbers that the schedule gives to arrays in TCM, and on **slots**: the name of a
direction stands for the message that was last received from there. To write a buffer makes a new array, so that what
still reads the old one is not disturbed; both live until the last step that uses them is done.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias, get_args

ChunkSource: TypeAlias = int | str
"""A buffer, by its number, or the slot of the last message of a direction, by its name"""
ReduceName: TypeAlias = Literal["sum", "max", "min", "avg"]
REDUCE_OPS: tuple[ReduceName, ...] = get_args(ReduceName)
Does: TypeAlias = Literal["load", "store", "send", "receive", "await", "reduce", "copy", "scale", "zero"]


class Chunk(NamedTuple):
    """``size`` elements behind the first ``offset`` of a rank's own data, in one of its tensors."""

    offset: int
    size: int
    tensor: int = 0


class Step(NamedTuple):
    """One step; which fields it has follows from what it ``does``. To be made by the functions below.

    ``to``: the buffer that is written, or the direction; ``what``, ``other``: operands; ``number``: of elements of a
    message, of zeros, or of contributions; ``op``: of a reduction.
    """

    does: Does
    to: ChunkSource = 0
    what: ChunkSource = 0
    other: ChunkSource = 0
    chunk: Chunk | None = None
    number: int = 0
    op: ReduceName = "sum"


def load(buffer: int, chunk: Chunk) -> Step:
    """Read ``chunk`` from memory into ``buffer``."""
    return Step("load", buffer, chunk=chunk)


def store(what: ChunkSource, chunk: Chunk) -> Step:
    """Write ``what`` to ``chunk`` in memory."""
    return Step("store", what=what, chunk=chunk)


def send(direction: str, what: ChunkSource) -> Step:
    """Send ``what``; the rank goes on once the receiver has a slot for it."""
    return Step("send", direction, what)


def receive(direction: str, count: int) -> Step:
    """Receive the next message of ``direction``, of ``count`` elements: only steps that use it wait for it."""
    return Step("receive", direction, number=count)


def await_message(direction: str, count: int) -> Step:
    """Receive as ``receive``, but the rank waits for the message: later steps are not issued before it has come."""
    return Step("await", direction, number=count)


def reduce(buffer: int, what: ChunkSource, other: ChunkSource, op: ReduceName) -> Step:
    """``what`` and ``other`` as one, in ``buffer``: their sum (also for ``avg``), the larger, or the smaller."""
    return Step("reduce", buffer, what, other, op=op)


def copy(buffer: int, what: ChunkSource) -> Step:
    """``what`` again, in ``buffer``: what frees the slot of a message that is still needed."""
    return Step("copy", buffer, what)


def scale(buffer: int, what: ChunkSource, contributions: int) -> Step:
    """``what`` divided by the number of ``contributions``: the mean, rounded once, of integers towards zero."""
    return Step("scale", buffer, what, number=contributions)


def zero(buffer: int, count: int) -> Step:
    """``count`` zeros in ``buffer``."""
    return Step("zero", buffer, number=count)
