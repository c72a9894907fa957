"""The way back from packets to express: one packet is followed to its last link, and all that its port sends behind it.

When it is granted its last link, all that was before it is out of the way. The future of the port is certain if the
links carry nobody else, those where it waited let the others wait as long (``timing.py``), every packet behind it was
granted its links accordingly, and what is still at the port follows in closed form.

A port looks after as many packets as its way has links, or as it has transfers, and after twice as many when it was in
vain: who is disturbed no more is soon express again, and who always is in company pays little for looking.
"""

from __future__ import annotations

from itertools import pairwise

from kernbench.transport.state import Link, Packet, Port, Route, Transfer
from kernbench.transport.timing import AT_ONCE, Profile


class Course:
    """The course of a transfer from packet ``first`` on: ``profile`` from ``start_ps`` on.

    ``granted[j]``: how many of these packets link j of its route has been granted.
    """

    __slots__ = ("first", "granted", "profile", "start_ps", "transfer")

    def __init__(self, transfer: Transfer, first: int, start_ps: int, profile: Profile) -> None:
        self.transfer = transfer
        self.first = first
        self.start_ps = start_ps
        self.profile = profile
        self.granted = [0] * len(profile.pace)

    def end_ps(self, hop: int) -> int:
        """Return when its last byte has left onto link number ``hop``."""
        return self.start_ps + self.profile.offsets[hop] + self.profile.ends[hop]

    def uses(self, hop: int) -> bool:
        """Tell whether its last packet has not left link number ``hop`` and the FIFO behind it."""
        return self.granted[min(hop + 1, len(self.granted) - 1)] <= self.profile.n_full

    def granted_bytes(self, hop: int) -> int:
        """Return the bytes of the packets that link number ``hop`` has been granted."""
        n, profile = self.granted[hop], self.profile
        return profile.nbytes if n > profile.n_full else n * profile.packet_bytes

    def granted_ps(self, hop: int) -> int:
        """Return how long the link serialises them, in ps."""
        n, profile, link = self.granted[hop], self.profile, self.transfer.route.links[hop]
        last_ps = link.serialise_ps(self.transfer.last_bytes) if n > profile.n_full else 0
        return min(n, profile.n_full) * link.serialise_ps(profile.packet_bytes) + last_ps


class Probe:
    """A packet on its way, number ``first`` of its transfer, and all that its port has cut after it.

    ``starts``: when it was granted the links.
    """

    __slots__ = ("_before", "_grants", "first", "packets", "port", "starts")

    def __init__(self, port: Port, first: int) -> None:
        self.port = port
        self.first = first
        self.starts: list[int] = []
        self.packets: list[Packet] = []
        self._before: list[int] = []  # of each link that it was granted: the bytes carried before
        self._grants: list[tuple[Transfer, int, int]] = []  # of it and of those behind: number of the link, when

    def follow(self, packet: Packet) -> None:
        """Follow a packet that its port has cut."""
        self.packets.append(packet)
        packet.transfer.probe = self

    def note(self, packet: Packet, now: int) -> None:
        """Take down that a packet of a transfer that is followed is granted its next link."""
        hop = packet.hop
        if packet is self.packets[0]:
            link = packet.links[hop]
            self.starts.append(now)
            self._before.append(link.granted_bytes - packet.size)
            if hop + 1 == len(packet.links):
                if not self._promises_much(packet.links):
                    self.end()
                    return
                link.clock.call_at(now, self.port.resume, self)
        elif hop >= len(self._before):  # before the first: it was cut earlier
            return
        self._grants.append((packet.transfer, hop, now))

    def _promises_much(self, links: tuple[Link, ...]) -> bool:
        """Tell whether more events are to come than heads are under way, and ``links`` seem to carry nobody else."""
        queue = self.port.queue
        to_come = sum(each.packets - each.next_packet for each in queue)
        own = len({*queue, *(each.transfer for each in self.packets)})
        return to_come * len(links) > len(self.packets) and all(link.users <= own for link in links)

    def end(self) -> None:
        """Follow nobody any more. The port looks again after twice as many packets."""
        self.port.look_after(2 * self.port.interval)
        for packet in self.packets:
            packet.transfer.probe = None

    def find_courses(self, now: int) -> list[Course]:
        """Return the course of each transfer of the port, in order, if they are certain; else none."""
        courses = self._courses(now)
        if courses and _fit_together(courses) and all(self._are_alone(courses, hop) for hop in self._hops):
            return courses
        return []

    @property
    def _hops(self) -> range:
        return range(len(self._before))

    def _courses(self, now: int) -> list[Course]:
        """Return the courses that agree with all grants up to ``now``; none if there are no such."""
        starts: dict[Transfer, int] = {}
        for transfer, hop, when in self._grants:
            if not hop:
                starts.setdefault(transfer, when)
        found: dict[Transfer, Course] = {}
        before: Course | None = None
        for transfer in (*starts, *(each for each in self.port.queue if each not in starts)):
            offsets = None if before else tuple([when - self.starts[0] for when in self.starts])
            course = _course_from(transfer, 0 if before else self.first, before, starts.get(transfer), offsets)
            if course is None or (transfer not in starts and course.start_ps <= now):
                return []
            found[transfer] = before = course
        for transfer, hop, when in self._grants:
            course = found[transfer]
            if when != course.start_ps + course.profile.start(course.granted[hop], hop):
                return []
            course.granted[hop] += 1
        courses = list(found.values())
        for course in courses:
            after = now - course.start_ps
            if any(course.granted_bytes(hop) != course.profile.started_bytes(hop, after) for hop in self._hops):
                return []
        return courses

    def _are_alone(self, courses: list[Course], hop: int) -> bool:
        """Tell whether link number ``hop`` has carried nobody else since the packet, and nobody else wants it."""
        link = courses[0].transfer.route.links[hop]
        carried = sum(course.granted_bytes(hop) for course in courses)
        return (
            link.users == sum(course.uses(hop) for course in courses)
            and link.granted_bytes == self._before[hop] + carried
        )


