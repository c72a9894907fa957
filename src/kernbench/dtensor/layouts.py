"""Layout of a rank's part inside its SIP, and the tables that give each PE its share of a launch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import NamedTuple, TypeAlias

from kernbench.common.dtypes import row_major
from kernbench.kernels.shares import part
from kernbench.messages.requests import PeCoord
from kernbench.policy.placement.dp import DPPolicy, PlacementError, resolve_dp_policy
from kernbench.policy.placement.geometry import Window
from kernbench.policy.placement.views import first_copies
from kernbench.runtime_api.layout import TensorLayout
from kernbench.topology.spec import TopologySpec

# With fewer bytes, the messages and commands of one more PE cost more than it saves.
BYTES_PER_PE = 2048


def local_policy(shape: tuple[int, ...], itemsize: int, wanted: DPPolicy | None, topology: TopologySpec) -> DPPolicy:
    """Return ``wanted`` if every PE of that policy has a block of a tensor of this shape, else ``rows_policy``."""
    if wanted is not None and _fits(shape, itemsize, wanted, topology):
        return wanted
    return rows_policy(shape, itemsize, wanted, topology)


def rows_policy(shape: tuple[int, ...], itemsize: int, within: DPPolicy | None, topology: TopologySpec) -> DPPolicy:
    """Return a policy of rows over the cubes and PEs of ``within``, by default over all.

    A single row is split by its elements. There are at most as many PEs as rows, and each PE has at least
    ``BYTES_PER_PE`` bytes. The policy uses more cubes before it uses more PEs of each cube.
    """
    cubes, pes = topology.cubes_per_sip, topology.pes_per_cube
    if within is not None:
        cubes, pes = within.num_cubes or cubes, within.num_pes or pes
    alone = prod(shape[:-1]) == 1
    rows = prod(shape) if alone else shape[0]
    wanted = max(1, min(rows, prod(shape) * itemsize // BYTES_PER_PE))
    if wanted == 1:
        return DPPolicy(num_cubes=1, num_pes=1)
    how, num_cubes = "column_wise" if alone else "row_wise", min(cubes, wanted)
    return DPPolicy(how, how, num_cubes=num_cubes, num_pes=min(pes, wanted // num_cubes))


def reads_in_order(layout: TensorLayout) -> bool:
    """Return True if a launch may read the tensor as one row-major array.

    The result is False if a shard is a single element of a longer row.
    """
    scattered = any(view.window.size == 1 and view.shape[1:] != layout.shape[1:] for view in layout.views)
    return layout.is_row_major and not scattered


def is_plain(layout: TensorLayout) -> bool:
    """Return True if the tensor stores each element once, in row-major order, as collectives on blocks require."""
    return reads_in_order(layout) and not layout.has_copies


def _fits(shape: tuple[int, ...], itemsize: int, policy: DPPolicy, topology: TopologySpec) -> bool:
    """Return True if every PE of the policy has a block."""
    sizes = {"num_pe": topology.pes_per_cube, "num_cubes": topology.cubes_per_sip}
    try:
        shards = resolve_dp_policy(policy, shape=shape, itemsize=itemsize, target_sip=0, **sizes)
    except PlacementError:
        return False
    pes, cubes = policy.num_pes or topology.pes_per_cube, policy.num_cubes or topology.cubes_per_sip
    return len(shards) == pes * cubes


IntTable: TypeAlias = tuple[int, ...]
WindowMove: TypeAlias = tuple[Window, Window]
"""The source window in one tensor and the target window in another, of one shape."""


class _StoredWindow(NamedTuple):
    """A window of a tensor, stored row-major from ``offset`` bytes after the tensor's address on."""

    window: Window
    offset: int

    def place_of(self, window: Window, itemsize: int) -> int:
        """Return the first byte of a window inside this one."""
        at = 0
        for (start, _), (first, last) in zip(window.bounds, self.window.bounds, strict=True):
            at = at * (last - first) + start - first
        return self.offset + at * itemsize


