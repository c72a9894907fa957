"""Matrix products of PyTorch on the PEs of a SIP. The tile scheduler reads operands in any layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import groupby, zip_longest
from operator import add
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from kernbench.common.errors import InputError
from kernbench.common.values import value
from kernbench.frontends.placed import pes_for, whole_grid
from kernbench.frontends.torch.block_products import (
    PeRates,
    Product,
    SharedProduct,
    choose_cubes,
    choose_grid,
)
from kernbench.frontends.torch.launches import Program, dtype_of, launch, launch_on, view_of
from kernbench.frontends.torch.modules import program_place
from kernbench.frontends.torch.storage import current
from kernbench.frontends.torch.tensor import AhbmTensor, known_elements, new, sip_of
from kernbench.kernels.shares import blocks, part, share
from kernbench.kernels.view import View

aten = torch.ops.aten
_DEPTH = 64
_PANEL_BYTES = 128 << 10
"""Bytes of B that a PE reads at a time when A has few rows."""
_AHEAD = 2
"""Number of panels of B that a PE prefetches while the PEs of its cube all-gather A."""

_COMPLETING = 6
"""Maximum number of f32 result blocks that are in scratch at once, while sums are accumulated and completed."""
_LAUNCH_BYTES = 2 << 20
"""Number of bytes that the cubes can exchange in the time of one additional launch."""


@value
class Panel:
    """A panel of B: ``columns`` columns from ``column`` on, in ``parts`` groups of ``depth`` rows.

    The first group begins at ``row``. Each further group begins ``apart`` rows after the start of the previous group.
    """

    row: int
    column: int
    depth: int
    columns: int
    parts: int = 1
    apart: int = 0


@value
class Completion:
    """Epilogue of a sum: ``scale``, an addend, an activation, and the dtype and layout of the result."""

    out: View
    addend: View | None = None
    scale: float = 1.0
    activation: str | None = None

    def store(self, total: Any, out: int, addend: Sequence[int], column: int, tl: Any) -> None:
        """Apply the epilogue to ``total``, (m, columns) sums from ``column`` on, and store the result."""
        corner, extents = (0, 0, column), total.shape
        if self.scale != 1:
            total = total * self.scale
        if self.addend is not None:
            total = total + tl.cast(self.addend.on(addend[0]).tile(corner, extents).load(tl), "f32")
        if self.activation is not None:
            total = tl.elementwise(self.activation, total)
        self.out.on(out).tile(corner, extents).store(total, tl)


@value
class ThinProduct:
    """A GEMV-like product of few rows, (m, k) by (k, n). Most of its time is one read of B from local memory.

    If the columns of B are contiguous, as in weights, each PE computes the columns that its own memory stores. The PEs
    of a cube all-gather A: each PE copies a piece of A to the memory of the cube. If the rows of B are contiguous,
    each cube can multiply the rows that its own memory stores (split-K). `PartialSums` then adds the cubes' sums.
    """

    m: int
    b: View
    completion: Completion
    tile_n: int
    widest: int
    """Maximum number of columns that fit in scratch, for a B with contiguous rows"""

    def run(self, addresses: Sequence[int], tl: Any) -> None:
        """Compute this program's columns. ``addresses``: those of the result, cubes' buffers, A, B and the addend."""
        out, buffer, a, b, *addend = addresses
        _, k, n = self.b.extents
        panels = self._panels((0, k), share(n, tl), tl)
        ahead = [self._load(b, panel, tl) for panel in panels[:_AHEAD]]
        if tl.num_programs(1) > 1:
            a = self._all_gather(a, buffer, tl)
        self._multiply(panels, ahead, (out, a, b, *addend), tl)

    def run_by_rows(self, addresses: Sequence[int], tl: Any) -> None:
        """Multiply the rows of B in this cube's memory. ``addresses``: those of the cubes' sums, A and B."""
        sums, a, b = addresses
        cube, (_, k, n) = tl.program_id(1), self.b.extents
        rows, columns = part(k, tl.num_programs(1), cube), part(n, tl.num_programs(0), tl.program_id(0))
        sums_of_cube = self.completion.out.on(sums).at((cube,))
        self._multiply(self._panels(rows, columns, tl), (), (sums_of_cube, a, b), tl)

    def _multiply(self, panels: Sequence[Panel], ahead: Sequence[Any], addresses: Sequence[int], tl: Any) -> None:
        """Multiply panels. ``ahead``: the prefetched ones. ``addresses``: those of the result, A, B and the addend."""
        out, a, b, *addend = addresses
        left = self._load_rows(a, panels, tl)
        for column, group in groupby(zip_longest(panels, ahead), key=lambda each: each[0].column):
            total = None
            for panel, loaded in group:
                right = self._load(b, panel, tl) if loaded is None else loaded
                piece = left[panel.row, panel.parts, panel.depth]
                total = tl.dot(piece, right, total, out_dtype="f32", trans_b=self._is_transposed)
            self.completion.store(total, out, addend, column, tl)

    def _load_rows(self, a: int, panels: Sequence[Panel], tl: Any) -> dict[tuple[int, int, int], Any]:
        """Load A in pieces that match the panels of B, with one command for all pieces of one shape.

        The keys of the result are (first row, parts, depth).
        """
        item, pieces = self.b.dtype.itemsize, dict[tuple[int, int, int], Any]()
        for depth, parts, apart in dict.fromkeys((panel.depth, panel.parts, panel.apart) for panel in panels):
            firsts = sorted({panel.row for panel in panels if (panel.depth, panel.parts) == (depth, parts)})
            together = firsts == list(range(firsts[0], firsts[0] + len(firsts) * depth, depth))
            assert together, "panels of one form follow each other"
            strides = (depth * item, self.b.extents[1] * item, apart * item, item)
            shape = (len(firsts), self.m, parts, depth)
            loaded = tl.load(a + firsts[0] * item, shape, self.b.dtype, strides=strides)
            for i, row in enumerate(firsts):
                pieces[row, parts, depth] = tl.reshape(tl.part(loaded, i), (self.m, parts * depth))
        return pieces

    def _panels(self, rows: tuple[int, int], columns: tuple[int, int], tl: Any) -> list[Panel]:
        """Return the panels of the given rows and columns of B. Panels of the same columns are consecutive."""
        if not (rows[1] and columns[1]):
            return []
        if self._is_transposed:
            return list(self._column_panels(rows, columns))
        return list(self._row_panels(rows, columns, tl.num_programs(0)))

    def _column_panels(self, rows: tuple[int, int], columns: tuple[int, int]) -> Iterator[Panel]:
        """Yield panels of contiguous columns: first the partial tile, then full tiles, with smaller panels at the end.

        A small last panel leaves little to multiply after it has arrived.
        """
        (row, k), (column, n) = rows, columns
        odd, depth = n % self.tile_n, self._depth(k, self.tile_n)
        groups = [(column, odd)] * (odd > 0) + list(blocks(n - odd, self.tile_n, column + odd))
        for j, some in groups:
            deep = depth if (j, some) != groups[-1] else max(depth // 2, _DEPTH)
            for first, lines in blocks(k, deep, row):
                yield Panel(first, j, lines, some)

    def _row_panels(self, rows: tuple[int, int], columns: tuple[int, int], parts: int) -> Iterator[Panel]:
        """Yield panels of contiguous rows, each with rows from ``parts`` memories.

        All PEs of a cube read the same rows at once. Each panel therefore takes rows from all memories of the cube,
        so that the PEs do not meet at one memory.
        """
        (row, k), (column, n) = rows, columns
        width = min(n, self.widest)
        depth = self._depth(k, width)
        apart = k // parts if k > depth else 0
        for j, some in blocks(n, width, column):
            for first, lines in blocks(apart, max(depth // parts, 1), row):
                yield Panel(first, j, lines, some, parts, apart)
            if k > apart * parts:
                yield Panel(row + apart * parts, j, k - apart * parts, some)

    def _depth(self, k: int, width: int) -> int:
        """Return the number of rows in a panel of ``width`` columns, at most ``k``."""
        return min(k, max(_DEPTH, _PANEL_BYTES // (width * self.b.dtype.itemsize) // _DEPTH * _DEPTH))

    @property
    def _is_transposed(self) -> bool:
        """True if the columns of B are contiguous, as in weights. Panels are then loaded transposed."""
        _, row, column = self.b.strides
        return row < column

    def _all_gather(self, a: int, buffer: int, tl: Any) -> Any:
        """Store this PE's piece of A in the cube's memory, wait for the other PEs, and return the address of A."""
        item, elements = self.b.dtype.itemsize, self.m * self.b.extents[1]
        first, count = part(elements, tl.num_programs(0), tl.program_id(0))
        here = buffer + tl.program_id(1) * elements * item
        if count:
            tl.store(here + first * item, tl.load(a + first * item, (count,), self.b.dtype))
        tl.barrier()
        return here

    def _load(self, b: int, panel: Panel, tl: Any) -> Any:
        tile = self.b.on(b).tile((0, panel.row, panel.column), (panel.depth, panel.columns))
        if self._is_transposed:
            return tile.transposed.load(tl)
        row, column = tile.strides
        groups = View(tile.address, (panel.parts, *tile.extents), (panel.apart * row, row, column), tile.dtype)
        return tl.reshape(groups.load(tl), (panel.parts * panel.depth, panel.columns))


@value
class PartialSums:
    """Sums of a split-K product of few rows, (parts, m, n) in f32, still to be added and completed."""

    parts: int
    m: int
    n: int
    completion: Completion
    widest: int

    def run(self, addresses: Sequence[int], tl: Any) -> None:
        """Add and complete the sums of this program's columns. ``addresses``: those of the result, sums and addend."""
        out, sums, *addend = addresses
        first, mine = share(self.n, tl)
        strides = (self.n * 4, 4)
        for column, columns in blocks(mine, self.widest, first):
            parts = [
                tl.load(sums + (i * self.m * self.n + column) * 4, (self.m, columns), "f32", strides=strides)
                for i in range(self.parts)
            ]
            self.completion.store(reduce(add, parts), out, addend, column, tl)