def begin_probe(port: Port, packet: Packet, number: int) -> None:
    """Follow ``packet``, which has been cut, if the rest is known and long enough."""
    transfer, queued = packet.transfer, len(port.queue)
    if queued > port.interval:
        port.look_after(queued)
        return
    packet_ps = packet.links[0].serialise_ps(packet.size)
    if transfer.supplies is not None:
        supply = transfer.supplies[-1]
        is_late = port.ready_at > supply.start_ps + (number - supply.first) * supply.pace.packet_ps
        if (
            supply.first > number
            or transfer.supplied != transfer.packets
            or (is_late and supply.pace.packet_ps > packet_ps)
        ):
            port.look_after(port.interval)
            return
        packet_ps = max(packet_ps, supply.pace.packet_ps)
    if packet.last:
        port.look_after(1)
    elif any(link.users > port.undelivered for link in packet.links):
        port.look_after(port.interval)  # there is company
    elif queued == 1 and (transfer.n_full - number) * packet_ps <= transfer.route.offsets[-1]:
        port.look_after(2 * port.interval)  # its last packet is cut before this one is there
    else:
        port.probe = Probe(port, number)
        port.probe.follow(packet)


def _course_from(
    transfer: Transfer, first: int, before: Course | None, begun_ps: int | None, offsets: tuple[int, ...] | None
) -> Course | None:
    """Return the course from packet ``first`` on, behind the course ``before``; None if it is not certain.

    It began at ``begun_ps``, or will when the port is left to it; ``offsets``: where they are known.
    """
    route, rest, there_ps, pace = transfer.route, transfer.n_full - first, 0, AT_ONCE
    if before is not None and before.transfer.route is not route:
        return None
    if transfer.supplies is not None:
        supply = transfer.supplies[-1] if transfer.supplies else None
        if supply is None or supply.first > first or supply.first + supply.count != transfer.packets:
            return None
        pace = supply.pace
        there_ps = supply.start_ps + (first - supply.first) * pace.packet_ps
    start_ps = begun_ps
    if start_ps is None:
        start_ps = there_ps if before is None else max(there_ps, before.end_ps(0))
    if start_ps != there_ps and pace != AT_ONCE:
        # Bytes have gathered at the port: as if all were there, if the link takes them no faster than they come.
        link = route.links[0]
        full_ps, last_ps = link.serialise_ps(route.packet_bytes), link.serialise_ps(transfer.last_bytes)
        there_end_ps = there_ps + rest * pace.packet_ps + pace.last_ps
        if (rest and pace.packet_ps > full_ps) or there_end_ps > start_ps + rest * full_ps + last_ps:
            return None
        pace = AT_ONCE
    if offsets is None:
        offsets = _offsets_behind(before, start_ps, route) if before is not None else route.offsets
    nbytes, timing = transfer.nbytes - first * route.packet_bytes, route.timing
    # Sizes of a rest hardly come twice: their profiles are not kept.
    kept = not first and offsets == route.offsets
    profile = timing.profile(nbytes, pace) if kept else timing.make_profile(nbytes, pace, offsets)
    return Course(transfer, first, start_ps, profile) if profile.fits and _keeps_pace(profile, route) else None


def _offsets_behind(before: Course, start_ps: int, route: Route) -> tuple[int, ...]:
    """Return when the first packet of what starts then is granted the links, each after what was ``before``."""
    at = start_ps
    offsets = [0]
    for hop, link in enumerate(route.links[:-1], 1):
        at = max(at + link.hop_ps, before.end_ps(hop))
        offsets.append(at - start_ps)
    return tuple(offsets)


def _keeps_pace(profile: Profile, route: Route) -> bool:
    """Tell whether all packets wait where the first one does, and as long: the link is as slow as all before it."""
    if not profile.n_full:
        return True
    offsets, size = profile.offsets, route.packet_bytes
    return all(
        offsets[hop] == offsets[hop - 1] + before.hop_ps or link.serialise_ps(size) == profile.pace[hop]
        for hop, (before, link) in enumerate(pairwise(route.links), 1)
    )


def _fit_together(courses: list[Course]) -> bool:
    """Tell whether the FIFOs hold what the courses have in them at any time."""
    links = courses[0].transfer.route.links
    return all(_fit_into(link, hop, courses) for hop, link in enumerate(links[:-1]))


def _fit_into(link: Link, hop: int, courses: list[Course]) -> bool:
    """Tell so of the FIFO behind link number ``hop``."""
    earlier: list[Course] = []
    for course in courses:
        at, peaks = course.start_ps + course.profile.offsets[hop], course.profile.peaks
        earlier = [each for each in earlier if each.end_ps(hop + 1) > at]
        held = peaks[hop] + sum(each.profile.peaks[hop] for each in earlier)
        if held > link.capacity and _most_held(course, earlier, hop) > link.capacity:
            return False
        earlier.append(course)
    return True


def _most_held(course: Course, earlier: list[Course], hop: int) -> int:
    """Return the most bytes in the FIFO at any grant of ``course`` before those ``earlier`` are gone."""
    profile, start, most = course.profile, course.start_ps, 0
    over = max((each.end_ps(hop + 1) for each in earlier), default=0)
    for number in range(profile.n_full + 1):
        at = start + profile.start(number, hop)
        if at >= over:
            break
        most = max(most, sum(each.profile.resident_bytes(hop, at - each.start_ps) for each in (course, *earlier)))
    return most
