"""One ring over all SIPs, along the scale-up links wherever they have one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernbench.ccl.topologies import direct_direction, global_direction
from kernbench.topology.fabric import sip_neighbours
from kernbench.topology.grid import OPPOSITE, Grid
from kernbench.topology.spec import SipsSpec, TopologySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SipRingPlace:
    """The place of a SIP in the ring: where what it passes on goes, and where what it gets comes from.

    The directions are those of ``fabric_edges``, and of two SIPs in a row ``next_direction`` of the one and
    ``prev_direction`` of the other are the two ends of one queue.
    """

    next_direction: str
    next_sip: int
    prev_direction: str
    prev_sip: int


def sip_ring(spec: TopologySpec) -> tuple[SipRingPlace, ...] | None:
    """The place of every SIP, by number; None for one SIP.

    Rings, tori and meshes with an even side have a ring of links. Else a line of links is closed by a direct pair
    (other meshes), or every step is one (``fully_connected``, ``switch``).
    """
    sips = spec.system.sips
    if sips.count == 1:
        return None
    order = _order(sips)
    steps = {a: _step(sips, a, b) for a, b in zip(order, (*order[1:], order[0]), strict=True)}
    before = {b: a for a, (_, b, _) in steps.items()}
    return tuple(
        SipRingPlace(
            next_direction=steps[sip][0],
            next_sip=steps[sip][1],
            prev_direction=steps[before[sip]][2],
            prev_sip=before[sip],
        )
        for sip in range(sips.count)
    )


def ring_order(ring: Sequence[SipRingPlace]) -> tuple[int, ...]:
    """The SIPs in the order of a ring, from SIP 0 on."""
    order = [0]
    while len(order) < len(ring):
        order.append(ring[order[-1]].next_sip)
    return tuple(order)


def _step(sips: SipsSpec, a: int, b: int) -> tuple[str, int, str]:
    """From ``a`` to ``b``: the direction it goes, ``b``, the direction it arrives on."""
    side = next((side for side, peer in sip_neighbours(sips, a).items() if peer == b), None)
    if side is None:
        return direct_direction(b), b, direct_direction(a)
    return global_direction(side), b, global_direction(OPPOSITE[side])


def _order(sips: SipsSpec) -> list[int]:
    """The SIPs in the order of the ring."""
    grid = sips.grid
    if not sips.two_dimensional or 1 in (grid.w, grid.h):
        return list(range(sips.count))
    if grid.w % 2 == 0 or grid.h % 2 == 0:
        return _closed_snake(grid) if grid.h % 2 == 0 else _turned(_closed_snake, grid)
    if sips.topology == "torus_2d":
        return _around_odd_torus(grid) if grid.w <= grid.h else _turned(_around_odd_torus, grid)
    return [grid.index(x, y) for y in range(grid.h) for x in _to_and_fro(range(grid.w), y)]


def _turned(walk: Callable[[Grid], list[int]], grid: Grid) -> list[int]:
    """The walk with rows and columns exchanged."""
    turned = Grid(grid.h, grid.w)
    return [grid.index(x, y) for y, x in map(turned.xy, walk(turned))]


def _closed_snake(grid: Grid) -> list[int]:
    """East along the first row, to and fro through the rest of the others, back up the first column: ``h`` is even."""
    there = [(x, y) for y in range(grid.h) for x in _to_and_fro(range(1, grid.w), y)]
    back = [(0, y) for y in reversed(range(1, grid.h))]
    return [grid.index(x, y) for x, y in [(0, 0), *there, *back]]


def _to_and_fro(columns: range, y: int) -> range:
    return columns if y % 2 == 0 else columns[::-1]


def _around_odd_torus(grid: Grid) -> list[int]:
    """Once around every row, each beginning below the end of the one before; ``w <= h``, both odd.

    A row passed to the west ends one column further east than it began, and the other way round. So w more rows to
    the west than to the east end in the first column, above the beginning.
    """
    order, x = [], 0
    for y in range(grid.h):
        step = -1 if y < (grid.w + grid.h) // 2 else 1
        row = [(x + step * i) % grid.w for i in range(grid.w)]
        order += [grid.index(column, y) for column in row]
        x = row[-1]
    return order
