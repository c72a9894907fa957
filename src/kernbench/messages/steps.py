"""Steps of a schedule. A step stands for one call of ``tl`` in a kernel.

A step works on **buffers** and **slots**. A buffer is a number that the schedule assigns to an array in TCM. A slot
stores the message last received from a direction, and is named by the direction. A write to a buffer makes a new array,
so steps that still read the old array are not disturbed. An array stays allocated until its last step is done.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias, get_args

ChunkSource: TypeAlias = int | str
"""A buffer, by its number, or the slot of the last message from a direction, by the direction's name"""
ReduceName: TypeAlias = Literal["sum", "max", "min", "avg", "product", "band", "bor", "bxor"]
REDUCE_OPS: tuple[ReduceName, ...] = get_args(ReduceName)
BIT_OPS: tuple[ReduceName, ...] = ("band", "bor", "bxor")
"""The reductions of integers alone"""
Does: TypeAlias = Literal["load", "store", "send", "receive", "await", "reduce", "copy", "scale", "zero"]


class Chunk(NamedTuple):
    """``size`` elements from element ``offset`` on, in one tensor of a rank."""

    offset: int
    size: int
    tensor: int = 0


class Step(NamedTuple):
    """One step; ``does`` decides which fields are used. Make steps with the functions below.

    - ``to``: the buffer that is written, or the direction.
    - ``source``, ``other``: operands.
    - ``number``: the count of elements of a message, of zeros, or of contributions.
    - ``op``: the operator of a reduction.
    """

    does: Does
    to: ChunkSource = 0
    source: ChunkSource = 0
    other: ChunkSource = 0
    chunk: Chunk | None = None
    number: int = 0
    op: ReduceName = "sum"


def load(buffer: int, chunk: Chunk) -> Step:
    """Read ``chunk`` from memory into ``buffer``."""
    return Step("load", buffer, chunk=chunk)


def store(source: ChunkSource, chunk: Chunk) -> Step:
    """Write ``source`` to ``chunk`` in memory."""
    return Step("store", source=source, chunk=chunk)


def send(direction: str, source: ChunkSource) -> Step:
    """Send ``source``; the rank continues once the receiver has a free slot."""
    return Step("send", direction, source)


def receive(direction: str, count: int) -> Step:
    """Receive the next message of ``direction``, of ``count`` elements: only steps that use the message wait for it."""
    return Step("receive", direction, number=count)


def await_message(direction: str, count: int) -> Step:
    """Receive like ``receive``, but issue later steps only after the message has arrived."""
    return Step("await", direction, number=count)


def reduce(buffer: int, source: ChunkSource, other: ChunkSource, op: ReduceName) -> Step:
    """Combine ``source`` and ``other`` in ``buffer``: for ``avg`` their sum."""
    return Step("reduce", buffer, source, other, op=op)


def copy(buffer: int, source: ChunkSource) -> Step:
    """Copy ``source`` to ``buffer``, for instance to free the slot of a message that later steps need."""
    return Step("copy", buffer, source)


def scale(buffer: int, source: ChunkSource, contributions: int) -> Step:
    """Divide ``source`` by the number of ``contributions``: the mean, rounded once; integers round towards zero."""
    return Step("scale", buffer, source, number=contributions)


def zero(buffer: int, count: int) -> Step:
    """Write ``count`` zeros to ``buffer``."""
    return Step("zero", buffer, number=count)
