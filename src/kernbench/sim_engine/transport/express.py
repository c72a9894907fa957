"""The express path: a transfer that meets nobody costs one event, and its course is known in closed form.

Invariant: at any moment a link carries express transfers or packets, never both. An express transfer *claims* its port
and links for the time it needs them. A newcomer may join them as express only if it follows every claim on every link
(it enters a link after the others have left it, reaches the FIFO behind it after they have left that, and what is in
the FIFO at any moment fits). Otherwise all express transfers it could meet, and all that share a link with those, are
turned back into packets exactly where they are now, and the newcomer goes by packets too.
"""

from __future__ import annotations

from collections.abc import Iterable

from kernbench.sim_engine.clock import RANK_ARRIVE, RANK_DELIVER, Clock
from kernbench.sim_engine.hooks import Hook, LinkBusy
from kernbench.sim_engine.transport.link import ARRIVE, DELIVER, Input, Link, Port
from kernbench.sim_engine.transport.route import Profile
from kernbench.sim_engine.transport.transfer import Packet, Transfer


class Claim:
    """An express transfer's use of one link (``hop`` of its route), or of its port (``hop`` -1).

    ``free_before`` and ``ready_before`` are the link's state without it; ``over_at`` is when its use ends; ``peak`` the
    most bytes it finds in the FIFO; ``earlier`` are the claims whose bytes may still be there when it comes.
    """

    __slots__ = ("earlier", "free_before", "hop", "over_at", "peak", "ready_before", "transfer")

    def __init__(
        self, transfer: Transfer, hop: int, free_before: int, ready_before: int, over_at: int, peak: int
    ) -> None:
        self.transfer = transfer
        self.hop = hop
        self.free_before = free_before
        self.ready_before = ready_before
        self.over_at = over_at
        self.peak = peak
        self.earlier: tuple[Claim, ...] = ()

    @property
    def profile(self) -> Profile:
        """The course of the transfer."""
        profile = self.transfer.profile
        assert profile is not None
        return profile

    def unstarted_bytes(self, now: int) -> int:
        """Bytes that have not been granted the link by ``now``."""
        transfer = self.transfer
        return transfer.nbytes - transfer.route.started_bytes(self.profile, self.hop, now - transfer.start_ps)

    def unstarted_ps(self, now: int) -> int:
        """Serialisation time of those bytes."""
        link = self.transfer.route.links[self.hop]
        return serialisation(link, self.unstarted_bytes(now), self.transfer.last_bytes)

    def resident(self, at: int) -> int:
        """Its bytes in the FIFO behind the link at time ``at`` (none where the link is its last)."""
        if self.hop == len(self.profile.pace) - 1:
            return 0
        return self.transfer.route.resident_bytes(self.profile, self.hop, at - self.transfer.start_ps)

    def peak_until(self, now: int) -> int:
        """Most bytes in the FIFO at any of its grants up to ``now``, the earlier claims' included."""
        transfer, profile = self.transfer, self.profile
        if self.hop == len(profile.pace) - 1:
            return 0
        first = transfer.start_ps + transfer.route.offsets[self.hop]
        if now < first:
            return 0
        last = min((now - first) // profile.pace[self.hop], profile.n_full)
        peak = max(self._held_at(first + k * profile.pace[self.hop]) for k in (max(last - 1, 0), last))
        for k in range(last + 1):
            at = first + k * profile.pace[self.hop]
            if not any(e.over_at > at for e in self.earlier):
                break
            peak = max(peak, self._held_at(at))
        return peak

    def _held_at(self, at: int) -> int:
        return self.resident(at) + sum(e.resident(at) for e in self.earlier)


class Express:
    """Admits transfers to the express path and turns them back into packets."""

    def __init__(self, clock: Clock, busy_hook: Hook[LinkBusy]) -> None:
        self.clock = clock
        self.busy_hook = busy_hook
        self.n_admitted = 0
        self.n_revoked = 0

    def admit(self, transfer: Transfer) -> bool:
        """Send ``transfer`` express if it is certain to meet nobody."""
        now = self.clock.time
        port = transfer.port
        port.settle(now)
        if port.queue:
            return False
        start = max(now, port.ready_at)
        if transfer.supplies is not None:
            if not transfer.supplies or transfer.supplies[0].start_ps < start:
                return False
            start = transfer.supplies[0].start_ps
        pace = transfer.whole_supply_pace(start)
        if pace is None:
            return False
        profile = transfer.route.profile(transfer.nbytes, pace)
        transfer.profile = profile
        transfer.start_ps = start
        if not self._meets_nobody(transfer, profile, now):
            return False
        self._book(transfer, profile)
        return True

    def _meets_nobody(self, transfer: Transfer, profile: Profile, now: int) -> bool:
        """Whether ``transfer`` follows all express transfers on its way and finds no packets there."""
        route, start, peaks = transfer.route, transfer.start_ps, profile.peaks
        last = len(peaks)
        for hop, (link, offset) in enumerate(zip(route.links, route.offsets, strict=True)):
            if link.users:
                return False
            if link.claims and link.claims_over_at <= now:
                link.settle(now)
            if start + offset < link.free_at:
                return False
            if hop < last:
                if start + offset + link.hop_ps < link.ready_at:
                    return False
                if peaks[hop] + link.used + link.claimed_bytes > link.sure_bytes and not self._fits(
                    link, transfer, profile, hop, now
                ):
                    return False
        return True

    def _fits(self, link: Link, transfer: Transfer, profile: Profile, hop: int, now: int) -> bool:
        """Whether the FIFO behind ``link`` never overflows. Asked when it could, or when there is a new peak."""
        link.hold(0, now)
        link.settle(now)
        peak = profile.peaks[hop]
        if peak + link.used + link.claimed_bytes <= link.sure_bytes:
            return True
        if link.used:
            return False  # packets on their way out would have to be followed byte by byte: let packets do that
        if link.claims:
            peak = self._claim(link, transfer, profile, hop).peak
        return peak <= link.capacity

    def _claim(self, link: Link, transfer: Transfer, profile: Profile, hop: int) -> Claim:
        """The claim of ``transfer`` on a link that it leaves by another one."""
        over_at = transfer.start_ps + transfer.route.offsets[hop + 1] + profile.ends[hop + 1]
        claim = Claim(transfer, hop, link.free_at, link.ready_at, over_at, profile.peaks[hop])
        if link.claims and claim.peak + link.claimed_bytes > link.sure_bytes:
            claim.earlier = _still_there(link.claims, transfer.start_ps + transfer.route.offsets[hop])
            claim.peak = claim.peak_until(over_at)
        return claim

    def _book(self, transfer: Transfer, profile: Profile) -> None:
        route, start, port = transfer.route, transfer.start_ps, transfer.port
        links, offsets, ends = route.links, route.offsets, profile.ends
        last = len(links) - 1
        nbytes = transfer.nbytes
        for hop in range(last):
            link = links[hop]
            claim = self._claim(link, transfer, profile, hop)
            link.ready_at = claim.over_at
            link.claim(claim, start + offsets[hop] + ends[hop], nbytes, profile.busy[hop])
        final = links[last]
        end = start + offsets[last] + ends[last]
        final.claim(Claim(transfer, last, final.free_at, final.ready_at, end, 0), end, nbytes, profile.busy[last])
        port_end = start + ends[0]
        port.claims.append(Claim(transfer, -1, 0, port.ready_at, port_end, 0))
        port.ready_at = port_end
        transfer.express = True
        transfer.admission = self.n_admitted
        transfer.callbacks = ARRIVED
        transfer.head_ps = start + offsets[last] + final.overhead_ps
        self.clock.at(end + final.overhead_ps, RANK_DELIVER + final.index, transfer)
        self.n_admitted += 1

    def revoke(self, inputs: Iterable[Input]) -> None:
        """Turn every express transfer that uses one of ``inputs``, and all they share a link with, into packets."""
        now = self.clock.time
        victims, touched = self._closure(inputs, now)
        if not victims:
            return
        for place in touched:
            self._unclaim(place, now)
        for victim in victims:
            self._materialise(victim, now)
        for place in touched:
            if place.fifo:
                place.offer(max(place.ready_at, now))
            if isinstance(place, Port):
                place.refill(now)
        self.n_revoked += len(victims)

    def _closure(self, inputs: Iterable[Input], now: int) -> tuple[list[Transfer], list[Input]]:
        """The express transfers connected to ``inputs`` in the order they were admitted, and all places they claim.

        Transfers are numbered when they are made, which need not be the order in which they come and queue.
        """
        victims: dict[int, Transfer] = {}
        touched: dict[int, Input] = {}
        unseen = list(inputs)
        while unseen:
            place = unseen.pop()
            if place.index in touched:
                continue
            settle(place, now)
            if not place.claims:
                continue
            touched[place.index] = place
            for claim in place.claims:
                transfer = claim.transfer
                if transfer.admission not in victims:
                    victims[transfer.admission] = transfer
                    unseen += [transfer.port, *transfer.route.links]
        return [victims[n] for n in sorted(victims)], [touched[i] for i in sorted(touched)]

    def _unclaim(self, place: Input, now: int) -> None:
        """Set a link or port back to what it is without its express transfers."""
        first = place.claims[0]
        place.ready_at = first.ready_before
        if isinstance(place, Link):
            place.free_at = first.free_before
            for claim in place.claims:
                place.peak = max(place.peak, claim.peak_until(now))
                place.granted_bytes -= claim.unstarted_bytes(now)
                place.busy_ps -= claim.unstarted_ps(now)
            place.claimed_bytes = 0
        place.claims.clear()

    def _materialise(self, transfer: Transfer, now: int) -> None:
        """Make the packets of ``transfer`` that have not arrived, each where it is at ``now``."""
        course = Course(transfer)
        transfer.express = False
        transfer.callbacks = ()
        if course.start(0, len(course.links) - 1) > now:
            transfer.head_ps = 1 << 62
        if transfer.hop_times is not None:
            course.note_hops(now)
        if self.busy_hook.listeners:
            course.report(self.busy_hook, now)
        for hop, link in enumerate(course.links):
            link.users += course.start(course.n_full, min(hop + 1, len(course.links) - 1)) > now
        transfer.next_packet = course.n_full + 1
        for number in range(course.first_pending(now), course.n_full + 1):
            if course.start(number, 0) > now:
                transfer.next_packet = number
                transfer.port.queue.append(transfer)
                return
            self._place(course, number, now)

    def _place(self, course: Course, number: int, now: int) -> None:
        """Account for the links that packet ``number`` has been granted, and put it where its head is."""
        transfer, links = course.transfer, course.links
        size = transfer.size_of(number)
        here: Input = transfer.port
        hop = 0
        while hop < len(links) and (start := course.start(number, hop)) <= now:
            link, tail = links[hop], course.tail(number, hop)
            link.free_at = max(link.free_at, start + link.serialise_ps(size))
            here.ready_at = max(here.ready_at, tail)
            if hop and tail > now:
                before = links[hop - 1]
                before.used += size
                before.credits.append((tail, size))
            here = link
            hop += 1
        packet = Packet(transfer, size, number == course.n_full, hop, 0)
        link = links[hop - 1]
        if hop == len(links):
            if packet.last:
                packet.callbacks = DELIVER
                self.clock.at(course.tail(number, hop - 1) + link.overhead_ps, RANK_DELIVER + link.index, packet)
            return
        link.used += size
        packet.tail = course.tail(number, hop - 1) + link.hop_ps
        arrival = course.start(number, hop - 1) + link.hop_ps
        if arrival > now:
            packet.callbacks = ARRIVE
            self.clock.at(arrival, RANK_ARRIVE + link.index, packet)
        else:
            link.fifo.append(packet)


def _still_there(claims: list[Claim], at: int) -> tuple[Claim, ...]:
    """Those that may have bytes in the FIFO at ``at`` or later. They leave it in order, so the last ones are enough."""
    found: list[Claim] = []
    for claim in reversed(claims):
        if claim.hop == len(claim.profile.pace) - 1:
            continue  # it ends here and never was in the FIFO
        if claim.over_at <= at:
            break
        found.append(claim)
    return tuple(found)


class Course:
    """The undisturbed course of an express transfer in absolute time (the formulas of ``route.py``)."""

    __slots__ = ("links", "n_full", "offsets", "profile", "start_ps", "transfer")

    def __init__(self, transfer: Transfer) -> None:
        assert transfer.profile is not None
        self.transfer = transfer
        self.profile: Profile = transfer.profile
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


def settle(place: Input, now: int) -> None:
    """Forget the claims on ``place`` that are over."""
    if isinstance(place, Link | Port):
        place.settle(now)


def serialisation(link: Link, nbytes: int, last_bytes: int) -> int:
    """Time on ``link`` of ``nbytes`` in full packets and, if they do not divide, one of ``last_bytes``."""
    if not nbytes:
        return 0
    full = (nbytes - last_bytes) // link.packet_bytes
    return full * link.packet_ps + link.serialise_ps(last_bytes)


def _arrived(transfer: Transfer) -> None:
    clock = transfer.route.links[-1].clock
    transfer.delivered_ps = clock.time
    hook = transfer.route.links[-1].busy_hook
    if transfer.hop_times is not None:
        Course(transfer).note_hops(clock.time)
    if hook.listeners:
        Course(transfer).report(hook, clock.time)
    transfer.express = False
    if transfer.done is not None:
        transfer.done(transfer)


ARRIVED = (_arrived,)
