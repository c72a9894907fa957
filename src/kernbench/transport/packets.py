"""The rules of a hop: round-robin per packet, finite FIFOs with credits, closed forms for heads and tails.

A packet of s bytes at the front of input FIFO L uses link M next:

* It requests M when its head has arrived and the packet before it has left L (``L.ready_at``).
* M is granted at ``start``, when M is idle, its FIFO has space for s bytes, and the request is the oldest (ties: the
  lower input). A destination needs no space. Each input has one outstanding request, so the grants are round-robin.
* M is busy until ``start + s/bw``. The last byte leaves at ``tail = max(start + s/bw, arrival of the last byte)``.
* The space in L returns at ``tail``. The head is at the far end at ``start + overhead``, the last byte at
  ``tail + overhead``.

A request may be entered before it becomes valid, because the grant of the previous packet fixes its time. A packet
therefore costs one event per hop, plus one arbitration if the packet waits. The code uses conditional expressions for
the larger of two numbers, since calls of ``max`` would cost a tenth of the run time.
"""

from __future__ import annotations

from bisect import insort

from kernbench.core.clock import NEVER, RANK_ARBITRATE
from kernbench.transport.probe import begin_probe
from kernbench.transport.state import Link, Packet, PacketInput, Port, Transfer
from kernbench.transport.timing import Supply


def enqueue(transfer: Transfer, now: int) -> None:
    """Send ``transfer`` packet by packet, after the earlier transfers of its port."""
    for link in transfer.route.links:
        link.users += 1
        link.express_free_at = NEVER
    join_queue(transfer)
    refill(transfer.port, now)


def join_queue(transfer: Transfer) -> None:
    """Append ``transfer`` to the queue of its port; the port cuts transfers into packets in order."""
    port = transfer.port
    if not port.queue:
        port.look_after(len(transfer.route.links))
    port.queue.append(transfer)


def supply(transfer: Transfer, more: Supply, now: int) -> None:
    """Make more packets of ``transfer`` available."""
    transfer.extend_supplies(more)
    refill(transfer.port, now)


def curtail(transfer: Transfer, count: int) -> None:
    """Withdraw the supply beyond the first ``count`` packets of ``transfer``; no later packet has a grant yet."""
    port = transfer.port
    transfer.curtail_supplies(count)
    if port.probe is not None:
        port.probe.end()
    if transfer.next_packet > count:
        link = port.fifo.popleft().links[0]
        link.requests = [entry for entry in link.requests if entry[2] is not port]
        transfer.next_packet -= 1


def refill(port: Port, now: int) -> None:
    """Cut the port's next packet if no packet waits there and the next packet's supply is known."""
    if port.fifo or not port.queue:
        return
    transfer = port.queue[0]
    number = transfer.next_packet
    if number == transfer.supplied:
        return
    when, tail = (0, 0) if transfer.supplies is None else transfer.available(number)
    when = when if when > now else now
    when = when if when > port.ready_at else port.ready_at
    transfer.next_packet = number + 1
    last = number == transfer.n_full
    size = transfer.last_bytes if last else transfer.route.packet_bytes
    packet = Packet(transfer, size, last, 0, tail)
    port.fifo.append(packet)
    if port.patience:
        port.patience -= 1
    elif port.probe is not None:
        port.probe.follow(packet)
    else:
        begin_probe(port, packet, number)
    request(packet.links[0], port, when)


def request(link: Link, source: PacketInput, when: int) -> None:
    """Request ``link`` for the front packet of ``source``; the request is valid from ``when`` on."""
    now = link.clock.time
    if when <= now and link.free_at <= now and not (link.requests and link.requests[0][0] <= now):
        need = source.fifo[0].need
        free = link.used + need <= link.capacity or _has_room(link, need, now)
    else:
        free = False
    if free:
        grant(link, source, now)
    else:
        insort(link.requests, (when, source.index, source))
        arm(link, now)


def arm(link: Link, now: int) -> None:
    """Schedule an arbitration at the first time at which the front request can be granted, if that time is known."""
    when, _, source = link.requests[0]
    when = when if when > link.free_at else link.free_at
    when = when if when > now else now
    need = source.fifo[0].need
    if link.used + need > link.capacity:
        room_at = _room_at(link, need, now)
        when = when if when > room_at else room_at
    if when < link.armed_at:
        link.armed_at = when
        link.clock.call_at(when, arbitrate, link, RANK_ARBITRATE + link.index)


def arbitrate(link: Link) -> None:
    """Grant the front request if that is possible now, and arm the link for the next request."""
    now = link.clock.time
    if link.armed_at <= now:
        link.armed_at = NEVER
    requests = link.requests
    if not requests:
        return
    when, _, source = requests[0]
    need = source.fifo[0].need
    room = link.used + need <= link.capacity or _has_room(link, need, now)
    if room and when <= now and link.free_at <= now:
        del requests[0]
        if when < now and link.free_at < now and link.watch.on:
            link.watch.note_stall(link, source.fifo[0].transfer)
        grant(link, source, now)
    if requests:
        arm(link, now)