def copy_table(source: TensorLayout, target: TensorLayout, moves: Iterable[WindowMove]) -> IntTable:
    """Return the lines of ``copy_windows``: every PE fills its shards of the target, replicas included.

    Axes are the axes of the target.
    """
    sources, item = _find_windows(source), source.dtype.itemsize
    lines: list[int] = []
    for from_window, to_window in moves:
        shifts = [a - b for (a, _), (b, _) in zip(from_window.bounds, to_window.bounds, strict=True)]
        for view in target.views:
            common = view.window.meet(to_window)
            if common is None:
                continue
            wanted, target_window = _shift(common, shifts), _StoredWindow(view.window, view.spec.offset_bytes)
            for source_window in sources:
                overlap = source_window.window.meet(wanted)
                if overlap is not None:
                    here = _shift(overlap, [-shift for shift in shifts])
                    lines += (
                        view.spec.cube,
                        view.spec.pe,
                        source_window.place_of(overlap, item),
                        target_window.place_of(here, item),
                    )
                    lines += _list_extents(overlap.shape, source_window.window.shape, view.shape, item)
    return tuple(lines)


def gemm_table(out: TensorLayout, pes: Sequence[PeCoord], tile: tuple[int, int]) -> IntTable:
    """Return the lines of ``gemm_windows``: every PE computes a part of the product.

    A result that is not stored in order is split by the shards of the PEs. ``tile`` has the numbers of rows and columns
    of an output tile. A partial tile costs as much as a full tile, so a PE computes at least one tile.
    """
    item = out.dtype.itemsize
    if not is_plain(out):
        windows = [(view.spec.cube, view.spec.pe, view.window, view.spec.offset_bytes) for view in out.views]
        return tuple(
            n for cube, pe, window, offset in windows for n in (cube, pe, *_make_line(window, offset, window, item))
        )
    product = _StoredWindow(out.whole, 0)
    parts = _split_parts(out.shape, _choose_grid(out.shape, len(pes), tile))
    placed = ((pe, window, product.place_of(window, item)) for pe, window in zip(pes, parts, strict=False))
    return tuple(
        n for (_, cube, pe), window, offset in placed for n in (cube, pe, *_make_line(window, offset, out.whole, item))
    )


def _find_windows(layout: TensorLayout) -> list[_StoredWindow]:
    """Return windows that contain each element of a tensor once, for a reader."""
    if reads_in_order(layout):
        return [_StoredWindow(layout.whole, 0)]
    return [_StoredWindow(view.window, view.spec.offset_bytes) for view in first_copies(layout.views)]


def _shift(window: Window, by: Sequence[int]) -> Window:
    return Window(tuple((a + shift, b + shift) for (a, b), shift in zip(window.bounds, by, strict=True)))


def _list_extents(shape: tuple[int, ...], source: tuple[int, ...], target: tuple[int, ...], itemsize: int) -> list[int]:
    """Return the extents of a box and its strides in both tensors; axes contiguous in both are merged into the last."""
    if not shape:
        return [1, itemsize, itemsize]
    box = list(zip(shape, row_major(source, itemsize), row_major(target, itemsize), strict=True))
    merged = [box.pop()]
    while box:
        extent, far, wide = box.pop()
        inner, near, narrow = merged[0]
        if (far, wide) == (inner * near, inner * narrow):
            merged[0] = (extent * inner, near, narrow)
        else:
            merged.insert(0, (extent, far, wide))
    merged = [(1, *merged[0][1:])] * (len(shape) - len(merged)) + merged
    return [axis[which] for which in range(3) for axis in merged]


def _make_line(window: Window, offset: int, rows_of: Window, itemsize: int) -> tuple[int, ...]:
    (row, last_row), (column, last_column) = window.bounds
    return row, last_row - row, column, last_column - column, offset, rows_of.shape[1] * itemsize


def _choose_grid(shape: tuple[int, ...], pes: int, tile: tuple[int, int]) -> tuple[int, int]:
    """Return the numbers of parts of rows and columns: as many parts as PEs and tiles allow, of least perimeter."""
    row_tiles, column_tiles = (-(-extent // size) for extent, size in zip(shape, tile, strict=True))
    grids = ((rows, min(pes // rows, column_tiles)) for rows in range(1, min(pes, row_tiles) + 1))
    return max(grids, key=lambda grid: (grid[0] * grid[1], -(grid[0] * shape[1] + grid[1] * shape[0])))


def _split_parts(shape: tuple[int, ...], grid: tuple[int, int]) -> Iterator[Window]:
    rows, columns = (
        [part(extent, parts, at) for at in range(parts)] for extent, parts in zip(shape, grid, strict=True)
    )
    for row, height in rows:
        for column, width in columns:
            yield Window(((row, row + height), (column, column + width)))
