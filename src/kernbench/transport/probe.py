"""The way back from packets to express: one packet is followed to its last link, and all that its port sends behind it.

When it is granted its last link and has waited nowhere, all that was before it is out of the way. The future of the
port is certain if, besides, every packet behind it was granted its links when its transfer alone would have been
(``timing.py``), the links carry nobody else, and the rest of what waits at the port follows in closed form.

A port looks after as many packets as its way has links, or as it has transfers, and after twice as many when it was in
vain: who is disturbed no more is soon express again, and who always is in company pays little for looking.
"""

from __future__ import annotations

from kernbench.transport.state import Link, Packet, Port, Transfer
from kernbench.transport.timing import AT_ONCE, Pace, Profile


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

    ``start_ps``: when it was granted its first link.
    """

    __slots__ = ("_before", "_grants", "first", "packets", "port", "start_ps")

    def __init__(self, port: Port, first: int) -> None:
        self.port = port
        self.first = first
        self.start_ps = 0
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
            if not hop:
                self.start_ps = now
            elif now != self.start_ps + packet.transfer.route.offsets[hop]:
                self.end()
                return
            self._before.append(link.granted_bytes - packet.size)
            if hop + 1 == len(packet.links):
                if not self._has_company(packet.links):
                    link.clock.call_at(now, self.port.resume, self)
                else:
                    self.end()
                    return
        elif hop >= len(self._before):  # before the first: it was cut earlier
            return
        self._grants.append((packet.transfer, hop, now))

    def _has_company(self, links: tuple[Link, ...]) -> bool:
        """Tell whether one of ``links`` has more to carry than what the port sends."""
        own = len({*self.port.queue, *(each.transfer for each in self.packets)})
        return any(link.users > own for link in links)

    def end(self) -> None:
        """Follow nobody any more. The port looks again after twice as many packets."""
        self.port.look_after(2 * self.port.interval)
        for packet in self.packets:
            packet.transfer.probe = None

    def find_courses(self, now: int) -> list[Course]:
        """Return the course of each transfer of the port, in order, if they are certain; else none."""
        courses = self._courses(now)
        if courses and _follow_each_other(courses) and all(self._are_alone(courses, hop) for hop in self._hops):
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
        begun = list(starts)
        found: dict[Transfer, Course] = {}
        route, left_ps = begun[0].route, 0
        for transfer in (*begun, *(each for each in self.port.queue if each not in starts)):
            first = 0 if found else self.first
            course = _course_from(transfer, first, left_ps, starts.get(transfer))
            if course is None or transfer.route is not route or (transfer not in starts and course.start_ps <= now):
                return []
            found[transfer] = course
            left_ps = course.start_ps + course.profile.leaves_port_ps
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
    elif queued == 1 and (transfer.n_full - number) * packet_ps <= transfer.route.offsets[-1]:
        port.look_after(2 * port.interval)  # its last packet is cut before this one is there
    else:
        port.probe = Probe(port, number)
        port.probe.follow(packet)


def _course_from(transfer: Transfer, first: int, left_ps: int, begun_ps: int | None) -> Course | None:
    """Return the course from packet ``first`` on, which began at ``begun_ps``, or will when the port is left to it."""
    route, rest, there_ps, pace = transfer.route, transfer.n_full - first, 0, AT_ONCE
    if transfer.supplies is not None:
        supply = transfer.supplies[-1] if transfer.supplies else None
        if supply is None or supply.first > first or supply.first + supply.count != transfer.packets:
            return None
        pace = supply.pace
        there_ps = supply.start_ps + (first - supply.first) * pace.packet_ps
    start_ps = max(there_ps, left_ps) if begun_ps is None else begun_ps
    if start_ps != there_ps and pace != AT_ONCE:
        # Bytes have gathered at the port: as if all were there, if the link takes them no faster than they come.
        link = route.links[0]
        full_ps, last_ps = link.serialise_ps(route.packet_bytes), link.serialise_ps(transfer.last_bytes)
        there_end_ps = there_ps + rest * pace.packet_ps + pace.last_ps
        if (rest and pace.packet_ps > full_ps) or there_end_ps > start_ps + rest * full_ps + last_ps:
            return None
        pace = AT_ONCE
    nbytes = transfer.nbytes - first * route.packet_bytes
    profile = _profile(transfer, nbytes, pace, first > 0)
    return Course(transfer, first, start_ps, profile) if profile.fits else None


def _profile(transfer: Transfer, nbytes: int, pace: Pace, rest: bool) -> Profile:
    """Return the profile of ``nbytes``. Sizes of a ``rest`` hardly come twice: they are not kept."""
    timing = transfer.route.timing
    return timing.make_profile(nbytes, pace) if rest else timing.profile(nbytes, pace)


def _follow_each_other(courses: list[Course]) -> bool:
    """Tell whether each finds links and FIFOs left by those before it, and the FIFOs hold them all."""
    links = courses[0].transfer.route.links
    return all(_follow_on(link, hop, courses, final=link is links[-1]) for hop, link in enumerate(links))


def _follow_on(link: Link, hop: int, courses: list[Course], *, final: bool) -> bool:
    """Tell so of one link."""
    earlier: list[Course] = []
    free_ps = gone_ps = 0
    for course in courses:
        profile, start = course.profile, course.start_ps
        at = start + profile.offsets[hop]
        if at < free_ps:
            return False
        free_ps = at + profile.ends[hop]
        if final:
            continue
        if at + link.hop_ps < gone_ps:
            return False
        gone_ps = start + profile.gone[hop]
        earlier = [each for each in earlier if each.start_ps + each.profile.gone[hop] > at]
        held = profile.peaks[hop] + sum(each.profile.peaks[hop] for each in earlier)
        if held > link.capacity and _most_held(course, earlier, hop) > link.capacity:
            return False
        earlier.append(course)
    return True


def _most_held(course: Course, earlier: list[Course], hop: int) -> int:
    """Return the most bytes in the FIFO at any grant of ``course`` before those ``earlier`` are gone."""
    profile, start, most = course.profile, course.start_ps, 0
    over = max((each.start_ps + each.profile.gone[hop] for each in earlier), default=0)
    for number in range(profile.n_full + 1):
        at = start + profile.start(number, hop)
        if at >= over:
            break
        most = max(most, sum(each.profile.resident_bytes(hop, at - each.start_ps) for each in (course, *earlier)))
    return most
