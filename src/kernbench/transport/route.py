"""Routes and the closed forms of a transfer that nobody disturbs.

Packet k of a transfer of n equal packets (the last may be smaller), alone on links j = 0 … H-1:

    pace[j]    = max(supply pace, serialisation of a full packet on links 0 … j)
    start(k,j) = t0 + offset[j] + k · pace[j]                offset[j] = Σ overhead of links 0 … j-1
    tail(k,j)  = start(k,j) + pace[j]                        when the packet's last byte has left onto link j
    tail(n,j)  = t0 + offset[j] + ends[j]                    for the last one:
                                                             ends[j] = max(n·pace[j] + its time, ends[j-1])

They follow by induction from the rules of a hop (``link.py``) as long as no packet waits for a credit, and they are
exact in integer picoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernbench.core.clock import RANK_DELIVER

if TYPE_CHECKING:
    from kernbench.transport.link import Link


@dataclass(frozen=True, slots=True)
class Pace:
    """How a source makes bytes available: full packets in ``packet_ps``, the last one in ``last_ps``; 0, 0: at once."""

    packet_ps: int
    last_ps: int


AT_ONCE = Pace(0, 0)


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """The undisturbed course of a transfer of one size and supply pace over links of certain figures.

    Times in ps after its start: ``offsets[j]`` when the first packet is granted link j, ``gone[j]`` when the last has
    left it and the FIFO behind it. ``peaks[j]`` is the most bytes it holds at once in that FIFO, ``fits`` whether no
    FIFO is smaller; ``busy[j]`` how long it serialises on link j.
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


class Passage:
    """A profile on the links of a route; ``carried``: transfers that the figures of the links do not have yet."""

    __slots__ = ("carried", "links", "profile")

    def __init__(self, links: tuple[Link, ...], profile: Profile) -> None:
        self.links = links
        self.profile = profile
        self.carried = 0

    def post_figures(self) -> None:
        """Add to the links what transfers have carried that had them for themselves, and forget it."""
        profile, n = self.profile, self.carried
        for link, busy_ps in zip(self.links, profile.busy, strict=True):
            link.granted_bytes += n * profile.nbytes
            link.busy_ps += n * busy_ps
        for link, peak in zip(self.links, profile.peaks, strict=False):
            link.peak = max(link.peak, peak)
        self.carried = 0


