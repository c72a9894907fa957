"""All-reduce of one row per cube, over the cubes of a SIP and over SIPs: every cube ends with the sum of all rows.

Steps, on PE 0 of every cube: rows of cubes reduce from west to east, the last column from north to south; the last cube
sends the sum to the root cube, if that is another one, along the last row and up a column; the root cubes of all SIPs
all-reduce, by reduce-scatter and all-gather along the rings or lines of their links (rows, then columns, and of many
messages half the other way about; both ways round a torus); and everything goes back the same ways. Cubes bring in
first what the SIPs need first.

Rounding: sums are made once, and copied: all cubes of all SIPs end with the same bits.
Time: 6 S/B + 2(w+h-2) alpha for w x h cubes (in the last column three times S passes a PE's link, each way), and
2(n-1)/n S/B for n SIPs, B that of the links between them, with 2(n-1) alpha for a ring of them and 2(w+h-2) alpha for w
columns and h rows; of many messages a grid has half as many bytes on each link, and a torus half of that.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kernbench.ccl.steps.grids import SipGrid, all_reduce_by, order_of_results, order_of_use, timetable
from kernbench.ccl.steps.messages import MESSAGE_KEYS, Messages, loaded, message_args, on_the_way, places
from kernbench.ccl.steps.rings import kept
from kernbench.ccl.steps.sip_rings import check_ranks
from kernbench.ccl.steps.trees import Branch, reduced, spread
from kernbench.common.errors import InputError
from kernbench.kernels.shares import blocks
from kernbench.topology.spec import current_topology_name

WINDOW_BYTES = 16 << 10
"""What passes a link between cubes in the time of a hop there and back: measured. With more on their way the root cube
gets too late what SIPs exchange: it comes over the same links of its PE."""

config_keys = MESSAGE_KEYS
own_topology = "intercube"


def kernel_args(
    *,
    n_elem: int,
    world_size: int,
    cube_w: int = 1,
    cube_h: int = 1,
    root_cube: int | None = None,
    sip_topology: str = "ring_1d",
    sip_w: int = 0,
    sip_h: int = 0,
    ranks_are_sips: bool = True,
    **config: Any,
) -> tuple[int | str, ...]:
    """``n_elem``: elements of a row. ``root_cube``: where SIPs meet, the last cube when not given.

    InputError for a root cube that does not exist, and where ranks are no SIPs.
    """
    check_ranks(world_size, ranks_are_sips=ranks_are_sips)
    last = cube_w * cube_h - 1
    root = last if root_cube is None else root_cube
    if not 0 <= root <= last:
        raise InputError(f"root_cube={root}: a SIP has cubes 0..{last}")
    kind = current_topology_name(sip_topology)
    return n_elem, world_size, cube_w, cube_h, root, kind, sip_w, sip_h, *message_args(**config)


class _Cubes(NamedTuple):
    """The mesh of cubes, and where in it this kernel runs."""

    w: int
    h: int
    root: int
    here: int

    def branch(self, window: int) -> Branch:
        """Rows to the east, the last column to the south."""
        y, x = divmod(self.here, self.w)
        last_column = x == self.w - 1
        children = ("W",) * (x > 0) + ("N",) * (last_column and y > 0)
        parent = "E" if not last_column else "S" if y < self.h - 1 else None
        return Branch(parent, children, window)

    @property
    def way(self) -> list[int]:
        """The cubes from the last one to the root: along the last row, then up a column."""
        y, x = divmod(self.root, self.w)
        along = [(self.h - 1) * self.w + i for i in range(self.w - 1, x - 1, -1)]
        return along + [j * self.w + x for j in range(self.h - 2, y - 1, -1)]


def kernel(
    t_ptr: int,
    n_elem: int,
    world_size: int,
    cube_w: int,
    cube_h: int,
    root_cube: int,
    sip_topology: str,
    sip_w: int,
    sip_h: int,
    dtype: str,
    op: str,
    chunk: int,
    *,
    tl: Any,
) -> None:
    """Reduce the row of ``n_elem`` elements of each cube, in place; row c is at ``t_ptr + c * n_elem`` elements."""
    if tl.program_id(0):
        return
    messages = Messages(dtype, op, chunk)
    cubes = _Cubes(cube_w, cube_h, root_cube, tl.program_id(1))
    sips = SipGrid(world_size, sip_topology, sip_w, sip_h)
    item = tl.itemsize(dtype)
    row = t_ptr + cubes.here * n_elem * item
    for first, count in blocks(n_elem, messages.segment()):
        _all_reduce(row + first * item, count, cubes, sips, messages, tl)


def _all_reduce(ptr: int, n: int, cubes: _Cubes, sips: SipGrid, messages: Messages, tl: Any) -> None:
    pieces = places(ptr, n, messages, tl)
    window = on_the_way(WINDOW_BYTES, messages.nbytes)
    branch, way, steps = cubes.branch(window), cubes.way, timetable(sips.axes(tl.program_id(2)), len(pieces))
    # Pieces come to the root as it needs them, and leave it as it is done with them.
    going, coming = order_of_use(steps, len(pieces)), order_of_results(steps, len(pieces))
    where = [pieces[i] for i in going]
    values = reduced(branch, loaded(where, messages, tl), messages, tl)
    values = _moved(values, [count for _, count in where], way, cubes, messages, tl)
    if cubes.here == cubes.root:
        values = [values[at] for at in _inverse(going)]
        all_reduce_by(steps, values, messages, cubes.w * cubes.h * sips.n, tl)
        values = [values[i] for i in coming]
    where = [pieces[i] for i in coming]
    counts = [count for _, count in where]
    values = _moved(values, counts, way[::-1], cubes, messages, tl)
    spread(branch, values, counts, messages.dtype, lambda i, x: tl.store(where[i][0], x), tl)


def _inverse(order: list[int]) -> list[int]:
    """Where in ``order`` each number is."""
    return sorted(range(len(order)), key=order.__getitem__)


def _moved(
    values: list[Any], counts: list[int], way: list[int], cubes: _Cubes, messages: Messages, tl: Any
) -> list[Any]:
    """Move ``values`` from the first cube of ``way`` to the last, which returns them; all others return nothing."""
    if len(way) == 1 or cubes.here not in way:
        return values if cubes.here == way[-1] else []
    at = way.index(cubes.here)
    back, ahead = (None if at == 0 else way[at - 1]), (None if at == len(way) - 1 else way[at + 1])
    moved: list[Any] = []
    for i, count in enumerate(counts):
        x = values[i] if back is None else tl.recv_async(_side(cubes, back), count, messages.dtype)
        if ahead is None:
            moved.append(kept(x, tl))
        else:
            tl.send(_side(cubes, ahead), x)
        del x
    return moved


def _side(cubes: _Cubes, neighbour: int) -> str:
    """The direction of a neighbouring cube."""
    forward = neighbour > cubes.here
    if neighbour // cubes.w == cubes.here // cubes.w:
        return "E" if forward else "W"
    return "S" if forward else "N"
