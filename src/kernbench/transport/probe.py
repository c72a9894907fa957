"""The return from packets to express: a probe follows one packet to its last link, and all packets behind it.

When the packet is granted its last link, all earlier traffic is out of the way. The future of the port is then certain
if four conditions hold:

- the links carry no other port's transfers;
- packets behind the probe wait exactly as long as the probe did, at the same links (``timing.py``);
- every packet behind the probe was granted its links at the computed times;
- the transfers still at the port follow in closed form.

A port probes after as many packets as its route has links or, if larger, as the port has transfers. After a failed
probe the number of packets doubles. A port without contention is therefore soon express again, and permanent
contention costs few probes.
"""

from __future__ import annotations

from itertools import pairwise

from kernbench.transport.state import Course, Link, Packet, Port, Route, Transfer
from kernbench.transport.timing import AT_ONCE, Profile


class PortProbe:
    """A followed packet, number ``first`` of its transfer, and all packets that its port has cut after it.

    ``starts``: the times at which packet ``first`` was granted its links.
    """

    __slots__ = ("_before", "_grants", "first", "packets", "port", "starts")

    def __init__(self, port: Port, first: int) -> None:
        self.port = port
        self.first = first
        self.starts: list[int] = []
        self.packets: list[Packet] = []
        self._before: list[int] = []  # by link of the first packet: the bytes granted before it
        self._grants: list[tuple[Transfer, int, int]] = []  # grants of all followed packets: number of the link, time

    def follow(self, packet: Packet) -> None:
        """Follow a packet that the port has just cut."""
        self.packets.append(packet)
        packet.transfer.probe = self

    def note(self, packet: Packet, now: int) -> None:
        """Record that a packet of a followed transfer is granted its next link."""
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
        elif hop >= len(self._before):  # the packet was cut before the first followed packet, and is ahead of it
            return
        self._grants.append((packet.transfer, hop, now))

    def _promises_much(self, links: tuple[Link, ...]) -> bool:
        """Return True if more events remain than heads are in flight, and ``links`` seem to carry no other port."""
        queue = self.port.queue
        to_come = sum(transfer.packets - transfer.next_packet for transfer in queue)
        own_transfers = len({*queue, *(packet.transfer for packet in self.packets)})
        return to_come * len(links) > len(self.packets) and all(link.users <= own_transfers for link in links)

    def end(self) -> None:
        """Stop following packets. The port probes again after twice its previous interval."""
        self.port.look_after(2 * self.port.interval)
        for packet in self.packets:
            packet.transfer.probe = None

    def find_courses(self, now: int) -> list[Course]:
        """Return the courses of the port's transfers, in order, if all are certain; else an empty list."""
        courses = self._courses(now)
        if courses and _fit_together(courses) and all(self._are_alone(courses, hop) for hop in self._hops):
            return courses
        return []

    @property
    def _hops(self) -> range:
        return range(len(self._before))

    def _courses(self, now: int) -> list[Course]:
        """Return the courses that agree with all grants up to ``now``; an empty list without such courses."""
        starts: dict[Transfer, int] = {}
        for transfer, hop, when in self._grants:
            if not hop:
                starts.setdefault(transfer, when)
        by_transfer: dict[Transfer, Course] = {}
        before: Course | None = None
        for transfer in (*starts, *(queued for queued in self.port.queue if queued not in starts)):
            offsets = None if before else tuple([when - self.starts[0] for when in self.starts])
            course = _course_from(transfer, 0 if before else self.first, before, starts.get(transfer), offsets)
            if course is None or (transfer not in starts and course.start_ps <= now):
                return []
            by_transfer[transfer] = before = course
        for transfer, hop, when in self._grants:
            course = by_transfer[transfer]
            if when != course.start_ps + course.profile.start(course.granted[hop], hop):
                return []
            course.granted[hop] += 1
        courses = list(by_transfer.values())
        for course in courses:
            after = now - course.start_ps
            if any(course.granted_bytes(hop) != course.profile.started_bytes(hop, after) for hop in self._hops):
                return []
        return courses

    def _are_alone(self, courses: list[Course], hop: int) -> bool:
        """Return True if only ``courses`` have used link number ``hop`` since the first packet, and no other will."""
        link = courses[0].transfer.route.links[hop]
        carried = sum(course.granted_bytes(hop) for course in courses)
        return (
            link.users == sum(course.uses(hop) for course in courses)
            and link.granted_bytes == self._before[hop] + carried
        )


def begin_probe(port: Port, packet: Packet, number: int) -> None:
    """Follow ``packet``, which was just cut, if the remaining supply is known and long enough."""
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
        port.look_after(port.interval)  # other ports use the links
    elif queued == 1 and (transfer.n_full - number) * packet_ps <= transfer.route.offsets[-1]:
        port.look_after(2 * port.interval)  # the last packet is cut before this packet reaches its last link
    else:
        port.probe = PortProbe(port, number)
        port.probe.follow(packet)


