"""The express path: an uncontended transfer costs one event, and closed forms give its times (``timing.py``).

Invariant: at any time a link carries express transfers or packets, never both. A new transfer joins other express
transfers only if three conditions hold on every link:

- the new transfer enters the link after the others have left the link;
- the new transfer reaches the FIFO behind the link after the others have left that FIFO;
- the FIFO never overflows.

Otherwise the new transfer uses packets. The express transfers on its port and its links, and all that share a link with
these, become packets too, at their current places.

Most transfers find a free route: every link and FIFO is empty when they arrive, which ``Link.express_free_at`` shows at
once. Such a transfer only advances ``express_free_at``. The transfer *claims* its links, and changes their figures,
only when another transfer or an observer needs these figures. A transfer that is delivered without claims is only
added to its route's number of such transfers (``Route.carried``).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence

from kernbench.core.clock import NEVER, Clock
from kernbench.transport.packets import arrive, collect, deliver, join_queue, offer, refill, resume
from kernbench.transport.state import Course, Follower, Link, LinkUse, Packet, PacketInput, Port, Route, Transfer
from kernbench.transport.timing import AT_ONCE, LinkFigures, Profile
from kernbench.transport.watch import Watch


class Claim:
    """The use of one link (``hop`` of the route), or of the port (``hop`` -1), by an express transfer.

    - ``free_before``, ``ready_before``: the link's state without the claim. ``over_at``: the end of the use.
    - ``peak``: the largest number of bytes in the FIFO at the claim's grants, including the claim's bytes.
    - ``earlier``: the claims whose bytes may still be in the FIFO when this claim arrives, if exact sums need them.
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
        """True on the transfer's last link, which has no FIFO behind it for this transfer."""
        return self.hop == len(self.transfer.route.links) - 1

    def unstarted_bytes(self, now: int) -> int:
        """Return the bytes that have not been granted the link by ``now``."""
        transfer, profile = self.transfer, self.transfer.profile
        return profile.nbytes - profile.started_bytes(self.hop, now - transfer.start_ps)

    def unstarted_ps(self, now: int) -> int:
        """Return the serialisation time of the ``unstarted_bytes`` in ps: full packets, and the last one."""
        nbytes, last_bytes = self.unstarted_bytes(now), self.transfer.last_bytes
        if not nbytes:
            return 0
        link, packet_bytes = self.transfer.route.links[self.hop], self.transfer.route.packet_bytes
        full = (nbytes - last_bytes) // packet_bytes
        return full * link.serialise_ps(packet_bytes) + link.serialise_ps(last_bytes)

    def peak_until(self, now: int) -> int:
        """Return the largest number of bytes in the FIFO at any grant of this claim up to ``now``.

        The sum includes the bytes of earlier claims.
        """
        transfer, profile = self.transfer, self.transfer.profile
        first = transfer.start_ps + profile.offsets[self.hop]
        if now < first or self.ends_here:
            return 0
        if not profile.n_full:
            return self.peak
        last = min((now - first) // profile.pace[self.hop], profile.n_full)
        peak = max(self._sum_fifo_bytes(first + k * profile.pace[self.hop]) for k in (max(last - 1, 0), last))
        for k in range(last + 1):
            at = first + k * profile.pace[self.hop]
            if not any(e.over_at > at for e in self.earlier):
                break
            peak = max(peak, self._sum_fifo_bytes(at))
        return peak

    def find_peak(self, claims: Iterable[Claim]) -> None:
        """Set ``peak``, also with claims of several packets. ``claims``: earlier claims on the link, the last first."""
        first = self.transfer.start_ps + self.transfer.profile.offsets[self.hop]
        self.earlier = _still_there(claims, first)
        self.peak = self.peak_until(self.over_at) if self.transfer.profile.n_full else self._sum_fifo_bytes(first)

    def _sum_fifo_bytes(self, at: int) -> int:
        """Return the bytes in the FIFO at ``at``, of this claim and of ``earlier``."""
        return sum(
            claim.transfer.profile.resident_bytes(claim.hop, at - claim.transfer.start_ps)
            for claim in (self, *self.earlier)
        )


def _still_there(claims: Iterable[Claim], at: int) -> tuple[Claim, ...]:
    """Return the claims that may have bytes in the FIFO at ``at`` or later; ``claims`` are in reverse order.

    Claims leave the FIFO in order, so the search ends at the first claim that has left.
    """
    present: list[Claim] = []
    for claim in claims:
        if claim.ends_here:
            continue
        if claim.over_at <= at:
            break
        present.append(claim)
    return tuple(present)


class Claims:
    """The claims on a link or a port, in order of time, and their bytes in the FIFO behind the link.

    The bytes are computed for the time at which a new transfer is granted the link, possibly in the future. Each
    claim counts with the most bytes that it ever has in the FIFO, until its last byte has left. The sum is exact if
    every claim has one packet, and an upper bound otherwise. Calls must come in order of time.
    """

    __slots__ = ("occupancy", "occupied_bytes", "queue", "streams")

    def __init__(self) -> None:
        self.queue: deque[Claim] = deque()
        self.occupancy: deque[tuple[int, int, bool]] = deque()  # (end, bytes, more than one packet)
        self.occupied_bytes = 0
        self.streams = 0  # number of entries with more than one packet

    def expire(self, now: int) -> int:
        """Drop the claims whose use of this place is over; return the largest ``peak`` among them.

        A claim that ends here may be over before an earlier claim that waits in the FIFO. Both are dropped together.
        """
        queue, peak = self.queue, 0
        while queue and queue[0].over_at <= now:
            claim = queue.popleft()
            claim.earlier = ()  # no longer needed; the chain of earlier claims must not stay alive
            peak = claim.peak if claim.peak > peak else peak
        return peak

    def standing_at(self, when: int) -> int:
        """Return the bytes in the FIFO at ``when``."""
        occupancy = self.occupancy
        while occupancy and occupancy[0][0] <= when:
            _, nbytes, stream = occupancy.popleft()
            self.occupied_bytes -= nbytes
            self.streams -= stream
        return self.occupied_bytes

    def occupy(self, claim: Claim, at: int, peak: int) -> None:
        """Add ``claim`` to the FIFO from ``at`` on, and set its peak exactly if the peak may exceed ``peak``."""
        profile = claim.transfer.profile
        claim.peak = own_bytes = profile.peaks[claim.hop]
        other_bytes = self.standing_at(at)
        stream = profile.n_full > 0
        if other_bytes and own_bytes + other_bytes > peak:
            if stream or self.streams:
                claim.find_peak(reversed(self.queue))
            else:
                claim.peak = own_bytes + other_bytes
        self.occupancy.append((claim.over_at, own_bytes, stream))
        self.occupied_bytes += own_bytes
        self.streams += stream

    def clear(self) -> None:
        """Remove all claims, whose transfers are packets now."""
        self.queue.clear()
        self.occupancy.clear()
        self.occupied_bytes = self.streams = 0


def report_course(transfer: Transfer, watch: Watch, now: int, reported: Sequence[int] = ()) -> None:
    """Report the express ``transfer`` up to ``now`` to observers: its hop times, and a busy interval per link.

    ``reported``: by link, the number of packets of its profile that were reported already.
    """
    profile, times, begin = transfer.profile, transfer.hop_times, transfer.start_ps
    for hop, link in enumerate(transfer.route.links):
        nbytes = profile.started_bytes(hop, now - begin)
        if not nbytes:
            continue
        last = (nbytes - 1) // profile.packet_bytes
        if times is not None:
            if times.starts[hop] < 0:
                times.starts[hop] = begin + profile.offsets[hop]
            if last == profile.n_full:
                times.tails[hop] = begin + profile.tail(last, hop)
        first = reported[hop] if reported else 0
        if watch.keeps_links and first <= last:
            start, end = begin + profile.start(first, hop), begin + profile.start(last, hop)
            end += link.serialise_ps(transfer.size_of(transfer.resumed_at + last))
            watch.note_traffic(transfer, link, start, end, nbytes - first * profile.packet_bytes)


class Express:
    """The express path: it admits transfers, and turns them back into packets."""

    def __init__(self, clock: Clock, watch: Watch) -> None:
        self.clock = clock
        self.watch = watch
        self.n_admitted = 0
        self.n_revoked = 0
        self.n_resumed = 0
        self._arrived = self._arrive
        self._unclaimed: dict[Transfer, Profile] = {}  # in flight, without claims yet, in order of admission
        self._carried: list[Route] = []  # routes with delivered traffic that the links' figures do not include yet
        self._claims: defaultdict[PacketInput, Claims] = defaultdict(Claims)
        self._reported: dict[Transfer, list[int]] = {}  # by transfer that once was packets: packets granted, by link
        self._nowhere = Link(clock, -1, ("", ""), LinkFigures(1.0, 0, NEVER, 1), watch, self.measure, arrive)
        self._nowhere.fifo = deque(maxlen=0)

    def admit(self, transfer: Transfer) -> bool:
        """Send ``transfer`` express if it is certainly uncontended; return True if it was sent."""
        port = transfer.port
        if port.queue:
            return False
        start, route, pace = self.clock.time, transfer.route, AT_ONCE
        start = start if start > port.express_free_at else port.express_free_at
        if transfer.supplies is not None:
            supply = transfer.whole_supply(start)
            if supply is None:
                return False
            start, pace = supply.start_ps, supply.pace
        timing, links = route.timing, route.links
        profile = timing.profiles.get((transfer.nbytes, pace)) or timing.profile(transfer.nbytes, pace)
        if not profile.fits:
            return False
        transfer.profile = profile
        transfer.start_ps = start
        alone = True
        for link, offset in zip(links, profile.offsets):  # noqa: B905 - of equal length; the check costs time
            if start + offset < link.express_free_at:
                if not self._follows(transfer):
                    return False
                alone = False
                break
        transfer.head_ps = start + timing.total_overhead_ps
        transfer.express = True
        self.n_admitted = transfer.admission = self.n_admitted + 1
        if alone:
            for link, gone in zip(links, profile.gone):  # noqa: B905 - as above
                link.express_free_at = start + gone
            port.express_free_at = start + profile.leaves_port_ps
            self._unclaimed[transfer] = profile
        else:
            self._claim(transfer, self.clock.time)
        self.clock.call_at(start + profile.latency_ps, self._arrived, transfer, route.deliver_rank)
        return True

    def _arrive(self, transfer: Transfer) -> None:
        now = self.clock.time
        if not transfer.express or transfer.start_ps + transfer.profile.latency_ps != now:
            return  # the transfer uses packets now, or did for a time
        profile = self._unclaimed.pop(transfer, None)
        if profile is not None:
            route = transfer.route
            carried = route.carried
            if not carried:
                self._carried.append(route)
            carried[profile] = carried.get(profile, 0) + 1
        if transfer.hop_times is not None or self.watch.keeps_links:
            report_course(transfer, self.watch, now, self._reported.pop(transfer, ()))
        transfer.express = False
        transfer.deliver(now)

    def catch_up(self) -> None:
        """Update the figures of all links to include express traffic."""
        self._claim_all()
        for route in self._carried:
            route.add_express_traffic()
        self._carried.clear()

    def measure(self, link: Link) -> LinkUse:
        """Return the use of ``link`` up to now; updates the figures of all links."""
        self.catch_up()
        return self._count(link)

    def _count(self, link: Link) -> LinkUse:
        """Return the use of ``link``, without the packets of its claims if these packets have not started yet."""
        claims = self._claims.get(link)
        if claims is None:
            return LinkUse(link.granted_bytes, link.busy_ps, link.peak)
        now = self.clock.time
        peak = link.peak = max(link.peak, claims.expire(now))
        nbytes, busy_ps = link.granted_bytes, link.busy_ps
        for claim in claims.queue:
            nbytes -= claim.unstarted_bytes(now)
            busy_ps -= claim.unstarted_ps(now)
            peak = max(peak, claim.peak_until(now))
        return LinkUse(nbytes, busy_ps, peak)

    def _follows(self, transfer: Transfer) -> bool:
        """Return True if ``transfer`` follows all other express transfers on every link of its route."""
        profile, links, start = transfer.profile, transfer.route.links, transfer.start_ps
        for link in links:
            if link.users:
                return False
        self._claim_connected(links)
        final = links[-1]
        for hop, link in enumerate(links):
            at = start + profile.offsets[hop]
            if at >= link.express_free_at:
                continue
            if at < link.free_at:
                return False
            if link is final:
                continue
            if at + link.hop_ps < link.ready_at:
                return False
            claims = self._claims[link]
            sure = not link.used and profile.peaks[hop] + claims.occupied_bytes <= link.capacity
            if not sure and not self._fits(transfer, hop, claims):
                return False
        return True

    def _fits(self, transfer: Transfer, hop: int, claims: Claims) -> bool:
        """Return True if the FIFO behind link ``hop``, with ``claims`` on it, never overflows."""
        link, profile, start = transfer.route.links[hop], transfer.profile, transfer.start_ps
        now = self.clock.time
        collect(link, now)
        link.peak = max(link.peak, link.used, claims.expire(now))
        most = profile.peaks[hop] + link.used + claims.standing_at(start + profile.offsets[hop])
        if link.used:  # packets are leaving the FIFO; a new peak would need an exact sum over time
            return most <= link.peak
        if most > link.capacity and (claims.streams or profile.n_full):
            claim = Claim(transfer, hop, 0, 0, start + profile.gone[hop])
            claim.find_peak(reversed(claims.queue))
            most = claim.peak
        return most <= link.capacity

    def _claim_all(self) -> None:
        """Let all unclaimed transfers in flight claim their links."""
        if self._unclaimed:
            now = self.clock.time
            for transfer in self._unclaimed:
                self._claim(transfer, now)
            self._unclaimed.clear()

    def _claim_connected(self, links: tuple[Link, ...]) -> None:
        """Let unclaimed transfers claim their links if they use one of ``links``, directly or through shared links.

        The claims of each link therefore stay in order of admission.
        """
        connected_links = set(links)
        connected: list[Transfer] = []
        for transfer in reversed(self._unclaimed):
            if not connected_links.isdisjoint(transfer.route.links):
                connected_links.update(transfer.route.links)
                connected.append(transfer)
        now = self.clock.time
        for transfer in reversed(connected):
            del self._unclaimed[transfer]
            self._claim(transfer, now)

    def _claim(self, transfer: Transfer, now: int) -> None:
        """Add claims of ``transfer`` to its port and its links, after all transfers admitted earlier.

        If its use of a link or port is over, other packets may use that place already. There the transfer makes no
        claim, and only adds to the figures.
        """
        profile, start, port, links = transfer.profile, transfer.start_ps, transfer.port, transfer.route.links
        final, nbytes, busy, peaks, ends = links[-1], profile.nbytes, profile.busy, profile.peaks, profile.ends
        offsets, all_claims = profile.offsets, self._claims
        for hop, (link, gone) in enumerate(zip(links, profile.gone)):  # noqa: B905 - as in ``admit``
            link.granted_bytes += nbytes
            link.busy_ps += busy[hop]
            over_at = start + gone
            if over_at <= now:
                if link is not final and peaks[hop] > link.peak:
                    link.peak = peaks[hop]
                continue
            claims = all_claims[link]
            queue = claims.queue
            if queue and queue[0].over_at <= now:
                peak = claims.expire(now)
                link.peak = peak if peak > link.peak else link.peak
            offset = offsets[hop]
            claim = Claim(transfer, hop, link.free_at, link.ready_at, over_at)
            if link is not final:
                claims.occupy(claim, start + offset, link.peak)
                link.ready_at = over_at
            queue.append(claim)
            link.free_at = start + offset + ends[hop]
            link.express_free_at = over_at if over_at > link.express_free_at else link.express_free_at
        port_end = start + profile.leaves_port_ps
        if port_end > now:
            claims = self._claims[port]
            claims.expire(now)
            claims.queue.append(Claim(transfer, -1, 0, port.ready_at, port_end))
            port.ready_at = port_end
            port.express_free_at = max(port.express_free_at, port_end)

    def revoke(self, inputs: Iterable[PacketInput]) -> None:
        """Turn express transfers that use one of ``inputs`` into packets, and all that share a link with these."""
        now = self.clock.time
        used = [place for place in inputs if _carries_express(place, now)]
        if not used:
            return
        self._claim_all()
        revoked, touched = self._closure(used, now)
        for place in touched:
            self._unclaim(place, now)
        for transfer in revoked:
            self._turn_into_packets(transfer, now)
        for place in touched:
            if isinstance(place, Link):
                resume(place)
            if place.fifo:
                offer(place, max(place.ready_at, now))
            if isinstance(place, Port):
                refill(place, now)
        self.n_revoked += len(revoked)

    def _closure(self, inputs: Iterable[PacketInput], now: int) -> tuple[list[Transfer], list[PacketInput]]:
        """Return the express transfers connected to ``inputs``, in order of admission, and all places that they claim.

        ``Transfer.admission`` gives this order. ``Transfer.serial`` does not, as it is assigned before the admission.
        """
        revoked: dict[int, Transfer] = {}
        touched: dict[int, PacketInput] = {}
        unseen = list(inputs)
        while unseen:
            place = unseen.pop()
            if place.index in touched:
                continue
            claims = self._claims[place]
            peak = claims.expire(now)
            if isinstance(place, Link):
                place.peak = max(place.peak, peak)
            if not claims.queue:
                continue
            touched[place.index] = place
            for claim in claims.queue:
                transfer = claim.transfer
                if claim.over_at > now and transfer.admission not in revoked:
                    revoked[transfer.admission] = transfer
                    unseen += [transfer.port, *transfer.route.links]
        return [revoked[n] for n in sorted(revoked)], [touched[i] for i in sorted(touched)]

    def _unclaim(self, place: PacketInput, now: int) -> None:
        """Reset a link or port to its state without express transfers."""
        claims = self._claims[place]
        first = claims.queue[0]
        place.ready_at = first.ready_before
        if isinstance(place, Link):
            place.granted_bytes, place.busy_ps, place.peak = self._count(place)
            place.free_at = first.free_before
        claims.clear()

    def _turn_into_packets(self, transfer: Transfer, now: int) -> None:
        """Make the packets of ``transfer`` that have not arrived, each at its place at ``now``."""
        profile, links = transfer.profile, transfer.route.links
        after, final = now - transfer.start_ps, len(links) - 1
        transfer.express = False
        if profile.offsets[final] > after:
            transfer.head_ps = NEVER
        report_course(transfer, self.watch, now, self._reported.pop(transfer, ()))
        for hop, link in enumerate(links):
            link.users += profile.start(profile.n_full, min(hop + 1, final)) > after
        transfer.next_packet = transfer.packets
        for number in range(profile.gone_packets(final, after), profile.n_full + 1):
            if profile.start(number, 0) > after:
                transfer.next_packet = transfer.resumed_at + number
                join_queue(transfer)
                return
            self._place(transfer, number, now)

    def _place(self, transfer: Transfer, number: int, now: int) -> None:
        """Account for the links that were granted to packet ``number``, and put the packet at the place of its head."""
        profile, links, begin = transfer.profile, transfer.route.links, transfer.start_ps
        size = transfer.size_of(transfer.resumed_at + number)
        here: PacketInput = transfer.port
        hop = tail = 0
        start = begin
        while hop < len(links) and begin + profile.start(number, hop) <= now:
            link = links[hop]
            start, tail = begin + profile.start(number, hop), begin + profile.tail(number, hop)
            link.free_at = max(link.free_at, start + link.serialise_ps(size))
            here.ready_at = max(here.ready_at, tail)
            if self.watch.on:
                self.watch.note_packet_grant(transfer, link, here)
            if hop and tail > now:
                before = links[hop - 1]
                before.used += size
                before.credits.append((tail, size))
            here = link
            hop += 1
        packet = Packet(transfer, size, number == profile.n_full, hop, 0)
        link = links[hop - 1]
        if hop == len(links):
            if packet.last:
                self.clock.call_at(tail + link.overhead_ps, deliver, transfer, transfer.route.deliver_rank)
            return
        link.used += size
        packet.tail = tail + link.hop_ps
        if start + link.hop_ps > now:
            self.clock.call_at(start + link.hop_ps, link.arrive, packet, link.arrive_rank)
        else:
            link.fifo.append(packet)

    def resume(self, probe: Follower) -> None:
        """If their future times are certain, continue as express transfers those that ``probe`` follows."""
        if probe.port.probe is not probe:
            return
        now = self.clock.time
        courses = probe.find_courses(now)
        if not courses:
            probe.end()
            return
        links = courses[0].transfer.route.links
        for hop, link in enumerate(links):
            self._take_off(link, hop, courses, final=link is links[-1])
        port = probe.port
        port.probe = None
        port.queue.clear()
        port.fifo.clear()
        port.ready_at = port.express_free_at = probe.starts[0]
        for packet in probe.packets:  # its head may still be in flight to a FIFO
            packet.links, packet.hop = (self._nowhere,), 1
        for course in courses:
            self._readmit(course, now)
        self.n_resumed += len(courses)

    def _take_off(self, link: Link, hop: int, courses: list[Course], *, final: bool) -> None:
        """Reset a link to its state at the first grant of ``courses``, without their packets."""
        first = courses[0]
        at = first.start_ps + first.profile.offsets[hop]
        link.users = 0
        link.requests.clear()
        link.free_at = at
        if not final:  # the FIFO behind the last link belongs to other transfers
            link.ready_at = at + link.hop_ps
            link.used = 0
            link.credits.clear()
            link.fifo.clear()
        for course in courses:
            link.granted_bytes -= course.granted_bytes(hop)
            link.busy_ps -= course.granted_ps(hop)
        resume(link)

    def _readmit(self, course: Course, now: int) -> None:
        """Admit to the express path a transfer that is in flight as packets."""
        transfer, profile, start = course.transfer, course.profile, course.start_ps
        transfer.probe = None
        transfer.profile, transfer.start_ps, transfer.resumed_at = profile, start, course.first
        if transfer.head_ps == NEVER:
            transfer.head_ps = start + profile.offsets[-1] + transfer.route.links[-1].overhead_ps
        if self.watch.keeps_links:
            self._reported[transfer] = course.granted
        transfer.express = True
        self.n_admitted = transfer.admission = self.n_admitted + 1
        self._claim(transfer, now)
        self.clock.call_at(start + profile.latency_ps, self._arrived, transfer, transfer.route.deliver_rank)


def _carries_express(place: PacketInput, now: int) -> bool:
    """Return False if certainly no express transfer uses ``place`` now or later."""
    return place.express_free_at > now and not (place.users if isinstance(place, Link) else place.queue)
