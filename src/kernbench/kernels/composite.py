"""Matrix products as composite commands of the tile scheduler, with an epilogue on each output tile."""

from collections.abc import Sequence
from typing import NamedTuple

from kernbench.common.dtypes import DTypeLike
from kernbench.kernels.shares import blocks
from kernbench.triton_emu.composites import EpilogueCall
from kernbench.triton_emu.handles import Handle, Ref
from kernbench.triton_emu.tl_context import TLContext

BLOCKED = "blocked"
STAGED = {"ref_ref": (False, False), "load_ref": (True, False), "load_load": (True, True), BLOCKED: (False, False)}
"""Whether ``tl.load`` stages A, and B, by variant. Other operands are streamed, or read by panels (``blocked``)."""
VARIANTS = tuple(STAGED)


class Matmul(NamedTuple):
    """A product (m, k) by (k, n) as composites: its dtypes, its staged operands and its epilogue.

    A staged operand occupies at most ``stage_bytes``: A in blocks of rows, B in blocks of columns. ``epilogue`` names
    the steps in order, joined by commas or as a sequence. ``bias_ptr`` (n,) and ``add_ptr`` (m, n) are addresses in
    memory.
    """

    m: int
    k: int
    n: int
    dtype: DTypeLike
    variant: str = BLOCKED
    epilogue: str | Sequence[str] = ()
    bias_ptr: int | None = None
    add_ptr: int | None = None
    scale: float = 1.0
    out_dtype: DTypeLike | None = None
    stage_bytes: int = 4 << 20


def matmul(a_ptr: int, b_ptr: int, c_ptr: int, product: Matmul, tl: TLContext) -> None:
    """Compute C = epilogue(A B), all row-major: one composite, or one for each combination of staged blocks."""
    m, k, n, dtype, variant = product[:5]
    stage_a, stage_b = _parse_variant(variant)
    item = tl.itemsize(dtype)
    fit = max(1, product.stage_bytes // (k * item))
    for j, columns in blocks(n, fit if stage_b else n):
        b = _make_operand(stage_b, b_ptr + j * item, (k, columns), dtype, n * item, tl)
        for i, rows in blocks(m, fit if stage_a else m):
            a = _make_operand(stage_a, a_ptr + i * k * item, (rows, k), dtype, k * item, tl)
            out = product_dtype(a, product.out_dtype)
            wide = tl.itemsize(out)
            tl.composite(
                "gemm",
                a,
                b,
                out_ptr=c_ptr + (i * n + j) * wide,
                epilogue=_make_steps(product, (i, j), (rows, columns), tl),
                out_dtype=out,
                out_strides=(n * wide, wide),
                block="auto" if variant == BLOCKED else None,
            )


def product_dtype(factor: Handle | Ref, out_dtype: DTypeLike | None) -> DTypeLike:
    """Return the dtype of a product: ``out_dtype`` if set, else i32 for integer factors and ``factor``'s for floats."""
    return out_dtype or (factor.dtype if factor.dtype.is_float else "i32")


def _parse_variant(variant: str) -> tuple[bool, bool]:
    if variant not in VARIANTS:
        raise ValueError(f"variant {variant!r} is none of {', '.join(VARIANTS)}")
    return STAGED[variant]


def _make_operand(
    staged: bool, ptr: int, shape: tuple[int, int], dtype: DTypeLike, row_bytes: int, tl: TLContext
) -> Handle | Ref:
    make = tl.load if staged else tl.ref
    return make(ptr, shape, dtype, strides=(row_bytes, tl.itemsize(dtype)))


def _make_steps(product: Matmul, at: tuple[int, int], shape: tuple[int, int], tl: TLContext) -> list[EpilogueCall]:
    """Return the steps of the epilogue for the block of the result at ``at``."""
    names = product.epilogue
    names = [name.strip() for name in names.split(",") if name.strip()] if isinstance(names, str) else names
    return [_make_step(name, product, at, shape, tl) for name in names]


def _make_step(name: str, product: Matmul, at: tuple[int, int], shape: tuple[int, int], tl: TLContext) -> EpilogueCall:
    """Return the epilogue step ``name`` with its operand, if it has one."""
    (i, j), item, n = at, tl.itemsize(product.dtype), product.n
    if name == "bias":
        return name, tl.ref(_require_ptr(name, product.bias_ptr) + j * item, shape[1], product.dtype)
    if name == "add":
        ptr = _require_ptr(name, product.add_ptr) + (i * n + j) * item
        return name, tl.ref(ptr, shape, product.dtype, strides=(n * item, item))
    return (name, product.scale) if name == "scale" else (name,)


def _require_ptr(name: str, ptr: int | None) -> int:
    if ptr is None:
        raise ValueError(f"the epilogue has {name!r}, but {name}_ptr is None")
    return ptr
