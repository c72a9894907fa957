"""Copies by address arithmetic: a kernel sees a sharded tensor as bytes from its virtual address on."""

from collections.abc import Iterator
from math import prod
from typing import Any

from kernbench.kernels.shares import blocks, own_lines, share


def offset_copy(src_ptr: int, dst_ptr: int, n: int, stride: int, dtype: Any, block: int = 65536, *, tl: Any) -> None:
    """Copy ``n`` elements in program p from ``src_ptr + p * stride`` bytes to ``dst_ptr + p * stride``.

    Programs count by cube, then PE. At most ``block`` elements move at a time.
    """
    program = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    base, item = program * stride, tl.itemsize(dtype)
    for first, count in blocks(n, block):
        at = base + first * item
        tl.store(dst_ptr + at, tl.load(src_ptr + at, count, dtype))


def strided_copy(
    src_ptr: int,
    dst_ptr: int,
    shape: tuple[int, ...],
    src_strides: tuple[int, ...],
    dst_strides: tuple[int, ...],
    dtype: Any,
    src_offset: int = 0,
    dst_offset: int = 0,
    block: int = 65536,
    *,
    tl: Any,
) -> None:
    """Copy an array of ``shape`` from one place to another; strides and offsets in bytes.

    The first axis is split over programs; at most ``block`` elements move at a time, and at least one of that axis.
    """
    first, mine = share(shape[0], tl)
    for at, count in blocks(mine, max(1, block // prod(shape[1:])), first):
        part = (count, *shape[1:])
        values = tl.load(src_ptr + src_offset + at * src_strides[0], part, dtype, strides=src_strides)
        tl.store(dst_ptr + dst_offset + at * dst_strides[0], values, strides=dst_strides)


def shards_to_rows(src_ptr: int, dst_ptr: int, shards: tuple[int, ...], row_bytes: int, dtype: Any, *, tl: Any) -> None:
    """Copy each program's own shards of a matrix to their places in one that is row-major.

    ``shards``: six numbers for each, (cube, PE, offset_bytes, rows, columns, offset_bytes in the result), whose rows
    have ``row_bytes``.
    """
    here, item = (tl.program_id(1), tl.program_id(0)), tl.itemsize(dtype)
    for at in range(0, len(shards), 6):
        cube, pe, src, rows, columns, dst = shards[at : at + 6]
        if (cube, pe) == here:
            values = tl.load(src_ptr + src, (rows, columns), dtype)
            tl.store(dst_ptr + dst, values, strides=(row_bytes, item))


def copy_windows(
    src_ptr: int, dst_ptr: int, lines: tuple[int, ...], axes: int, dtype: Any, block: int = 65536, *, tl: Any
) -> None:
    """Copy boxes of elements from one tensor to another, at most ``block`` elements at a time.

    ``lines``: (cube, pe, src offset, dst offset, then of ``axes`` axes the extents, the strides in the source, the
    strides in the target), offsets and strides in bytes.
    """
    for src, dst, *box in own_lines(lines, 4 + 3 * axes, tl):
        shape, src_strides, dst_strides = (tuple(box[at : at + axes]) for at in range(0, 3 * axes, axes))
        for corner, part in _boxes(shape, block):
            values = tl.load(src_ptr + src + _offset(corner, src_strides), part, dtype, strides=src_strides)
            tl.store(dst_ptr + dst + _offset(corner, dst_strides), values, strides=dst_strides)


def _boxes(shape: tuple[int, ...], block: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield corners and extents of boxes of at most ``block`` elements that make up an array of ``shape``."""
    inner = prod(shape[1:])
    if inner <= block:
        for at, count in blocks(shape[0], max(1, block // inner)):
            yield (at, *(0 for _ in shape[1:])), (count, *shape[1:])
        return
    for at in range(shape[0]):
        for corner, part in _boxes(shape[1:], block):
            yield (at, *corner), (1, *part)


def _offset(corner: tuple[int, ...], strides: tuple[int, ...]) -> int:
    return sum(at * stride for at, stride in zip(corner, strides, strict=True))
