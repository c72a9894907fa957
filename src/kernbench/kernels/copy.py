"""Copies by address arithmetic: what a kernel sees of a sharded tensor."""

from typing import Any


def offset_copy(src_ptr: int, dst_ptr: int, n: int, stride: int, dtype: Any, block: int = 65536, *, tl: Any) -> None:
    """Program p copies ``n`` elements from ``src_ptr + p * stride`` bytes to ``dst_ptr + p * stride``.

    Programs count by cube, then PE. At most ``block`` elements move at a time.
    """
    program = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    base, item = program * stride, tl.itemsize(dtype)
    for first in range(0, n, block):
        at = base + first * item
        tl.store(dst_ptr + at, tl.load(src_ptr + at, min(block, n - first), dtype))