def _course_from(
    transfer: Transfer, first: int, before: Course | None, begun_ps: int | None, offsets: tuple[int, ...] | None
) -> Course | None:
    """Return the course from packet ``first`` on, behind the course ``before``; None if it is not certain.

    The course began at ``begun_ps``; None: the course begins when the port is free. ``offsets``: the measured offsets,
    if any.
    """
    route, n_left, supply_ps, pace = transfer.route, transfer.n_full - first, 0, AT_ONCE
    if before is not None and before.transfer.route is not route:
        return None
    if transfer.supplies is not None:
        supply = transfer.supplies[-1] if transfer.supplies else None
        if supply is None or supply.first > first or supply.first + supply.count != transfer.packets:
            return None
        pace = supply.pace
        supply_ps = supply.start_ps + (first - supply.first) * pace.packet_ps
    start_ps = begun_ps
    if start_ps is None:
        start_ps = supply_ps if before is None else max(supply_ps, before.end_ps(0))
    if start_ps != supply_ps and pace != AT_ONCE:
        # Bytes have accumulated at the port. The course is that of a complete supply if the first link is never faster
        # than the supply.
        link = route.links[0]
        full_ps, last_ps = link.serialise_ps(route.packet_bytes), link.serialise_ps(transfer.last_bytes)
        supply_end_ps = supply_ps + n_left * pace.packet_ps + pace.last_ps
        if (n_left and pace.packet_ps > full_ps) or supply_end_ps > start_ps + n_left * full_ps + last_ps:
            return None
        pace = AT_ONCE
    if offsets is None:
        offsets = _offsets_behind(before, start_ps, route) if before is not None else route.offsets
    nbytes, timing = transfer.nbytes - first * route.packet_bytes, route.timing
    # The sizes of remainders hardly repeat, so their profiles are not cached.
    is_cached = not first and offsets == route.offsets
    profile = timing.profile(nbytes, pace) if is_cached else timing.make_profile(nbytes, pace, offsets)
    return Course(transfer, first, start_ps, profile) if profile.fits and _keeps_pace(profile, route) else None


def _offsets_behind(before: Course, start_ps: int, route: Route) -> tuple[int, ...]:
    """Return the offsets of a course that starts at ``start_ps`` and waits at each link for the course ``before``."""
    at = start_ps
    offsets = [0]
    for hop, link in enumerate(route.links[:-1], 1):
        at = max(at + link.hop_ps, before.end_ps(hop))
        offsets.append(at - start_ps)
    return tuple(offsets)


def _keeps_pace(profile: Profile, route: Route) -> bool:
    """Return True if all packets wait at the same links as the first packet, and as long.

    They do if, wherever the first packet waits, the link is at least as slow as every link before it.
    """
    if not profile.n_full:
        return True
    offsets, size = profile.offsets, route.packet_bytes
    return all(
        offsets[hop] == offsets[hop - 1] + before.hop_ps or link.serialise_ps(size) == profile.pace[hop]
        for hop, (before, link) in enumerate(pairwise(route.links), 1)
    )


def _fit_together(courses: list[Course]) -> bool:
    """Return True if every FIFO is large enough for the courses at any time."""
    links = courses[0].transfer.route.links
    return all(_fit_into(link, hop, courses) for hop, link in enumerate(links[:-1]))


def _fit_into(link: Link, hop: int, courses: list[Course]) -> bool:
    """Return True if the FIFO behind link number ``hop`` is large enough for the courses at any time."""
    earlier: list[Course] = []
    for course in courses:
        at, peaks = course.start_ps + course.profile.offsets[hop], course.profile.peaks
        earlier = [previous for previous in earlier if previous.end_ps(hop + 1) > at]
        nbytes = peaks[hop] + sum(previous.profile.peaks[hop] for previous in earlier)
        if nbytes > link.capacity and _most_held(course, earlier, hop) > link.capacity:
            return False
        earlier.append(course)
    return True


def _most_held(course: Course, earlier: list[Course], hop: int) -> int:
    """Return the largest number of bytes in the FIFO at any grant of ``course`` until the ``earlier`` courses left."""
    profile, start, most = course.profile, course.start_ps, 0
    over = max((previous.end_ps(hop + 1) for previous in earlier), default=0)
    for number in range(profile.n_full + 1):
        at = start + profile.start(number, hop)
        if at >= over:
            break
        most = max(most, sum(c.profile.resident_bytes(hop, at - c.start_ps) for c in (course, *earlier)))
    return most
