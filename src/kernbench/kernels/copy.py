"""Copies by address arithmetic: a kernel sees a sharded tensor as contiguous bytes at its virtual address."""

from math import prod

from kernbench.common.dtypes import DTypeLike
from kernbench.kernels.shares import blocks, share
from kernbench.triton_emu.tl_context import TLContext


def offset_copy(
    src_ptr: int, dst_ptr: int, n: int, stride: int, dtype: DTypeLike, block: int = 65536, *, tl: TLContext
) -> None:
    """In program p, copy ``n`` elements from ``src_ptr + p * stride`` to ``dst_ptr + p * stride``.

    ``stride`` is in bytes. Programs are numbered by cube, then PE. At most ``block`` elements move at a time.
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
    dtype: DTypeLike,
    src_offset: int = 0,
    dst_offset: int = 0,
    block: int = 65536,
    *,
    tl: TLContext,
) -> None:
    """Copy an array of ``shape`` between two strided layouts; strides and offsets are in bytes.

    The first axis is split over programs. At most ``block`` elements move at a time; if one index of that
    axis has more, all its elements move together.
    """
    first, mine = share(shape[0], tl)
    for at, count in blocks(mine, max(1, block // prod(shape[1:])), first):
        part = (count, *shape[1:])
        values = tl.load(src_ptr + src_offset + at * src_strides[0], part, dtype, strides=src_strides)
        tl.store(dst_ptr + dst_offset + at * dst_strides[0], values, strides=dst_strides)


def shards_to_rows(
    src_ptr: int, dst_ptr: int, shards: tuple[int, ...], row_bytes: int, dtype: DTypeLike, *, tl: TLContext
) -> None:
    """In each program, copy its own shards of a matrix to their windows in a row-major matrix.

    ``shards`` has six numbers for each shard: (cube, PE, source offset, rows, columns, target offset), offsets in
    bytes. ``row_bytes`` is the row stride of the target.
    """
    here, item = (tl.program_id(1), tl.program_id(0)), tl.itemsize(dtype)
    for at in range(0, len(shards), 6):
        cube, pe, src, rows, columns, dst = shards[at : at + 6]
        if (cube, pe) == here:
            values = tl.load(src_ptr + src, (rows, columns), dtype)
            tl.store(dst_ptr + dst, values, strides=(row_bytes, item))
