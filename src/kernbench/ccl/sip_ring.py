"""Rings over SIPs: of all of them along the scale-up links wherever they have one, or of some by direct queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kernbench.ccl.rings import RingPlace
from kernbench.ccl.topologies import direct_direction, global_direction
from kernbench.common.errors import InputError
from kernbench.topology.fabric import sip_neighbours
from kernbench.topology.grid import OPPOSITE, Grid
from kernbench.topology.spec import SipsSpec, TopologySpec


class SipRing(NamedTuple):
    """``ring`` over places, by the queues of ``fabric_edges``; ``order`` has the rank, or SIP, of each place."""

    ring: RingPlace
    order: tuple[int, ...]

    def after(self, rank: int) -> int:
        """How many places this rank is behind ``rank`` in the direction of sending."""
        return (self.ring.place - self.order.index(rank)) % self.ring.size

    def slots(self) -> list[int]:
        """For each place, which block of a tensor with one for every rank is its rank's: they are in order of rank."""
        ranks = sorted(self.order)
        return [ranks.index(rank) for rank in self.order]


def over_sips(
    rank: int, world_size: int, /, *, sips: SipRing | None = None, ranks_are_sips: bool = True, **_others: object
) -> SipRing:
    """The ring that a schedule was given; else all ranks by number. InputError where ranks are no SIPs."""
    check_ranks(world_size, ranks_are_sips=ranks_are_sips)
    by_number = RingPlace("global_E", "global_W", rank, world_size)
    return sips or SipRing(by_number, tuple(range(world_size)))


def check_ranks(world_size: int, *, ranks_are_sips: bool) -> None:
    """InputError for ranks that are PEs, where an algorithm is over SIPs."""
    if not ranks_are_sips:
        raise InputError(f"this algorithm is over SIPs: its ranks are all of them, not {world_size} PEs")


def checked_rank(what: str, rank: int, world_size: int) -> int:
    """``rank`` if it is one; else InputError."""
    if not 0 <= rank < world_size:
        raise InputError(f"{what}={rank}: there are ranks 0..{world_size - 1}")
    return rank


def ring_of_all(spec: TopologySpec, sip: int) -> SipRing:
    """The ring over all SIPs of a machine, for the PEs of SIP ``sip``."""
    order = sip_order(spec.system.sips)

    def directions(a: int, b: int) -> tuple[str, str]:
        side = next((side for side, peer in sip_neighbours(spec.system.sips, a).items() if peer == b), None)
        if side is None:
            return direct_direction(b), direct_direction(a)
        return global_direction(side), global_direction(OPPOSITE[side])

    return _placed(order, sip, directions)


def ring_among(sips: Sequence[int], sip: int) -> SipRing:
    """The same over some SIPs, of which ``sip`` is one, by the direct queues between them."""
    return _placed(sips, sip, lambda a, b: (direct_direction(b), direct_direction(a)))


def _placed(order: Sequence[int], sip: int, directions: Callable[[int, int], tuple[str, str]]) -> SipRing:
    """``directions`` from one SIP to another: by which queue it goes, by which it arrives."""
    at, size = order.index(sip), len(order)
    out, come = directions(sip, order[(at + 1) % size])[0], directions(order[at - 1], sip)[1]
    return SipRing(RingPlace(out, come, at, size), tuple(order))


def sip_order(sips: SipsSpec) -> list[int]:
    """All SIPs in the order of their ring.

    Rings, tori and meshes with an even side have a ring of links. Else a line of links is closed by a direct pair
    (other meshes), or every step is one (``fully_connected``, ``switch``).
    """
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