def multiply(
    name: str,
    a: Tensor,
    b: Tensor,
    out: Tensor,
    addend: Tensor | None = None,
    scale: float = 1.0,
    activation: str | None = None,
) -> Any:
    """Compute ``out = activation(scale a b + addend)`` of tensors (batch, m, k), (batch, k, n) and (batch, m, n).

    Raises InputError if shapes or dtypes do not match, or if the matrix unit lacks a dtype.
    """
    if a.dtype is not b.dtype or a.shape[2] != b.shape[1] or a.shape[0] != b.shape[0]:
        raise InputError(
            f"{program_place()}: {name} of {tuple(a.shape)} {a.dtype} and {tuple(b.shape)} {b.dtype}: factors need one "
            f"type, and the first needs as many columns as the second has rows"
        )
    batch, m, k = a.shape
    n = b.shape[2]
    if not (batch and m and n):
        return out
    if not k:
        return out.zero_() if addend is None else out.copy_(addend)
    a, b = _readable(a), _readable(b)
    context = current()
    pe, a_bytes = context.topology.pe, m * k * a.element_size()
    is_thin = m <= pe.gemm.tile_m and a_bytes <= pe.tcm.scratch_bytes // 2
    if batch == 1 and is_thin and b.is_floating_point() and n > 1:
        return _multiply_thin(name, a.contiguous(), b, out, addend, scale, activation)
    sip, spec = sip_of(out), context.topology
    cubes, pes_of_cube = whole_grid(context)
    if dtype_of(a).name not in spec.pe.gemm.macs_per_ns:
        raise InputError(f"{name} of {a.dtype}: the matrix unit has {', '.join(spec.pe.gemm.macs_per_ns)}")
    item = dtype_of(a)
    rates = PeRates.of(spec, item)
    _, grid = choose_grid(rates, cubes * pes_of_cube, batch, m, k, n, item.itemsize)
    used = -(-grid.pes // pes_of_cube)
    pes_each = pes_of_cube if used > 1 else grid.pes
    pes = [(sip, cube, pe) for cube in range(used) for pe in range(pes_each)]
    addend_view = None if addend is None else view_of(addend)
    work = Product(grid, view_of(a), view_of(b), view_of(out), addend_view, scale, activation)
    read = (a, b) if addend is None else (a, b, addend)
    by_rows = work.b.strides[1] > work.b.strides[2]
    several = batch == 1 and used > 1
    shares = choose_cubes(rates, used, pes_of_cube, m, k, n, item.itemsize, by_rows) if several else None
    if shares is None:
        launch_on(name, pes, _program(work.run), (out,), read)
        return out
    shared = SharedProduct(work, shares)
    buffer: Any = new((shared.buffer_elements,), a.dtype, sip)
    launch_on(name, pes, _program(shared.run), (out, buffer), read)
    return out


def _multiply_thin(
    name: str, a: Tensor, b: Tensor, out: Tensor, addend: Any, scale: float, activation: str | None
) -> Tensor:
    _, m, k = a.shape
    n = out.shape[2]
    context, sip = current(), sip_of(out)
    pes = pes_for(context, sip, b.numel() * b.element_size())
    cubes = pes[-1][1] + 1
    layout = view_of(b)
    completion = Completion(view_of(out), None if addend is None else view_of(addend), scale, activation)
    addends = () if addend is None else (addend,)
    pe, deep = context.topology.pe, max(_DEPTH, pes[-1][2] + 1)
    tile_n, room = pe.gemm.tile_n, pe.tcm.scratch_bytes // 2
    widest = max(1, room // (4 * deep * b.element_size() + _COMPLETING * m * 4))
    saved = (k * b.element_size() - cubes * m * 4) * n
    if cubes > 1 and layout.strides[1] > layout.strides[2] and saved > _LAUNCH_BYTES:
        sums: Any = new((cubes, m, n), torch.float32, sip)
        by_rows = ThinProduct(m, layout, Completion(view_of(sums)), tile_n, widest)
        launch_on(name, pes, _program(by_rows.run_by_rows), (sums,), (a, b))
        adding = PartialSums(cubes, m, n, completion, max(1, room // ((cubes + _COMPLETING) * m * 4)))
        launch_on(name, pes, _program(adding.run), (out,), (sums, *addends))
        return out
    buffer: Any = new((cubes * m * k,), a.dtype, sip)
    work = ThinProduct(m, layout, completion, tile_n, widest)
    launch_on(name, pes, _program(work.run), (out, buffer), (a, b, *addends))
    return out


def _program(run: Callable[[Sequence[int], Any], None]) -> Program:
    def program(*addresses: int, tl: Any) -> None:
        run(addresses, tl)

    return program


def _readable(x: Tensor) -> Any:
    """Return ``x``, or a copy of it if its matrices have a stride of 0 along an axis."""
    _, rows, columns = x.shape
    _, row, column = x.stride()
    if (rows > 1 and row == 0) or (columns > 1 and column == 0):
        return x.contiguous()
    return x


def _mm(a: Tensor, b: Tensor, out_dtype: Any = None) -> Tensor:
    out = new((a.shape[0], b.shape[1]), out_dtype or a.dtype, sip_of(a))
    multiply("mm", a.unsqueeze(0), b.unsqueeze(0), out.unsqueeze(0))
    return out


def _bmm(a: Tensor, b: Tensor, out_dtype: Any = None) -> Any:
    out = new((a.shape[0], a.shape[1], b.shape[2]), out_dtype or a.dtype, sip_of(a))
    return multiply("bmm", a, b, out)


def _addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return _addmm_with(None, bias, a, b, beta, alpha)


def _addmm_activation(
    bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1, use_gelu: bool = False
) -> Tensor:
    return _addmm_with("gelu" if use_gelu else "relu", bias, a, b, beta, alpha)


def _addmm_with(activation: str | None, bias: Tensor, a: Tensor, b: Tensor, beta: float, alpha: float) -> Tensor:
    out = new((a.shape[0], b.shape[1]), a.dtype, sip_of(a))
    addend = _addend(bias, beta, (1, *out.shape))
    multiply("addmm", a.unsqueeze(0), b.unsqueeze(0), out.unsqueeze(0), addend, alpha, activation)
    return out


def _baddbmm(x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    out = new((a.shape[0], a.shape[1], b.shape[2]), a.dtype, sip_of(a))
    return multiply("baddbmm", a, b, out, _addend(x, beta, tuple(out.shape)), alpha)


def _addend(x: Tensor, beta: float, shape: tuple[int, ...]) -> Any:
    """Return ``beta x``, broadcast to ``shape``; None if ``beta`` is 0."""
    if beta == 0:
        return None
    scaled: Any = x if beta == 1 else x * beta
    seen = scaled.expand(shape)
    return seen.contiguous() if seen.shape[-1] > 1 and seen.stride(-1) == 0 else seen


def _addbmm(x: Any, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    total: Any = _bmm(a, b, torch.float32).sum(0) * alpha
    return (total if beta == 0 else total + x * beta).to(a.dtype)


def _dot(a: Tensor, b: Tensor) -> Any:
    return _mm(a.unsqueeze(0), b.unsqueeze(1)).reshape(())


def _mv(a: Tensor, b: Tensor) -> Any:
    return _mm(a, b.unsqueeze(1)).squeeze(1)


def _grouped_mm(a: Tensor, b: Tensor, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """Multiply each group of rows of ``a`` by its matrix, (rows, k) by (groups, k, n), or split the summed axis.

    ``offs``: the end of each group. The kernel waits until it has loaded them. A run without data that does not know
    their values assumes groups of equal size.
    """
    if offs is None:
        return _bmm(a, b, out_dtype)
    if bias is not None or (a.dim() == 3 or b.dim() == 1):
        return NotImplemented
    groups, over_k = offs.numel(), b.dim() == 2
    rows, n = a.shape[0], b.shape[-1]
    shape = (groups, rows, n) if over_k else (rows, n)
    out = new(shape, out_dtype or a.dtype, sip_of(a))
    ends_at = known_elements(offs)
    total = a.shape[1] if over_k else rows
    assumed = [total * (g + 1) // groups for g in range(groups)] if ends_at is None else ends_at.tolist()
    layouts = [view_of(x if x.dim() == 3 else x.unsqueeze(0)) for x in (out, a, b)]
    item, has_data = dtype_of(offs), current().has_data
    offs = offs.contiguous()

    def program(*addresses: int, tl: Any) -> None:
        out_view, a_view, b_view = (layout.on(at) for layout, at in zip(layouts, addresses, strict=False))
        loaded = tl.load(addresses[-1], (groups,), item)
        ends = [int(e) for e in tl.value(loaded)] if has_data else (tl.wait(loaded), assumed)[1]
        j, columns = share(n, tl)
        begin = 0
        for g, end in enumerate(ends):
            count, first, begin = end - begin, begin, end
            if not columns or (count <= 0 and not over_k):
                continue
            tile = out_view.tile((g, 0, j) if over_k else (0, first, j), (rows if over_k else count, columns))
            if count <= 0:  # an empty group: nothing to add up
                tile.store(tl.zeros((rows, columns), tile.dtype), tl)
                continue
            if over_k:
                left = a_view.tile((0, 0, first), (rows, count))
                right = b_view.tile((0, first, j), (count, columns))
            else:
                left = a_view.tile((0, first, 0), (count, a.shape[1]))
                right = b_view.tile((g, 0, j), (a.shape[1], columns))
            strides = tuple(stride * tile.dtype.itemsize for stride in tile.strides)
            tl.composite(
                "gemm",
                left.ref(tl),
                right.ref(tl),
                out_ptr=tile.address,
                out_dtype=tile.dtype,
                out_strides=strides,
                block="auto",
            )

    if out.numel() and total:
        launch("grouped_mm", program, (out,), (a, b, offs), max(x.numel() * x.element_size() for x in (a, b, out)))
    return out


def _by_matrix_unit(lowering: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``lowering``, changed to let the host compute products of types that the matrix unit lacks."""

    def multiply_if_it_has(*operands: Any, **options: Any) -> Any:
        types = current().topology.pe.gemm.macs_per_ns
        has_all = all(dtype_of(x).name in types for x in operands if isinstance(x, AhbmTensor))
        return lowering(*operands, **options) if has_all else NotImplemented

    return multiply_if_it_has


_ON_MATRIX_UNIT: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        aten.mm.default: _mm,
        aten.mm.dtype: _mm,
        aten.bmm.default: _bmm,
        aten.bmm.dtype: _bmm,
        aten.addmm.default: _addmm,
        aten._addmm_activation.default: _addmm_activation,  # noqa: SLF001 - an operator's name
        aten.baddbmm.default: _baddbmm,
        aten.addbmm.default: _addbmm,
        aten.dot.default: _dot,
        aten.mv.default: _mv,
    }
)
LOWERINGS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {operator: _by_matrix_unit(lowering) for operator, lowering in _ON_MATRIX_UNIT.items()}
    | {aten._grouped_mm.default: _grouped_mm}  # noqa: SLF001
)
