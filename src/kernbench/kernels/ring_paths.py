"""Rings of PEs through cubes of a SIP, on which arrays are handed from TCM to TCM.

Cubes of a block form a closed ring of neighbours. Two groups of PEs of each cube are two rings, which follow the
ring of cubes in opposite directions::

    cube 0 ──▶ cube 1 ──▶ cube 2        in each cube, group 0:  port W ─▶ PE ─▶ PE ─▶ PE ─▶ PE ─▶ port E
      ▲                     │                        group 1:  port W ◀─ PE ◀─ PE ◀─ PE ◀─ PE ◀─ port E
    cube 5 ◀── cube 4 ◀── cube 3

The PEs of a group, and their order, are those whose hops use no directed link of a cube twice, if there are such PEs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise, permutations, product
from typing import TypeAlias

from kernbench.common.values import value
from kernbench.policy.routing.planner import side_towards, xy_cells
from kernbench.topology.cube_plan import corner_router, ucie_router
from kernbench.topology.cube_spec import CubeSpec
from kernbench.topology.grid import OPPOSITE, Corner, Grid, Side

CubePlace: TypeAlias = tuple[int, int]
DirectedLink: TypeAlias = tuple[CubePlace | str, CubePlace | str]
"""A directed link in a cube: from a router, port or corner to the next"""
Passage: TypeAlias = tuple[Side | None, Side | None]
"""The sides by which a ring enters and leaves a cube; None in a ring of one cube"""
_MOST_CORNER_ORDERS = 24


@value
class CubeForm:
    """The routers of a cube, and the corner of each PE that has part in a ring."""

    noc: Grid
    corners: tuple[Corner, ...]

    @staticmethod
    def of(cube: CubeSpec, pes: int) -> CubeForm:
        """Return the form of a cube whose first ``pes`` PEs are used."""
        return CubeForm(cube.noc.grid, tuple([cube.pe_layout.corner_of(pe) for pe in range(pes)]))


@value
class RingPe:
    """A PE on a ring: its cube, its number in the cube, and the part of the cube's columns that it computes."""

    cube: int
    pe: int
    part: int


@value
class CubeRing:
    """The rings of a block of cubes. ``rings[g]`` has the places of group g in the order of its ring."""

    cubes: tuple[int, ...]
    rings: tuple[tuple[RingPe, ...], ...]

    @property
    def parts(self) -> int:
        """Return the number of PEs of a group in a cube."""
        return len(self.rings[0]) // len(self.cubes)


