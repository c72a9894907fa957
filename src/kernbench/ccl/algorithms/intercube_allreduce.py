"""All-reduce of one row per cube, over the cubes of a SIP and over SIPs: every cube ends with the sum of all rows.

Steps, on PE 0 of every cube:

1. Rows of cubes reduce from west to east, the last column from north to south.
2. The last cube sends the sum to the root cube, if that is another cube, along the last row and up a column.
3. The root cubes of all SIPs all-reduce, by reduce-scatter and all-gather along the rings or lines of their links. The
   order is rows, then columns; with many messages, half of them use columns first. A torus uses both directions.
4. The result returns by the same paths.

Cubes load first the data that the SIPs need first.

Rounding: each sum is computed once and copied, so all cubes of all SIPs end with the same bits.
Time: 6 S/B + 2(w+h-2) alpha for w x h cubes: in the last column 3 S bytes pass a PE's link in each direction. The
exchange between n SIPs adds 2(n-1)/n S/B, where B is the bandwidth of the links between SIPs. It also adds 2(n-1) alpha
if the SIPs form a ring, or 2(w+h-2) alpha if they form w columns and h rows. With many messages, each link of a grid
carries half as many bytes, and each link of a torus a quarter.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kernbench.ccl.grids import (
    SipGrid,
    all_reduce_by,
    grid_schedule,
    order_of_results,
    order_of_use,
    sip_grid,
)
from kernbench.ccl.pieces import Messages, messages_of
from kernbench.ccl.rings import check_ranks, half_a_hop
from kernbench.ccl.trees import Branch, reduce_pieces, spread
from kernbench.common.errors import InputError
from kernbench.messages.steps import Chunk, Step, copy, receive, send
from kernbench.topology.grid import Grid
from kernbench.triton_emu.schedules import ScheduledKernel

own_topology = "intercube"


def schedule(
    *,
    rank: int,
    world_size: int,
    n_elem: int,
    cube: int,
    cube_w: int = 1,
    cube_h: int = 1,
    root_cube: int | None = None,
    ranks_are_sips: bool = True,
    reduce_op: str = "sum",
    chunk_size: int | None = None,
    **config: Any,
) -> list[Step]:
    """Return the steps that reduce the row of ``n_elem`` elements of each cube.

    ``root_cube`` is the cube that exchanges sums with other SIPs, by default the last one. Raises InputError for a root
    cube that does not exist, and if ranks are not SIPs.
    """
    check_ranks(world_size, ranks_are_sips=ranks_are_sips)
    last = cube_w * cube_h - 1
    root = last if root_cube is None else root_cube
    if not 0 <= root <= last:
        raise InputError(f"root_cube={root}: a SIP has cubes 0..{last}")
    messages, sips = messages_of(reduce_op, chunk_size, **config), sip_grid(world_size, **config)
    cubes = _Cubes(Grid(cube_w, cube_h), root, cube)
    segments = map(messages.pieces, messages.segments(n_elem))
    return [step for pieces in segments for step in _all_reduce(pieces, cubes, sips, rank, messages)]


class _Cubes(NamedTuple):
    """The mesh of cubes, with the root cube and the cube of this PE."""

    grid: Grid
    root: int
    here: int

    @property
    def branch(self) -> Branch:
        """The queues of this cube in a tree whose branches are the rows, to the east, and the last column, south."""
        x, y = self.grid.xy(self.here)
        last_column = x == self.grid.w - 1
        children = ("W",) * (x > 0) + ("N",) * (last_column and y > 0)
        parent = "E" if not last_column else "S" if y < self.grid.h - 1 else None
        return Branch(parent, children)

    @property
    def way(self) -> list[int]:
        """The cubes from the last cube to the root: along the last row, then up a column."""
        x, y = self.grid.xy(self.root)
        along = [self.grid.index(i, self.grid.h - 1) for i in range(self.grid.w - 1, x - 1, -1)]
        return along + [self.grid.index(x, j) for j in range(self.grid.h - 2, y - 1, -1)]


def _all_reduce(pieces: list[Chunk], cubes: _Cubes, sips: SipGrid, sip: int, messages: Messages) -> list[Step]:
    n, way, table = len(pieces), cubes.way, grid_schedule(sips.axes(sip), len(pieces))
    # Pieces reach the root in the order of its use, and leave it in the order of completion.
    going, coming = order_of_use(table, n, half_a_hop(messages)), order_of_results(table, n)
    at_root = cubes.here == cubes.root
    steps = reduce_pieces(cubes.branch, going, pieces, messages)
    steps += _move(going, pieces, way, cubes)
    if at_root:
        steps += all_reduce_by(table, pieces, messages, len(cubes.grid) * sips.n)
    steps += _move(coming, pieces, way[::-1], cubes)
    return steps + spread(cubes.branch, coming, pieces)


def _move(order: list[int], pieces: list[Chunk], way: list[int], cubes: _Cubes) -> list[Step]:
    """Return the steps that move ``pieces`` from the first cube of ``way`` to buffers of the last cube."""
    if len(way) == 1 or cubes.here not in way:
        return []
    at = way.index(cubes.here)
    side = {cube: side for side, cube in cubes.grid.neighbours(cubes.here).items()}
    back = "" if at == 0 else side[way[at - 1]]
    ahead = "" if at == len(way) - 1 else side[way[at + 1]]
    steps: list[Step] = []
    for i in order:
        if back:
            steps.append(receive(back, pieces[i].size))
        steps.append(send(ahead, back or i) if ahead else copy(i, back))
    return steps


kernel = ScheduledKernel(schedule, over="cubes")
kernel_args = kernel.kernel_args
