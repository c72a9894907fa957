"""The closed forms of an uncontended transfer, from the figures of the links on its route.

A transfer of n full packets and a last one, which may be smaller, is alone on links j = 0 … H-1. For packet k:

    pace[j]    = max(supply pace, serialisation of a full packet on links 0 … j)
    start(k,j) = t0 + offset[j] + k · pace[j]                offset[j] = Σ overhead of links 0 … j-1
    tail(k,j)  = start(k,j) + pace[j]                        the packet's last byte has left onto link j
    tail(n,j)  = t0 + offset[j] + ends[j]                    for the last packet:
                                                             ends[j] = max(n·pace[j] + its time, ends[j-1])

The closed forms follow by induction from the rules of a hop (``packets.py``) if no packet waits for a credit. They are
exact in integer picoseconds. They can also describe a transfer behind a backlog, where packet 0 is granted link j
``slack[j]`` after its head has arrived. If link j is at least as slow as every link before it, all other packets are
granted link j with the same slack:

    offset[j] = offset[j-1] + overhead of link j-1 + slack[j]
    ends[j]   = max(n·pace[j] + its time, ends[j-1] - slack[j])
"""

from __future__ import annotations

from typing import NamedTuple

from kernbench.common.units import transfer_ps
from kernbench.common.values import value


class Pace(NamedTuple):
    """The pace of a source: ``packet_ps`` for each full packet, ``last_ps`` for the last one. (0, 0): all at once."""

    packet_ps: int
    last_ps: int


AT_ONCE = Pace(0, 0)


@value(eq=False, guarded=False)
class Supply:
    """The supply of packets ``first`` … ``first + count - 1``, available one after another from ``start_ps`` on."""

    first: int
    count: int
    start_ps: int
    pace: Pace


class LinkFigures(NamedTuple):
    """The figures of a link that decide the times of packets; links with equal figures have equal times."""

    bw_gbs: float
    overhead_ps: int
    capacity: int
    packet_bytes: int

    @property
    def hop_ps(self) -> int:
        """The time in ps from a grant to the head's arrival at the far end, at least 1.

        With a time of 0 ps, the order of events within an instant would decide the next arbitration.
        """
        return max(1, self.overhead_ps)

    def serialise_ps(self, nbytes: int) -> int:
        """Return the time in ps for which a packet of ``nbytes`` occupies the link."""
        return transfer_ps(nbytes, self.bw_gbs)


