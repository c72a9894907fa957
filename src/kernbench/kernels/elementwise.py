"""Elementwise operators on arrays of ``n`` elements, in blocks that fit in scratch.

The elements are split over programs by cube, then PE. With ``split=False``, which replicated tensors need, every
program computes all of them.
"""

from collections.abc import Callable, Sequence

from kernbench.common.dtypes import DTypeLike
from kernbench.kernels.shares import blocks, share
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.tl_context import TLContext


def elementwise(
    op: str,
    x_ptr: int,
    y_ptr: int | None,
    z_ptr: int | None,
    out_ptr: int,
    n: int,
    dtype: DTypeLike,
    block: int = 65536,
    split: bool = True,
    *,
    tl: TLContext,
) -> None:
    """Compute ``out = op(x)``, ``op(x, y)`` or ``op(x, y, z)`` for the elementwise operator named ``op``.

    Pass None for pointers that the operator does not take. A comparison yields i8, every other operator ``dtype``.
    """
    pointers = [ptr for ptr in (x_ptr, y_ptr, z_ptr) if ptr is not None]
    _map_blocks(lambda *xs: tl.elementwise(op, *xs), pointers, out_ptr, n, dtype, block, split, tl)


def add(
    x_ptr: int,
    y_ptr: int,
    out_ptr: int,
    n: int,
    dtype: DTypeLike,
    block: int = 65536,
    split: bool = True,
    *,
    tl: TLContext,
) -> None:
    """Compute ``out = x + y``."""
    _map_blocks(lambda x, y: x + y, (x_ptr, y_ptr), out_ptr, n, dtype, block, split, tl)


def mul(
    x_ptr: int,
    y_ptr: int,
    out_ptr: int,
    n: int,
    dtype: DTypeLike,
    block: int = 65536,
    split: bool = True,
    *,
    tl: TLContext,
) -> None:
    """Compute ``out = x * y``."""
    _map_blocks(lambda x, y: x * y, (x_ptr, y_ptr), out_ptr, n, dtype, block, split, tl)


def silu_mul(
    gate_ptr: int,
    up_ptr: int,
    out_ptr: int,
    n: int,
    dtype: DTypeLike,
    block: int = 65536,
    split: bool = True,
    *,
    tl: TLContext,
) -> None:
    """Compute ``out = silu(gate) * up``, as in a gated MLP, in f32, rounded once."""

    def apply_gate(gate: Handle, up: Handle) -> Handle:
        return tl.cast(tl.silu(tl.cast(gate, "f32")) * tl.cast(up, "f32"), dtype)

    _map_blocks(apply_gate, (gate_ptr, up_ptr), out_ptr, n, dtype, block, split, tl)


def elementwise_composite(
    op: str,
    x_ptr: int,
    y_ptr: int | None,
    z_ptr: int | None,
    out_ptr: int,
    rows: int,
    columns: int,
    dtype: DTypeLike,
    out_dtype: DTypeLike | None = None,
    split: bool = True,
    *,
    tl: TLContext,
) -> None:
    """Compute ``elementwise`` on matrices as one composite that streams operands and result. Programs split the rows.

    The dtype of the result is ``out_dtype``, or ``dtype`` if ``out_dtype`` is not set.
    """
    first, mine = share(rows, tl, split)
    if not mine:
        return
    before, result = first * columns, out_dtype or dtype
    at = before * tl.itemsize(dtype)
    refs = [tl.ref(ptr + at, (mine, columns), dtype) for ptr in (x_ptr, y_ptr, z_ptr) if ptr is not None]
    tl.composite(op, *refs, out_ptr=out_ptr + before * tl.itemsize(result), out_dtype=result)


def _map_blocks(
    function: Callable[..., Handle],
    pointers: Sequence[int],
    out_ptr: int,
    n: int,
    dtype: DTypeLike,
    block: int,
    split: bool,
    tl: TLContext,
) -> None:
    """Apply ``function`` to corresponding blocks of the arrays, block by block."""
    first, mine = share(n, tl, split)
    item = tl.itemsize(dtype)
    for at, count in blocks(mine, block, first):
        result = function(*(tl.load(ptr + at * item, count, dtype) for ptr in pointers))
        tl.store(out_ptr + at * result.dtype.itemsize, result)
