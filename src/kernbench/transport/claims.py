"""What an express transfer does on its links: claims, per link, and its course, in absolute time."""

from __future__ import annotations

from collections.abc import Iterable

from kernbench.core.hook import Hook
from kernbench.transport.link import Link, LinkBusy
from kernbench.transport.route import Profile
from kernbench.transport.transfer import Transfer


class Claim:
    """An express transfer's use of one link (``hop`` of its route), or of its port (``hop`` -1), by its ``profile``.

    ``free_before`` and ``ready_before`` are the link's state without it; ``over_at`` is when its use ends; ``peak`` the
    most bytes it finds in the FIFO, its own included; ``earlier`` are the claims whose bytes may still be there when it
    comes, if they have to be known one by one.
    """

    __slots__ = ("earlier", "free_before", "hop", "over_at", "peak", "profile", "ready_before", "transfer")

    def __init__(
        self, transfer: Transfer, profile: Profile, hop: int, free_before: int, ready_before: int, over_at: int
    ) -> None:
        self.transfer = transfer
        self.profile = profile
        self.hop = hop
        self.free_before = free_before
        self.ready_before = ready_before
        self.over_at = over_at
        self.peak = 0
        self.earlier: tuple[Claim, ...] = ()

    @property
    def ends_here(self) -> bool:
        """Whether the link is its last, so that it never is in the FIFO behind."""
        return self.hop == len(self.transfer.route.links) - 1

    def unstarted_bytes(self, now: int) -> int:
        """Bytes that have not been granted the link by ``now``."""
        transfer = self.transfer
        return transfer.nbytes - transfer.route.started_bytes(self.profile, self.hop, now - transfer.start_ps)

    def unstarted_ps(self, now: int) -> int:
        """Serialisation time of those bytes."""
        link = self.transfer.route.links[self.hop]
        return serialisation(link, self.unstarted_bytes(now), self.transfer.last_bytes)

    def resident(self, at: int) -> int:
        """Its bytes in the FIFO behind the link at time ``at``."""
        if self.ends_here:
            return 0
        return self.transfer.route.resident_bytes(self.profile, self.hop, at - self.transfer.start_ps)

    def peak_until(self, now: int) -> int:
        """Most bytes in the FIFO at any of its grants up to ``now``, the earlier claims' included."""
        transfer, profile = self.transfer, self.profile
        first = transfer.start_ps + transfer.route.offsets[self.hop]
        if now < first or self.ends_here:
            return 0
        if not profile.n_full:
            return self.peak
        last = min((now - first) // profile.pace[self.hop], profile.n_full)
        peak = max(self._held_at(first + k * profile.pace[self.hop]) for k in (max(last - 1, 0), last))
        for k in range(last + 1):
            at = first + k * profile.pace[self.hop]
            if not any(e.over_at > at for e in self.earlier):
                break
            peak = max(peak, self._held_at(at))
        return peak

    def find_peak(self, claims: Iterable[Claim]) -> None:
        """Set ``peak`` from the ``claims`` on the link before this one, of which some may have several packets."""
        first = self.transfer.start_ps + self.transfer.route.offsets[self.hop]
        self.earlier = _still_there(claims, first)
        self.peak = self.peak_until(self.over_at) if self.profile.n_full else self._held_at(first)

    def _held_at(self, at: int) -> int:
        return self.resident(at) + sum(e.resident(at) for e in self.earlier)


def _still_there(claims: Iterable[Claim], at: int) -> tuple[Claim, ...]:
    """Those that may have bytes in the FIFO at ``at`` or later, of ``claims`` with the last one first.

    They leave it in order, so the last ones are enough.
    """
    found: list[Claim] = []
    for claim in claims:
        if claim.ends_here:
            continue
        if claim.over_at <= at:
            break
        found.append(claim)
    return tuple(found)


def serialisation(link: Link, nbytes: int, last_bytes: int) -> int:
    """Time on ``link`` of ``nbytes`` in full packets and, if they do not divide, one of ``last_bytes``."""
    if not nbytes:
        return 0
    full = (nbytes - last_bytes) // link.packet_bytes
    return full * link.packet_ps + link.serialise_ps(last_bytes)


class Course:
    """The undisturbed course of an express transfer in absolute time (the formulas of ``route.py``)."""

    __slots__ = ("links", "n_full", "offsets", "profile", "start_ps", "transfer")

    def __init__(self, transfer: Transfer) -> None:
        assert transfer.passage is not None
        self.transfer = transfer
        self.profile: Profile = transfer.passage.profile
        self.start_ps = transfer.start_ps
        self.n_full = self.profile.n_full
        self.links = transfer.route.links
        self.offsets = transfer.route.offsets

    def start(self, number: int, hop: int) -> int:
        """When packet ``number`` is granted link ``hop``."""
        return self.start_ps + self.offsets[hop] + number * self.profile.pace[hop]

    def tail(self, number: int, hop: int) -> int:
        """When its last byte has left onto link ``hop``."""
        if number == self.n_full:
            return self.start_ps + self.offsets[hop] + self.profile.ends[hop]
        return self.start(number, hop) + self.profile.pace[hop]

    def first_pending(self, now: int) -> int:
        """The first packet that has not wholly left onto the last link."""
        last = len(self.links) - 1
        return min(max((now - self.start(0, last)) // self.profile.pace[last], 0), self.n_full)

    def note_hops(self, now: int) -> None:
        """Fill in the hop times of what has happened by ``now``."""
        times = self.transfer.hop_times
        assert times is not None
        for hop in range(len(self.links)):
            if self.start(0, hop) <= now:
                times.starts[hop] = self.start(0, hop)
            if self.start(self.n_full, hop) <= now:
                times.tails[hop] = self.tail(self.n_full, hop)

    def report(self, hook: Hook[LinkBusy], now: int) -> None:
        """Emit one interval per link for the packets granted by ``now``."""
        transfer = self.transfer
        for hop, link in enumerate(self.links):
            start = self.start(0, hop)
            nbytes = transfer.route.started_bytes(self.profile, hop, now - self.start_ps)
            if nbytes:
                last = (nbytes - 1) // self.profile.packet_bytes
                end = self.start(last, hop) + link.serialise_ps(transfer.size_of(last))
                hook.emit(LinkBusy(link.src, link.dst, transfer.serial, start, end, nbytes))
