"""Kernels for tensors of any layout: a work table lists what each program does.

A work table is a flat tuple of integers with a fixed number per line. Each line begins with its cube and PE.
"""

from collections.abc import Iterator
from math import prod

from kernbench.common.dtypes import DTypeLike
from kernbench.kernels.shares import blocks, own_lines
from kernbench.triton_emu.tl_context import TLContext


def copy_windows(
    src_ptr: int,
    dst_ptr: int,
    lines: tuple[int, ...],
    axes: int,
    dtype: DTypeLike,
    block: int = 65536,
    *,
    tl: TLContext,
) -> None:
    """Copy boxes of elements from one tensor to another, at most ``block`` elements at a time.

    ``lines``: (cube, pe, source offset, target offset), then three groups of ``axes`` numbers: extents, source strides,
    target strides. Offsets and strides are in bytes.
    """
    for src, dst, *box in own_lines(lines, 4 + 3 * axes, tl):
        shape, src_strides, dst_strides = (tuple(box[at : at + axes]) for at in range(0, 3 * axes, axes))
        for corner, part in boxes(shape, block):
            values = tl.load(src_ptr + src + _offset(corner, src_strides), part, dtype, strides=src_strides)
            tl.store(dst_ptr + dst + _offset(corner, dst_strides), values, strides=dst_strides)


def boxes(shape: tuple[int, ...], block: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield the corner and extents of boxes of at most ``block`` elements that cover an array of ``shape``."""
    inner = prod(shape[1:])
    if inner <= block:
        for at, count in blocks(shape[0], max(1, block // inner)):
            yield (at, *(0 for _ in shape[1:])), (count, *shape[1:])
        return
    for at in range(shape[0]):
        for corner, part in boxes(shape[1:], block):
            yield (at, *corner), (1, *part)


def _offset(corner: tuple[int, ...], strides: tuple[int, ...]) -> int:
    return sum(at * stride for at, stride in zip(corner, strides, strict=True))


def elementwise_shards(
    op: str,
    x_ptr: int,
    y_ptr: int | None,
    out_ptr: int,
    lines: tuple[int, ...],
    dtype: DTypeLike,
    number: float | None = None,
    number_first: bool = False,
    block: int = 65536,
    *,
    tl: TLContext,
) -> None:
    """Apply the operator ``op`` to x, to x and y, or to x and a number (``number_first``: to the number and x).

    ``lines``: (cube, pe, offset in bytes, elements) of every shard and copy. All tensors have the same placement.
    """
    pointers = [ptr for ptr in (x_ptr, y_ptr) if ptr is not None]
    before, behind = ([number], []) if number_first else ([], [number])
    item = tl.itemsize(dtype)
    for offset, count in own_lines(lines, 4, tl):
        for first, part in blocks(count, block):
            at = offset + first * item
            arrays = [tl.load(ptr + at, part, dtype) for ptr in pointers]
            operands = arrays if number is None else [*before, *arrays, *behind]
            tl.store(out_ptr + at, tl.elementwise(op, *operands))
