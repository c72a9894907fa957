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

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernbench.sim_engine.transport.link import Link


@dataclass(frozen=True, slots=True)
class Pace:
    """How a source makes bytes available: full packets in ``packet_ps``, the last one in ``last_ps``; 0, 0: at once."""

    packet_ps: int
    last_ps: int


AT_ONCE = Pace(0, 0)


@dataclass(frozen=True, slots=True)
class Profile:
    """The undisturbed course of a transfer of one size and supply pace over one route. Times in ps after its start.

    ``peaks[j]`` is the most bytes it holds at once in the FIFO behind link j, ``busy[j]`` how long it serialises there.
    """

    nbytes: int
    packet_bytes: int
    n_full: int
    pace: tuple[int, ...]
    ends: tuple[int, ...]
    peaks: tuple[int, ...]
    busy: tuple[int, ...]


class Route:
    """The links from a source to a destination, in order."""

    __slots__ = ("links", "offsets", "packet_bytes", "profiles", "total_overhead_ps")

    def __init__(self, links: tuple[Link, ...], packet_bytes: int) -> None:
        self.links = links
        self.packet_bytes = packet_bytes
        self.profiles: dict[tuple[int, int, int], Profile] = {}
        offsets = [0]
        for link in links[:-1]:
            offsets.append(offsets[-1] + link.hop_ps)
        self.offsets = tuple(offsets)
        self.total_overhead_ps = offsets[-1] + links[-1].overhead_ps

    @property
    def bottleneck_gbs(self) -> float:
        """The smallest bandwidth on the way, bytes per ns."""
        return min(link.bw_gbs for link in self.links)

    def latency_ps(self, nbytes: int, pace: Pace = AT_ONCE) -> int:
        """Time from injection to delivery when nobody else is there: Σ overhead + max(supply, S / min(bw))."""
        return self.total_overhead_ps + self.profile(nbytes, pace).ends[-1]

    def profile(self, nbytes: int, pace: Pace) -> Profile:
        """The course of ``nbytes`` supplied at ``pace`` (cached)."""
        key = (nbytes, pace.packet_ps, pace.last_ps)
        found = self.profiles.get(key)
        if found is None:
            found = self.profiles[key] = self._make_profile(nbytes, pace)
        return found

    def _make_profile(self, nbytes: int, pace: Pace) -> Profile:
        n_full = (nbytes - 1) // self.packet_bytes
        last_bytes = nbytes - n_full * self.packet_bytes
        step = pace.packet_ps
        end = n_full * step + pace.last_ps
        steps: list[int] = []
        ends: list[int] = []
        for link in self.links:
            step = max(step, link.packet_ps)
            end = max(end, n_full * step + link.serialise_ps(last_bytes))
            steps.append(step)
            ends.append(end)
        busy = tuple(n_full * link.packet_ps + link.serialise_ps(last_bytes) for link in self.links)
        profile = Profile(nbytes, self.packet_bytes, n_full, tuple(steps), tuple(ends), (), busy)
        return replace(profile, peaks=tuple(self._own_peak(profile, hop) for hop in range(len(self.links) - 1)))

    def _own_peak(self, profile: Profile, hop: int) -> int:
        """Most bytes in the FIFO behind link ``hop``: occupancy grows with every grant, so at the last two of them."""
        grants = (max(profile.n_full - 1, 0), profile.n_full)
        return max(self.resident_bytes(profile, hop, self.offsets[hop] + k * profile.pace[hop]) for k in grants)

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
