"""Which bytes of memory commands touch, byte by byte, and what lies in a slot."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernbench.common.dtypes import row_major
from kernbench.core.log import By
from kernbench.messages.commands import (
    COMPOSITES,
    LOAD,
    MEMORY_WRITERS,
    NOWHERE,
    RECEIVE,
    Command,
    MemoryRef,
)


def _refs(command: Any) -> tuple[list[Any], list[Any]]:
    """What a command reads in memory, and what it writes: (address, shape, itemsize, strides, physical)."""
    if command.op in COMPOSITES:
        given = [*command.srcs, *(step.operand for step in command.params.epilogue)]
        refs = [each for each in given if isinstance(each, MemoryRef)]
        return [_of_ref(each) for each in refs], [_of_ref(command.dst)]
    if command.op is not LOAD and command.op not in MEMORY_WRITERS:
        return [], []
    ref = command.srcs[0] if command.op is LOAD else command.dst
    shape, strides = ref.shape if ref.valid is None else ref.valid, ref.strides
    if strides is None and ref.valid is not None:
        strides = row_major(ref.shape, ref.dtype.itemsize)
    found = [(ref.va, shape, ref.dtype.itemsize, strides, ref.physical)]
    if ref.runs:
        found = [(va, (nbytes,), 1, None, False) for va, nbytes in ref.runs if va != NOWHERE]
    return (found, []) if command.op is LOAD else ([], found)


def _of_ref(ref: MemoryRef) -> Any:
    return ref.va, ref.shape, ref.dtype.itemsize, ref.strides, False


def _reach(at: int, shape: tuple[int, ...], itemsize: int, strides: tuple[int, ...] | None, _: bool) -> tuple[int, int]:
    """The range that encloses the bytes."""
    steps = [(n - 1) * step for n, step in zip(shape, strides or row_major(shape, itemsize), strict=True)]
    return at + sum(step for step in steps if step < 0), at + sum(step for step in steps if step > 0) + itemsize


def _bytes(at: int, shape: tuple[int, ...], itemsize: int, strides: tuple[int, ...] | None, _: bool) -> Any:
    found = np.arange(itemsize, dtype=np.int64) + at
    for n, step in zip(shape, strides or row_major(shape, itemsize), strict=True):
        found = np.unique((found[:, None] + np.arange(n, dtype=np.int64) * step).reshape(-1))
    return found


def conflict(earlier: Any, later: Any) -> By | None:
    """Whether two commands touch bytes of which one writes some: surely, by the ranges that enclose them, or not."""
    (reads, writes), (others, overwrites) = _refs(earlier), _refs(later)
    how = None
    for some, many in ((writes, others), (writes, overwrites), (reads, overwrites)):
        for x in some:
            for y in many:
                found = None if x[4] != y[4] or 0 in (*x[1], *y[1]) else _meet(x, y)
                if found is By.MEMORY:
                    return found
                how = found or how
    return how


def _meet(x: Any, y: Any) -> By | None:
    (low, high), (start, end) = _reach(*x), _reach(*y)
    if low >= end or start >= high:
        return None
    if x[3] is None and y[3] is None:
        return By.MEMORY
    return By.MEMORY if np.intersect1d(_bytes(*x), _bytes(*y)).size else By.MEMORY_RANGE


def uses(command: Any, address: int) -> bool:
    """Whether a command works on what lies at an address."""
    if not isinstance(command, Command) or command.op is RECEIVE:
        return False
    if command.op is LOAD and command.ref.physical and command.ref.va == address:
        return True
    return f"address={address}," in repr(command)
