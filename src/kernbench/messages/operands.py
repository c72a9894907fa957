"""Where the array that a command works on lies."""

from __future__ import annotations

from dataclasses import field
from math import prod
from typing import TypeAlias

from kernbench.common.dtypes import DType, row_major
from kernbench.common.values import value

Run: TypeAlias = tuple[int, int]
"""Bytes in one piece: (address, how many)."""
NOWHERE = (1 << 64) - 1
"""The address of a run that lies in no memory: elements that are masked off."""


@value(guarded=False)
class Operand:
    """Where an array lies in memory. Never changed, but not frozen either: that would make it ten times as dear.

    ``space``: hbm, sram, tcm; ``owner``: coordinates (sip, cube) or (sip, cube, pe); ``address``: physical, of the
    first element; ``nbytes``: what the elements hold; ``strides`` in bytes, row-major without. ``segments``: the
    (address, nbytes) ranges, in order, that the array's bytes lie in when they are not one range: a byte at offset x
    from the first element is byte x of all segments put together. ``valid``: how many elements per axis are in memory;
    outside them, and in segments at ``NOWHERE``, a read gives ``other`` and a write does nothing. ``by_address``: the
    kernel named the address itself, so no allocator keeps its bytes apart from those of others; the array is the same,
    and files of the op-log do not say it.
    """

    space: str
    owner: tuple[int, ...]
    address: int
    nbytes: int
    shape: tuple[int, ...]
    dtype: DType
    strides: tuple[int, ...] | None = None
    segments: tuple[Run, ...] = ()
    valid: tuple[int, ...] | None = None
    other: float = 0
    by_address: bool = field(default=False, compare=False)

    @property
    def byte_strides(self) -> tuple[int, ...]:
        """``strides``, or those of a row-major array."""
        return row_major(self.shape, self.dtype.itemsize) if self.strides is None else self.strides


def in_tcm(owner: tuple[int, ...], address: int, shape: tuple[int, ...], dtype: DType) -> Operand:
    """A row-major array in the TCM of the PE ``owner``."""
    return Operand("tcm", owner, address, prod(shape) * dtype.itemsize, shape, dtype)
