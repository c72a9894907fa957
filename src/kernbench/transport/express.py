"""The express path: a transfer that meets nobody costs one event, and its course is known in closed form.

Invariant: at any moment a link carries express transfers or packets, never both. A newcomer joins others as express
only if it follows them on every link (it enters a link after they have left it, reaches the FIFO behind it after they
have left that, and what is in the FIFO at any moment fits). Otherwise all express transfers it could meet, and all that
share a link with those, are turned back into packets exactly where they are now, and the newcomer goes by packets too.

Most find a free way: every link and the FIFO behind it empty when they come, which ``Link.clear_at`` tells at once.
These leave nothing on a link but a later ``clear_at``. They *claim* their links, and figures move, only when somebody
wants to know who is there; once delivered they are only counted.
"""

from __future__ import annotations

from collections.abc import Iterable

from kernbench.core.clock import RANK_ARRIVE, RANK_DELIVER, Clock
from kernbench.core.hook import Hook
from kernbench.transport.claims import Claim, Course
from kernbench.transport.link import Input, Link, LinkBusy, arrive, deliver
from kernbench.transport.port import Port
from kernbench.transport.route import AT_ONCE, Passage, Profile
from kernbench.transport.transfer import Packet, Transfer


class Express:
    """Admits transfers to the express path and turns them back into packets."""

    def __init__(self, clock: Clock, busy_hook: Hook[LinkBusy]) -> None:
        self.clock = clock
        self.busy_hook = busy_hook
        self.n_admitted = 0
        self.n_revoked = 0
        self._arrived = self._arrive
        self._free: dict[Transfer, Passage] = {}  # under way, with no claims yet, in the order of their admission
        self._carried: list[Passage] = []  # what delivered ones took, not yet in the figures of the links

    def admit(self, transfer: Transfer) -> bool:
        """Send ``transfer`` express if it is certain to meet nobody."""
        port = transfer.port
        if port.queue:
            return False
        start, route = self.clock.time, transfer.route
        start = start if start > port.clear_at else port.clear_at
        if transfer.supplies is None:
            passage = route.passages_at_once.get(transfer.nbytes) or route.passage(transfer.nbytes, AT_ONCE)
        else:
            supply = transfer.whole_supply(start)
            if supply is None:
                return False
            start = supply.start_ps
            passage = route.passage(transfer.nbytes, supply.pace)
        profile, links = passage.profile, passage.links
        if not profile.fits:
            return False
        alone = True
        for link, offset in zip(links, profile.offsets):  # noqa: B905 - of one length; asking is slower than looking
            if start + offset < link.clear_at:
                if not self._follows(transfer, passage, start):
                    return False
                alone = False
                break
        transfer.passage = passage
        transfer.start_ps = start
        transfer.head_ps = start + route.total_overhead_ps
        transfer.express = True
        self.n_admitted = transfer.admission = self.n_admitted + 1
        if alone:
            for link, gone in zip(links, profile.gone):  # noqa: B905 - as above
                link.clear_at = start + gone
            port.clear_at = start + profile.leaves_port_ps
            self._free[transfer] = passage
        else:
            self._claim(transfer, passage, self.clock.time)
        self.clock.call_at(start + profile.latency_ps, self._arrived, transfer, route.deliver_rank)
        return True

    def _arrive(self, transfer: Transfer) -> None:
        if not transfer.express:  # it goes by packets since
            return
        passage = self._free.pop(transfer, None)
        if passage is not None:
            if not passage.carried:
                self._carried.append(passage)
            passage.carried += 1
        now = self.clock.time
        if transfer.hop_times is not None:
            Course(transfer).note_hops(now)
        if self.busy_hook.listeners:
            Course(transfer).report(self.busy_hook, now)
        transfer.express = False
        transfer.delivered_ps = now
        transfer.port.undelivered -= 1
        done = transfer.done
        if done is not None:
            done(transfer)

    def catch_up(self) -> None:
        """Bring the figures of all links up to date."""
        self._spread()
        for passage in self._carried:
            passage.post_figures()
        self._carried.clear()

    def _follows(self, transfer: Transfer, passage: Passage, start: int) -> bool:
        """Whether ``transfer`` comes behind all others everywhere."""
        profile, links = passage.profile, passage.links
        for link in links:
            if link.users:
                return False
        self._spread_near(links)
        final = links[-1]
        for hop, link in enumerate(links):
            at = start + profile.offsets[hop]
            if at >= link.clear_at:
                continue
            if at < link.free_at:
                return False
            if link is final:
                continue
            if at + link.hop_ps < link.ready_at:
                return False
            sure = not link.used and profile.peaks[hop] + link.standing.nbytes <= link.capacity
            if not sure and not self._fits(transfer, passage, start, hop):
                return False
        return True

    def _fits(self, transfer: Transfer, passage: Passage, start: int, hop: int) -> bool:
        """Whether the FIFO behind link ``hop`` never overflows."""
        link, profile = passage.links[hop], passage.profile
        own = profile.peaks[hop]
        now = self.clock.time
        link.hold(0, now)
        link.settle(now)
        most = own + link.used + link.standing.at(start + profile.offsets[hop])
        if link.used:  # packets on their way out, which would have to be followed byte by byte for a new peak
            return most <= link.peak
        if most > link.capacity and (link.standing.streams or profile.n_full):
            transfer.passage, transfer.start_ps = passage, start
            claim = Claim(transfer, profile, hop, 0, 0, start + profile.gone[hop])
            claim.find_peak(reversed(link.claims))
            most = claim.peak
        return most <= link.capacity

    def _spread(self) -> None:
        """Let those under way on a free way claim their links."""
        if self._free:
            now = self.clock.time
            for transfer, passage in self._free.items():
                self._claim(transfer, passage, now)
            self._free.clear()

    def _spread_near(self, links: tuple[Link, ...]) -> None:
        """Let those claim their links that use one of ``links``, and those before them that use one of theirs.

        So claims of a link are in the order of admission, whoever else follows.
        """
        near = set(links)
        found: list[Transfer] = []
        for transfer, passage in reversed(self._free.items()):
            if not near.isdisjoint(passage.links):
                near.update(passage.links)
                found.append(transfer)
        now = self.clock.time
        for transfer in reversed(found):
            self._claim(transfer, self._free.pop(transfer), now)

    def _claim(self, transfer: Transfer, passage: Passage, now: int) -> None:
        """Enter ``transfer`` on its port and its links, after all that were admitted before.

        Where its use is over there may be packets already: there it only adds to the figures.
        """
        profile, start, port = passage.profile, transfer.start_ps, transfer.port
        final = len(passage.links) - 1
        for hop, (link, offset, gone) in enumerate(zip(passage.links, profile.offsets, profile.gone, strict=True)):
            link.granted_bytes += profile.nbytes
            link.busy_ps += profile.busy[hop]
            over_at = start + gone
            if over_at <= now:
                if hop < final:
                    link.peak = max(link.peak, profile.peaks[hop])
                continue
            if link.claims:
                link.settle(now)
            claim = Claim(transfer, profile, hop, link.free_at, link.ready_at, over_at)
            if hop < final:
                self._stand(link, claim, start + offset, profile)
                link.ready_at = over_at
            link.claims.append(claim)
            link.free_at = start + offset + profile.ends[hop]
            link.clear_at = max(link.clear_at, over_at)
        port_end = start + profile.leaves_port_ps
        if port_end > now:
            port.settle(now)
            port.claims.append(Claim(transfer, profile, -1, 0, port.ready_at, port_end))
            port.ready_at = port_end
            port.clear_at = max(port.clear_at, port_end)

    def _stand(self, link: Link, claim: Claim, at: int, profile: Profile) -> None:
        """Note what ``claim`` holds in the FIFO from ``at`` on, and the most there is with what stands there."""
        claim.peak = own = profile.peaks[claim.hop]
        others = link.standing.at(at)
        if others and own + others > link.peak:
            if profile.n_full or link.standing.streams:
                claim.find_peak(reversed(link.claims))
            else:
                claim.peak = own + others
        link.standing.add(claim.over_at, own, profile.n_full > 0)

    def revoke(self, inputs: Iterable[Input]) -> None:
        """Turn every express transfer that uses one of ``inputs``, and all they share a link with, into packets."""
        now = self.clock.time
        used = [place for place in inputs if place.carries_express(now)]
        if not used:
            return
        self._spread()
        victims, touched = self._closure(used, now)
        for place in touched:
            self._unclaim(place, now)
        for victim in victims:
            self._materialise(victim, now)
        for place in touched:
            if isinstance(place, Link):
                place.resume()
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
            place.settle(now)
            if not place.claims:
                continue
            touched[place.index] = place
            for claim in place.claims:
                transfer = claim.transfer
                if claim.over_at > now and transfer.admission not in victims:
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
            place.standing.clear()
        place.claims.clear()

    def _materialise(self, transfer: Transfer, now: int) -> None:
        """Make the packets of ``transfer`` that have not arrived, each where it is at ``now``."""
        course = Course(transfer)
        transfer.express = False
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
                when = course.tail(number, hop - 1) + link.overhead_ps
                self.clock.call_at(when, deliver, packet, RANK_DELIVER + link.index)
            return
        link.used += size
        packet.tail = course.tail(number, hop - 1) + link.hop_ps
        arrival = course.start(number, hop - 1) + link.hop_ps
        if arrival > now:
            self.clock.call_at(arrival, arrive, packet, RANK_ARRIVE + link.index)
        else:
            link.fifo.append(packet)