@value(eq=False)
class Profile:
    """The uncontended course of a transfer of one size and supply pace over links of certain figures.

    Times are in ps after the transfer's start:

    - ``offsets[j]``: the first packet is granted link j. ``gone[j]``: the last packet has left link j and its FIFO.
    - ``peaks[j]``: the largest number of the transfer's bytes in the FIFO behind link j. ``fits``: every FIFO is large
      enough.
    - ``busy[j]``: serialisation time on link j.
    """

    nbytes: int
    packet_bytes: int
    n_full: int
    pace: tuple[int, ...]
    ends: tuple[int, ...]
    peaks: tuple[int, ...]
    busy: tuple[int, ...]
    offsets: tuple[int, ...]
    gone: tuple[int, ...]
    latency_ps: int
    leaves_port_ps: int
    fits: bool

    def start(self, number: int, hop: int) -> int:
        """Return the time at which packet ``number`` is granted link ``hop``."""
        return self.offsets[hop] + number * self.pace[hop]

    def tail(self, number: int, hop: int) -> int:
        """Return the time at which the last byte of packet ``number`` has left onto link ``hop``."""
        if number == self.n_full:
            return self.offsets[hop] + self.ends[hop]
        return self.start(number, hop) + self.pace[hop]

    def gone_packets(self, hop: int, after: int) -> int:
        """Return the number of packets, except the last, that have completely left onto link ``hop`` at ``after``."""
        return min(max((after - self.offsets[hop]) // self.pace[hop], 0), self.n_full)

    def started_bytes(self, hop: int, after: int) -> int:
        """Return the bytes granted onto link ``hop`` up to ``after``."""
        since = after - self.offsets[hop]
        if since < 0:
            return 0
        packets = since // self.pace[hop] + 1
        return self.nbytes if packets > self.n_full else packets * self.packet_bytes

    def resident_bytes(self, hop: int, after: int) -> int:
        """Return the bytes granted onto link ``hop`` that have not left the FIFO behind it; 0 for the last link."""
        beyond = hop + 1
        if beyond == len(self.offsets) or after - self.offsets[beyond] >= self.ends[beyond]:
            return 0
        return self.started_bytes(hop, after) - self.gone_packets(beyond, after) * self.packet_bytes


class RouteTiming:
    """The times of transfers over links of certain figures, shared by all routes over such links.

    Machines consist of equal parts, so a machine needs few timings. The data that every transfer reads therefore stays
    in the cache of the host's CPU. ``profiles``: the profiles made so far, by size and pace.
    """

    __slots__ = ("_links", "_packet_bytes", "offsets", "profiles", "total_overhead_ps")

    def __init__(self, links: tuple[LinkFigures, ...]) -> None:
        self._links = links
        self._packet_bytes = links[0].packet_bytes
        self.profiles: dict[tuple[int, Pace], Profile] = {}
        offsets = [0]
        for link in links[:-1]:
            offsets.append(offsets[-1] + link.hop_ps)
        self.offsets = tuple(offsets)
        self.total_overhead_ps = offsets[-1] + links[-1].overhead_ps

    def profile(self, nbytes: int, pace: Pace) -> Profile:
        """Return the cached course of ``nbytes`` supplied at ``pace``."""
        profile = self.profiles.get((nbytes, pace))
        if profile is None:
            profile = self.profiles[nbytes, pace] = self.make_profile(nbytes, pace, self.offsets)
        return profile

    def make_profile(self, nbytes: int, pace: Pace, offsets: tuple[int, ...]) -> Profile:
        """Return a course of ``nbytes`` supplied at ``pace`` whose first packet is granted links at ``offsets``."""
        n_full = (nbytes - 1) // self._packet_bytes
        last_bytes = nbytes - n_full * self._packet_bytes
        step = pace.packet_ps
        end = n_full * step + pace.last_ps
        late = 0
        steps: list[int] = []
        ends: list[int] = []
        busy: list[int] = []
        for link, offset, zero_load_offset in zip(self._links, offsets, self.offsets, strict=True):
            packet_ps, last_ps = link.serialise_ps(self._packet_bytes), link.serialise_ps(last_bytes)
            step = max(step, packet_ps)
            late, before = offset - zero_load_offset, late
            end = max(end + before - late, n_full * step + last_ps)
            steps.append(step)
            ends.append(end)
            busy.append(n_full * packet_ps + last_ps)
        peaks = self._own_peaks(nbytes, steps, ends, offsets) if n_full else [nbytes] * (len(self._links) - 1)
        over = [offset + end for offset, end in zip(offsets, ends, strict=True)]
        return Profile(
            nbytes=nbytes,
            packet_bytes=self._packet_bytes,
            n_full=n_full,
            pace=tuple(steps),
            ends=tuple(ends),
            peaks=tuple(peaks),
            busy=tuple(busy),
            offsets=offsets,
            gone=(*over[1:], over[-1]),
            latency_ps=over[-1] + self._links[-1].overhead_ps,
            leaves_port_ps=ends[0],
            fits=all(peak <= link.capacity for link, peak in zip(self._links, peaks, strict=False)),
        )

    def _own_peaks(self, nbytes: int, pace: list[int], ends: list[int], offsets: tuple[int, ...]) -> list[int]:
        """Return the largest number of the transfer's bytes in the FIFO behind each link, except the last link.

        The occupancy grows from grant to grant, so its values at the last two grants are enough.
        """
        peaks: list[int] = []
        size = self._packet_bytes
        n_full = (nbytes - 1) // size
        for hop in range(len(pace) - 1):
            head_start = offsets[hop] - offsets[hop + 1]
            peak = 0
            for k, granted in ((n_full - 1, n_full * size), (n_full, nbytes)):
                since = head_start + k * pace[hop]
                if since < ends[hop + 1]:
                    gone = min(max(since // pace[hop + 1], 0), n_full)
                    peak = max(peak, granted - gone * size)
            peaks.append(peak)
        return peaks