def grant(link: Link, source: PacketInput, now: int) -> None:
    """Send the front packet of ``source``."""
    packet = source.fifo.popleft()
    size = packet.size
    free = now + (link.times_ps.get(size) or link.occupy_ps(size))
    transfer, watch = packet.transfer, link.watch
    if watch.on:
        if link.last_granted != transfer.number or source.last_sent != transfer.number:
            watch.note_grant(link, source, transfer, now)
        if watch.keeps_links:
            watch.note_traffic(transfer, link, now, free, size)
    link.free_at = free
    link.granted_bytes += size
    link.busy_ps += free - now
    tail = packet.tail if packet.tail > free else free
    if transfer.hop_times is not None or transfer.probe is not None:
        _note_grant(packet, now, tail)
    hop = packet.hop = packet.hop + 1
    if hop == len(packet.links):
        if transfer.head_ps == NEVER:
            transfer.head_ps = now + link.overhead_ps
        if packet.last:
            release_link(link)
            link.clock.call_at(tail + link.overhead_ps, deliver, transfer, transfer.route.deliver_rank)
    else:
        if link.credits and link.credits[0][0] <= now:
            collect(link, now)
        used = link.used = link.used + size
        link.peak = used if used > link.peak else link.peak
        if hop + 1 == len(packet.links):
            packet.need = 0
        packet.tail = tail + link.hop_ps
        link.clock.call_at(now + link.hop_ps, link.arrive, packet, link.arrive_rank)
    if isinstance(source, Link):
        _leave_fifo(source, packet, tail, now)
    else:
        _leave_port(source, packet, tail, now)


def _note_grant(packet: Packet, start: int, tail: int) -> None:
    """Record a grant of a transfer that is traced (its first start and last tail) or followed by a probe."""
    times, probe = packet.transfer.hop_times, packet.transfer.probe
    if times is not None:
        if times.starts[packet.hop] < 0:
            times.starts[packet.hop] = start
        if packet.last:
            times.tails[packet.hop] = tail
    if probe is not None:
        probe.note(packet, start)


def _leave_port(port: Port, packet: Packet, tail: int, now: int) -> None:
    """Let the next packet of a port request its link when ``packet`` has left, at ``tail``."""
    port.ready_at = port.express_free_at = tail
    if packet.last:
        port.queue.popleft()
    refill(port, now)


def _leave_fifo(link: Link, packet: Packet, tail: int, now: int) -> None:
    """Return the packet's space to the FIFO at ``tail``, and let the next packet request its link from then on."""
    link.ready_at = tail
    link.credits.append((tail, packet.size))
    if packet.last:
        release_link(link)
    if link.requests:
        arm(link, now)
    if link.fifo:
        following = link.fifo[0]
        request(following.links[following.hop], link, tail)


def offer(source: PacketInput, when: int) -> None:
    """Enter the request of the front packet for its next link, from ``when`` on."""
    packet = source.fifo[0]
    request(packet.links[packet.hop], source, when)


def release_link(link: Link) -> None:
    """Record that a transfer by packets has passed ``link`` or will not use it; the last one lets express follow."""
    link.users -= 1
    if not link.users:
        resume(link)


def resume(link: Link) -> None:
    """Set ``express_free_at`` of a link that packets use, or have used, to the time from which express may use it."""
    link.express_free_at = NEVER if link.users else max(link.free_at, link.ready_at)


def arrive(packet: Packet) -> None:
    """Put ``packet``, whose head has arrived, into the FIFO behind its last link."""
    link = packet.links[packet.hop - 1]
    fifo = link.fifo
    fifo.append(packet)
    if len(fifo) == 1:
        now = link.clock.time
        request(packet.links[packet.hop], link, link.ready_at if link.ready_at > now else now)


def deliver(transfer: Transfer) -> None:
    """Deliver a transfer whose last byte has arrived."""
    transfer.deliver(transfer.route.links[-1].clock.time)


def collect(link: Link, now: int) -> None:
    """Add the credits that have returned to the free space of the FIFO."""
    returning = link.credits
    while returning and returning[0][0] <= now:
        link.used -= returning.popleft()[1]


def _has_room(link: Link, size: int, now: int) -> bool:
    if link.used + size <= link.capacity:
        return True
    collect(link, now)
    return link.used + size <= link.capacity


def _room_at(link: Link, size: int, now: int) -> int:
    """Return the time at which ``size`` bytes fit, by the credits in flight: ``now``, later, or NEVER."""
    missing = link.used + size - link.capacity
    if missing <= 0:
        return now
    for when, nbytes in link.credits:
        missing -= nbytes
        if missing <= 0:
            return when
    return NEVER
