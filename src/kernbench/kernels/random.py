"""Device programs of random numbers: MATH writes numbers that the host draws, or computes results from them.

The numbers themselves are those of the host's generator. The simulated time is that of MATH and of the DMA.
"""

from __future__ import annotations

from kernbench.common.dtypes import F32, Array, DType
from kernbench.kernels.shares import blocks, share
from kernbench.kernels.tiling import MOST_NUMBERS
from kernbench.kernels.view import View
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.tl_context import TLContext


def write_numbers(out_ptr: int, *, size: int, dtype: DType, numbers: Array | None, tl: TLContext) -> None:
    """Write ``numbers`` (size,), or zeros in a run without data, to contiguous memory. Programs share the elements."""
    out = View.row_major(out_ptr, (size,), dtype)
    first, count = share(size, tl)
    for at, extent in blocks(count, MOST_NUMBERS, first):
        values = tl.zeros((extent,), dtype) if numbers is None else tl.constant(numbers[at : at + extent], dtype)
        out.tile((at,), (extent,)).store(values, tl)


def scale_passed(tl: TLContext, x: Handle, is_passed: Handle, *, scale: float) -> Handle:
    """Multiply elements by ``scale`` where ``is_passed`` is not 0, and by 0 elsewhere."""
    return x * tl.where(is_passed, tl.full((1,) * len(is_passed.shape), scale, F32), 0.0)


def accumulate_probabilities(tl: TLContext, rows: Handle) -> tuple[Handle]:
    """Return the cumulative probabilities of each row: they are added in order, and divided by the total."""
    sums = tl.cumsum(rows, 1)
    return (sums / tl.max(sums, 1, keepdims=True),)