def block_counts(mesh: Grid, cubes: int) -> list[int]:
    """Return the numbers of equal blocks into which the first ``cubes`` cubes can be divided: 1, 2 and more.

    A block has complete rows of the mesh, or is a piece of one row.
    """
    counts = range(1, cubes // 2 + 1)
    return [1] + [n for n in counts if n > 1 and cubes % n == 0 and (cubes <= mesh.w or cubes // n % mesh.w == 0)]


@lru_cache(maxsize=64)
def plan_rings(mesh: Grid, cube: CubeForm, cubes: int, blocks: int = 1) -> tuple[CubeRing, ...]:
    """Return the rings of each of ``blocks`` equal blocks of the first ``cubes`` cubes of a mesh.

    An even number of PEs forms two groups, an odd number one.
    """
    size = cubes // blocks
    return tuple([_ring_of_block(mesh, cube, tuple(range(i * size, (i + 1) * size))) for i in range(blocks)])


def _ring_of_block(mesh: Grid, form: CubeForm, cubes: tuple[int, ...]) -> CubeRing:
    cells = order_cells([mesh.xy(cube) for cube in cubes])
    order = tuple([mesh.index(*cell) for cell in cells])
    paths = _paths(form, cells)
    forward = [RingPe(cube, pe, part) for cube, path in zip(order, paths, strict=True) for pe, part in path[0]]
    backward = [
        RingPe(cube, pe, part)
        for cube, path in zip(reversed(order), reversed(paths), strict=True)
        for pe, part in path[1]
    ]
    return CubeRing(order, (tuple(forward), tuple(backward)) if backward else (tuple(forward),))


@lru_cache(maxsize=256)
def busiest_link(mesh: Grid, cubes: int, n_blocks: int, has_places: bool, b_by_rows: bool) -> float:
    """Return the bytes over the busiest link while cubes read B, as a part of the bytes of B that each cube reads.

    A matrix by rows is stored by all cubes alike. Else each cube stores an equal part of the columns. If a cube has
    the columns of the cubes in its place of all blocks (``has_places``), it reads these cubes, else cubes in a row.
    """
    size, bytes_over = cubes // n_blocks, Counter[DirectedLink]()
    for cube in range(cubes):
        place = cube % size
        in_places = range(place, cubes, size) if has_places else range(place * n_blocks, (place + 1) * n_blocks)
        sources = range(cubes) if b_by_rows else in_places
        for source in sources:
            for link in pairwise(xy_cells(mesh.xy(source), mesh.xy(cube))):
                bytes_over[link] += 1
    return max(bytes_over.values(), default=0) / (cubes if b_by_rows else n_blocks)


@lru_cache(maxsize=256)
def links_around(mesh: Grid, cubes: int, stores: int) -> int:
    """Return the number of links between the first ``stores`` of the first ``cubes`` cubes and the others of these."""
    pairs = product(range(stores), range(stores, cubes))
    return sum(distance(mesh.xy(inner), mesh.xy(outer)) == 1 for inner, outer in pairs)


# --- the order of cubes


def distance(a: CubePlace, b: CubePlace) -> int:
    """Return the number of links between two cells of a grid."""
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def order_cells(cells: Sequence[CubePlace]) -> list[CubePlace]:
    """Return cells of a grid in the order of a short closed ring.

    The ring grows by pairs of neighbours beside one of its hops, and at the end by single cells. On a line, it then
    goes out and back in hops of two links.
    """
    ring, rest = list(cells[:2]), dict.fromkeys(cells[2:])
    while rest:
        place = _place_of_pair(ring, rest)
        if place is None:
            place = min(
                ((i, (cell,)) for i in range(len(ring)) for cell in rest), key=lambda choice: _growth(ring, *choice)
            )
        at, added = place
        ring[at + 1 : at + 1] = added
        for cell in added:
            del rest[cell]
    return ring


def _place_of_pair(ring: Sequence[CubePlace], rest: dict[CubePlace, None]) -> tuple[int, tuple[CubePlace, ...]] | None:
    """Return a hop of the ring and two cells beside it, which the ring can pass through without a longer hop."""
    for i, (x, y) in enumerate(ring):
        after = ring[(i + 1) % len(ring)]
        if distance((x, y), after) != 1:
            continue
        dx, dy = after[0] - x, after[1] - y
        for side_x, side_y in ((dy, dx), (-dy, -dx)):
            pair = (x + side_x, y + side_y), (after[0] + side_x, after[1] + side_y)
            if pair[0] in rest and pair[1] in rest:
                return i, pair
    return None


def _growth(ring: Sequence[CubePlace], at: int, added: tuple[CubePlace, ...]) -> tuple[int, int]:
    """Return by how many links the ring grows, and its longest new hop."""
    cells = (ring[at], *added, ring[(at + 1) % len(ring)])
    hops = [distance(a, b) for a, b in pairwise(cells)]
    return sum(hops) - distance(cells[0], cells[-1]), max(hops)


# --- the paths in a cube


def _paths(form: CubeForm, cells: Sequence[CubePlace]) -> list[tuple[tuple[tuple[int, int], ...], ...]]:
    """Return, for each cube of a ring, the (PE, part) of both groups in the order of their rings."""
    n = len(cells)
    passages: list[tuple[Passage, Passage]] = []
    transits: dict[CubePlace, list[Passage]] = {}
    for i, cell in enumerate(cells):
        before, after = cells[i - 1], cells[(i + 1) % n]
        passages.append(
            ((_arrival(before, cell), _departure(cell, after)), (_arrival(after, cell), _departure(cell, before)))
        )
        for start, end in ((cell, after), (after, cell)):
            for behind, here, ahead in zip(*(list(xy_cells(start, end))[j:] for j in range(3)), strict=False):
                transits.setdefault(here, []).append((side_towards(here, behind), side_towards(here, ahead)))
    return [
        _path_of(form, passage, tuple(sorted(transits.get(cell, []), key=str)))
        for cell, passage in zip(cells, passages, strict=True)
    ]


def _departure(cell: CubePlace, after: CubePlace) -> Side | None:
    """Return the side by which messages leave a cube for another one; None for the same cube."""
    route = list(xy_cells(cell, after))
    return side_towards(*route[:2]) if len(route) > 1 else None


def _arrival(before: CubePlace, cell: CubePlace) -> Side | None:
    route = list(xy_cells(before, cell))
    return OPPOSITE[side_towards(*route[-2:])] if len(route) > 1 else None


@lru_cache(maxsize=1024)
def _path_of(
    form: CubeForm, passages: tuple[Passage, Passage], transits: tuple[Passage, ...]
) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Return the (PE, part) of the groups of a cube. ``passages``: the sides of each group's ring.

    ``transits``: messages that pass through the cube between others.
    """
    corners: dict[Corner, list[int]] = {}
    for pe, corner in enumerate(form.corners):
        corners.setdefault(corner, []).append(pe)
    used = Counter(link for passage in transits for link in _links(form.noc, passage, ()))
    best: tuple[tuple[int, int], tuple[tuple[int, ...], ...]] | None = None
    for groups in _divisions(corners):
        orders = [list(permutations(group))[:_MOST_CORNER_ORDERS] for group in groups]
        links = [
            [_links(form.noc, passage, [corner for corner, _ in stops]) for stops in group_orders]
            for passage, group_orders in zip(passages, orders, strict=True)
        ]
        for choice in product(*map(range, map(len, orders))):
            uses = used.copy()
            for group, number in enumerate(choice):
                uses.update(links[group][number])
            cost = sum(count - 1 for count in uses.values()), uses.total()
            if best is None or cost < best[0]:
                stops_of = [orders[group][number] for group, number in enumerate(choice)]
                best = cost, tuple([tuple([pe for _, pes in stops for pe in pes]) for stops in stops_of])
    assert best is not None, "a cube has a PE"
    return tuple([_with_parts(form, group) for group in best[1]])


_Stops: TypeAlias = tuple[tuple[Corner, tuple[int, ...]], ...]


def _divisions(corners: dict[Corner, list[int]]) -> list[tuple[_Stops, _Stops]]:
    """Return divisions of a cube's PEs into two groups of equal size, as corners with PEs.

    As few corners as possible have PEs of both groups. An odd number of PEs is one group.
    """
    sizes = [len(pes) for pes in corners.values()]
    total = sum(sizes)
    if total % 2:
        return [(tuple([(corner, tuple(pes)) for corner, pes in corners.items()]), ())]

    def shared(counts: tuple[int, ...]) -> int:
        return sum(0 < count < size for count, size in zip(counts, sizes, strict=True))

    halves = [counts for counts in product(*(range(size + 1) for size in sizes)) if 2 * sum(counts) == total]
    fewest = min(map(shared, halves))
    divisions = []
    for counts in halves:
        if shared(counts) == fewest:
            split = [(corner, tuple(pes), count) for (corner, pes), count in zip(corners.items(), counts, strict=True)]
            first = tuple([(corner, pes[:count]) for corner, pes, count in split if count])
            second = tuple([(corner, pes[count:]) for corner, pes, count in split if count < len(pes)])
            divisions.append((first, second))
    return divisions


def _links(noc: Grid, passage: Passage, stops: Sequence[Corner]) -> list[DirectedLink]:
    """Return the directed links of a cube that a ring uses which stops at corners in order."""
    entry, leave = passage
    points = [*([] if entry is None else [entry]), *stops, *([] if leave is None else [leave])]
    if entry is None and leave is None and len(stops) > 1:
        points.append(stops[0])
    links: list[DirectedLink] = []
    for start, end in pairwise(points):
        cells = list(xy_cells(_router(noc, start), _router(noc, end)))
        links += [(start, cells[0]), *pairwise(cells), (cells[-1], end)]
    return links


def _router(noc: Grid, point: str) -> CubePlace:
    """Return the router of a corner or of the port at a side."""
    return corner_router(noc, point) if len(point) > 1 else ucie_router(noc, point)  # type: ignore[arg-type]


def _with_parts(form: CubeForm, group: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Return the PEs of a group, each with the part of the cube's columns that it computes.

    Columns are stored by PEs in order, so part j of n is stored by PEs from j pes / n on. A PE gets the part that is
    stored nearest to it.
    """
    pes, parts, free = len(form.corners), len(group), set(range(len(group)))

    def far(pe: int, part: int) -> int:
        owner = min(pes - 1, part * pes // parts)
        return distance(*(corner_router(form.noc, form.corners[number]) for number in (pe, owner)))

    part_of: dict[int, int] = {}
    for _, pe, part in sorted((far(pe, part), pe, part) for pe in group for part in range(parts)):
        if pe not in part_of and part in free:
            part_of[pe] = part
            free.remove(part)
    return tuple([(pe, part_of[pe]) for pe in group])