class Timing:
    """What transfers take on links of certain figures: one for all routes over such links.

    Machines are made of equal parts, so there are few. What every transfer looks at is then in few places of memory.
    """

    __slots__ = ("_links", "_packet_bytes", "_profiles", "offsets", "total_overhead_ps")

    def __init__(self, links: tuple[Link, ...], packet_bytes: int) -> None:
        self._links = links
        self._packet_bytes = packet_bytes
        self._profiles: dict[tuple[int, int, int], Profile] = {}
        offsets = [0]
        for link in links[:-1]:
            offsets.append(offsets[-1] + link.hop_ps)
        self.offsets = tuple(offsets)
        self.total_overhead_ps = offsets[-1] + links[-1].overhead_ps

    def profile(self, nbytes: int, pace: Pace) -> Profile:
        """The course of ``nbytes`` supplied at ``pace`` (cached)."""
        key = (nbytes, pace.packet_ps, pace.last_ps)
        found = self._profiles.get(key)
        if found is None:
            found = self._profiles[key] = self._make_profile(nbytes, pace)
        return found

    def _make_profile(self, nbytes: int, pace: Pace) -> Profile:
        n_full = (nbytes - 1) // self._packet_bytes
        last_bytes = nbytes - n_full * self._packet_bytes
        step = pace.packet_ps
        end = n_full * step + pace.last_ps
        steps: list[int] = []
        ends: list[int] = []
        busy: list[int] = []
        for link in self._links:
            last_ps = link.serialise_ps(last_bytes)
            step = max(step, link.packet_ps)
            end = max(end, n_full * step + last_ps)
            steps.append(step)
            ends.append(end)
            busy.append(n_full * link.packet_ps + last_ps)
        peaks = self._own_peaks(nbytes, n_full, steps, ends) if n_full else [nbytes] * (len(self._links) - 1)
        over = [offset + end for offset, end in zip(self.offsets, ends, strict=True)]
        return Profile(
            nbytes=nbytes,
            packet_bytes=self._packet_bytes,
            n_full=n_full,
            pace=tuple(steps),
            ends=tuple(ends),
            peaks=tuple(peaks),
            busy=tuple(busy),
            offsets=self.offsets,
            gone=(*over[1:], over[-1]),
            latency_ps=self.total_overhead_ps + ends[-1],
            leaves_port_ps=ends[0],
            fits=all(peak <= link.capacity for link, peak in zip(self._links, peaks, strict=False)),
        )

    def _own_peaks(self, nbytes: int, n_full: int, pace: list[int], ends: list[int]) -> list[int]:
        """Most bytes in the FIFO behind each link but the last: occupancy grows with grants, so at the last two."""
        peaks: list[int] = []
        offsets, size = self.offsets, self._packet_bytes
        for hop in range(len(pace) - 1):
            there = offsets[hop] - offsets[hop + 1]
            peak = 0
            for k, granted in ((n_full - 1, n_full * size), (n_full, nbytes)):
                since = there + k * pace[hop]
                if since < ends[hop + 1]:
                    gone = min(max(since // pace[hop + 1], 0), n_full)
                    peak = max(peak, granted - gone * size)
            peaks.append(peak)
        return peaks


class Route:
    """The links from a source to a destination, in order."""

    __slots__ = (
        "deliver_rank",
        "links",
        "offsets",
        "packet_bytes",
        "passages",
        "passages_at_once",
        "timing",
        "total_overhead_ps",
    )

    def __init__(self, links: tuple[Link, ...], packet_bytes: int, timing: Timing | None = None) -> None:
        """``timing``: that of other links with the same figures."""
        self.links = links
        self.packet_bytes = packet_bytes
        self.timing = timing = timing or Timing(links, packet_bytes)
        self.passages: dict[tuple[int, int, int], Passage] = {}
        self.passages_at_once: dict[int, Passage] = {}
        self.deliver_rank = RANK_DELIVER + links[-1].index
        self.offsets = timing.offsets
        self.total_overhead_ps = timing.total_overhead_ps

    @property
    def bottleneck_gbs(self) -> float:
        """The smallest bandwidth on the way, bytes per ns."""
        return min(link.bw_gbs for link in self.links)

    def latency_ps(self, nbytes: int, pace: Pace = AT_ONCE) -> int:
        """Time from injection to delivery when nobody else is there: Σ overhead + max(supply, S / min(bw))."""
        return self.profile(nbytes, pace).latency_ps

    def profile(self, nbytes: int, pace: Pace) -> Profile:
        """The course of ``nbytes`` supplied at ``pace`` (cached)."""
        return self.timing.profile(nbytes, pace)

    def passage(self, nbytes: int, pace: Pace) -> Passage:
        """The course of ``nbytes`` supplied at ``pace`` with its links (cached)."""
        if pace is AT_ONCE:
            found = self.passages_at_once.get(nbytes)
            if found is None:
                found = self.passages_at_once[nbytes] = Passage(self.links, self.profile(nbytes, pace))
            return found
        key = (nbytes, pace.packet_ps, pace.last_ps)
        found = self.passages.get(key)
        if found is None:
            found = self.passages[key] = Passage(self.links, self.profile(nbytes, pace))
        return found

    def started_bytes(self, profile: Profile, hop: int, after: int) -> int:
        """Bytes granted onto link ``hop`` up to ``after`` ps from the start of the transfer."""
        since = after - self.offsets[hop]
        if since < 0:
            return 0
        packets = since // profile.pace[hop] + 1
        return profile.nbytes if packets > profile.n_full else packets * profile.packet_bytes

    def resident_bytes(self, profile: Profile, hop: int, after: int) -> int:
        """Bytes granted onto link ``hop`` and not yet gone from the FIFO behind it, ``after`` ps from the start."""
        since = after - self.offsets[hop + 1]
        if since >= profile.ends[hop + 1]:
            return 0
        gone = min(max(since // profile.pace[hop + 1], 0), profile.n_full)
        return self.started_bytes(profile, hop, after) - gone * profile.packet_bytes
