"""What express transfers do on their links: claims, what they hold in a FIFO, and what observers are told."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from kernbench.transport.state import Transfer
from kernbench.transport.watch import Watch


class Claim:
    """An express transfer's use of one link (``hop`` of its route), or of its port (``hop`` -1).

    ``free_before`` and ``ready_before`` are the link's state without it; ``over_at`` is when its use ends; ``peak`` the
    most bytes it finds in the FIFO, its own included; ``earlier`` are the claims whose bytes may still be there when it
    comes, if they have to be known one by one.
    """

    __slots__ = ("earlier", "free_before", "hop", "over_at", "peak", "ready_before", "transfer")

    def __init__(self, transfer: Transfer, hop: int, free_before: int, ready_before: int, over_at: int) -> None:
        self.transfer = transfer
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
        return transfer.nbytes - transfer.profile.started_bytes(self.hop, now - transfer.start_ps)

    def unstarted_ps(self, now: int) -> int:
        """Serialisation time of those bytes: full packets, and the last one."""
        nbytes, last_bytes = self.unstarted_bytes(now), self.transfer.last_bytes
        if not nbytes:
            return 0
        link, packet_bytes = self.transfer.route.links[self.hop], self.transfer.route.packet_bytes
        full = (nbytes - last_bytes) // packet_bytes
        return full * link.serialise_ps(packet_bytes) + link.serialise_ps(last_bytes)

    def peak_until(self, now: int) -> int:
        """Most bytes in the FIFO at any of its grants up to ``now``, the earlier claims' included."""
        transfer, profile = self.transfer, self.transfer.profile
        first = transfer.start_ps + profile.offsets[self.hop]
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
        first = self.transfer.start_ps + self.transfer.profile.offsets[self.hop]
        self.earlier = _still_there(claims, first)
        self.peak = self.peak_until(self.over_at) if self.transfer.profile.n_full else self._held_at(first)

    def _held_at(self, at: int) -> int:
        """Bytes in the FIFO at ``at``: its own, and those of the claims before it."""
        return sum(
            each.transfer.profile.resident_bytes(each.hop, at - each.transfer.start_ps)
            for each in (self, *self.earlier)
        )


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


class Claims:
    """The claims on a link or a port, in the order of time, and what they hold in the FIFO behind a link.

    What they hold is asked for at the moment when a newcomer is granted the link, which may be in the future. Each
    counts with the most it holds at once until it is gone: exact when all are of one packet, else too much. Transfers
    stand there, and moments are asked for, in the order of time.
    """

    __slots__ = ("occupancy", "occupied_bytes", "queue", "streams")

    def __init__(self) -> None:
        self.queue: deque[Claim] = deque()
        self.occupancy: deque[tuple[int, int, bool]] = deque()  # until when, bytes, whether of more than one packet
        self.occupied_bytes = 0
        self.streams = 0  # how many of them have more than one packet

    def expire(self, now: int) -> int:
        """Forget the claims whose use of this place is over; the most bytes that one of them found.

        One that ends here may be over before one that still waits in the FIFO; it goes together with that.
        """
        queue, peak = self.queue, 0
        while queue and queue[0].over_at <= now:
            claim = queue.popleft()
            claim.earlier = ()  # nobody asks any more; do not keep a chain of the past alive
            peak = claim.peak if claim.peak > peak else peak
        return peak

    def standing_at(self, when: int) -> int:
        """Bytes in the FIFO at ``when``."""
        occupancy = self.occupancy
        while occupancy and occupancy[0][0] <= when:
            _, nbytes, stream = occupancy.popleft()
            self.occupied_bytes -= nbytes
            self.streams -= stream
        return self.occupied_bytes

    def occupy(self, claim: Claim, at: int, peak: int) -> None:
        """``claim`` stands in the FIFO from ``at`` on; the most there is then is noted if it may exceed ``peak``."""
        profile = claim.transfer.profile
        claim.peak = own = profile.peaks[claim.hop]
        others = self.standing_at(at)
        stream = profile.n_full > 0
        if others and own + others > peak:
            if stream or self.streams:
                claim.find_peak(reversed(self.queue))
            else:
                claim.peak = own + others
        self.occupancy.append((claim.over_at, own, stream))
        self.occupied_bytes += own
        self.streams += stream

    def clear(self) -> None:
        """All are turned into packets."""
        self.queue.clear()
        self.occupancy.clear()
        self.occupied_bytes = self.streams = 0


def tell_course(transfer: Transfer, watch: Watch, now: int) -> None:
    """Tell who observes it what express ``transfer`` has done by ``now``: its hops, an interval per link."""
    profile, times, after = transfer.profile, transfer.hop_times, now - transfer.start_ps
    for hop, link in enumerate(transfer.route.links):
        nbytes = profile.started_bytes(hop, after)
        if not nbytes:
            continue
        start = transfer.start_ps + profile.offsets[hop]
        last = (nbytes - 1) // profile.packet_bytes
        if times is not None:
            times.starts[hop] = start
            if last == profile.n_full:
                times.tails[hop] = transfer.start_ps + profile.tail(last, hop)
        if watch.keeps_links:
            end = transfer.start_ps + profile.start(last, hop) + link.serialise_ps(transfer.size_of(last))
            watch.carried(transfer, link, start, end, nbytes)
