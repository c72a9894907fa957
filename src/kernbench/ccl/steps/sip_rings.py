"""The ring over all SIPs, on which a PE works with the same PE of the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from kernbench.ccl.sip_ring import ring_order
from kernbench.ccl.sip_ring import sip_ring as sip_ring_of
from kernbench.ccl.steps.rings import RingPlace
from kernbench.ccl.topologies import direct_direction
from kernbench.common.errors import InputError
from kernbench.topology.spec import TopologySpec

RingArgs: TypeAlias = tuple[tuple[int, ...], str, str]
"""Ranks in the order of the ring, and the queues to the next of this rank and from the one before it."""


class SipRing(NamedTuple):
    """``ring`` over places; ``order`` has the rank of each place."""

    ring: RingPlace
    order: tuple[int, ...]

    def place_of(self, rank: int) -> int:
        """Where in the ring a rank is."""
        return self.order.index(rank)

    def after(self, rank: int) -> int:
        """How many places this rank is behind ``rank`` in the direction of sending."""
        return (self.ring.place - self.place_of(rank)) % self.ring.size

    def slots(self) -> list[int]:
        """For each place, which block of a tensor with one for every rank is its rank's: they are in order of rank."""
        ranks = sorted(self.order)
        return [ranks.index(rank) for rank in self.order]


def ring_values(spec: TopologySpec, sip: int) -> dict[str, Any]:
    """What ``ring_args`` takes, for the PEs of SIP ``sip`` of a machine: the ring of ``kernbench.ccl.sip_ring``."""
    places = sip_ring_of(spec)
    if places is None:
        return {"ring_order": (0,)}
    here = places[sip]
    return {
        "ring_order": ring_order(places),
        "next_direction": here.next_direction,
        "prev_direction": here.prev_direction,
    }


def ring_values_among(sips: Sequence[int], sip: int) -> dict[str, Any]:
    """The same for a ring over some SIPs, of which ``sip`` is one, by the direct queues between them."""
    at = sips.index(sip)
    after, before = sips[(at + 1) % len(sips)], sips[at - 1]
    return {
        "ring_order": tuple(sips),
        "next_direction": direct_direction(after),
        "prev_direction": direct_direction(before),
    }


def ring_args(
    world_size: int,
    *,
    ring_order: Sequence[int] | None = None,
    next_direction: str = "global_E",
    prev_direction: str = "global_W",
    ranks_are_sips: bool = True,
    **_: object,
) -> RingArgs:
    """The arguments that ``sip_ring`` takes: a ring over some ranks; without an order all, by number.

    InputError for an order that is none, and where ranks are no SIPs.
    """
    check_ranks(world_size, ranks_are_sips=ranks_are_sips)
    order = tuple(range(world_size)) if ring_order is None else tuple(ring_order)
    if not order or len(set(order)) < len(order) or not set(order) <= set(range(world_size)):
        raise InputError(f"ring_order={order}: has to name ranks of 0..{world_size - 1}, each once")
    return order, next_direction, prev_direction


def check_ranks(world_size: int, *, ranks_are_sips: bool) -> None:
    """InputError for ranks that are PEs, where an algorithm is over SIPs."""
    if not ranks_are_sips:
        raise InputError(f"this algorithm is over SIPs: its ranks are all of them, not {world_size} PEs")


def checked_rank(what: str, rank: int, world_size: int) -> int:
    """``rank`` if it is one; else InputError."""
    if not 0 <= rank < world_size:
        raise InputError(f"{what}={rank}: there are ranks 0..{world_size - 1}")
    return rank


def sip_ring(order: tuple[int, ...], after: str, before: str, tl: Any) -> SipRing:
    """This rank's place in the ring: ranks are SIPs."""
    return SipRing(RingPlace(after, before, order.index(tl.program_id(2)), len(order)), order)
