"""Closed forms and bounds of collectives: steps × latency + bytes over the bottleneck, along the longest chain.

A queue has s slots, and a slot is free once its credit has returned. The last of n consecutive messages is sent

    behind(n) = (n-1) // s · max(a + credit, s t) + (n-1) mod s · t     t = max(c/B, MATH(c))

after the first; ``ccl_ways`` defines a, L and B. A ring of N over S bytes has parts of m = S/N, in k messages of
c = min(m, slot). Each of 2(N-1) steps passes a part on, message by message, so steps overlap:

    ring = max(2(N-1) a + behind(k), behind(2(N-1) k) + a)

With k = 1 this is 2(N-1) (L + m/B) plus the costs at the ends: the textbook's reduce-scatter and all-gather. Pieces
are loaded while messages circulate. Before the ring comes one load, or all loads if half of the ring remains. All
stores follow the ring.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from math import ceil
from typing import NamedTuple

from kernbench.common.units import whole_ps
from kernbench.common.values import value
from kernbench.engine.machine import Machine
from kernbench.evaluation.ccl_ways import PeHop, QueueFigures, QueueWay, Round, Ways, round_of
from kernbench.messages.requests import PeCoord
from kernbench.topology.grid import Side
from kernbench.topology.spec import sip_neighbours


@value(kw_only=True)
class RingTime:
    """The terms of the time of a ring all-reduce, in ns.

    ``oracle_ns``: 2(N-1) (L + m/B). ``ends_ns``: queues, DMA set-up and MATH of 2(N-1) messages. ``overlap_ns``,
    negative: time saved because steps of several messages overlap. ``stalls_ns``: waits for credits. ``start_ns``:
    launch and first command. ``load_ns``: time until the first message is loaded, plus delays by later loads.
    ``store_ns``: all stores.
    """

    oracle_ns: float
    ends_ns: float
    overlap_ns: float
    stalls_ns: float
    start_ns: float
    load_ns: float
    store_ns: float

    @property
    def ring_ns(self) -> float:
        """The time of the ring without loads and stores."""
        return self.oracle_ns + self.ends_ns + self.overlap_ns + self.stalls_ns

    @property
    def ns(self) -> float:
        """The total time."""
        return self.start_ns + self.load_ns + self.ring_ns + self.store_ns


class Line(NamedTuple):
    """A row of ``n`` SIPs with hops ``way`` towards ``side``. ``both``: a ring that is used in both directions."""

    side: Side
    n: int
    way: QueueWay
    both: bool


class Phase(NamedTuple):
    """The steps ``begin`` to ``end`` of a precomputed schedule, which use ``line``.

    ``ns``: time of the phase alone, of which the line is busy for ``busy_ns``. ``latency_ns``: time of the steps with
    one message per step, each ``one_ns``. ``messages``: number of messages per place.
    """

    line: Line
    begin: int
    end: int
    ns: float
    busy_ns: float
    one_ns: float
    latency_ns: float
    messages: int


class ClosedForms:
    """The closed forms of a machine with queues in TCM. ``pes``: the PE of each rank. ``nbytes``: bytes per rank."""

    def __init__(self, machine: Machine, queues: QueueFigures) -> None:
        self.ways, self._spec, self._queues = Ways(machine, queues), machine.spec, queues

    def sip_ns(self, owners: Sequence[tuple[int, int]], nbytes: int) -> float:
        """Return the time of ``sip_allreduce``. Each PE (cube, pe) of ``owners`` per SIP has a shard of ``nbytes``."""
        sips = self._spec.system.sips
        if sips.count == 1:
            return self.ways.start_ns
        if not self._is_grid:
            return whole_ps(self.ring(sips.count, nbytes, self.sip_round(owners)).ns)
        return whole_ps(
            self.ways.start_ns
            + sum(self._over_grid(part, self._lines(owners)) for part in self._split_by_scratch(nbytes))
        )

    def sip_round(self, owners: Sequence[tuple[int, int]] = ((0, 0),)) -> Round:
        """Return the ring of all SIPs, by number."""
        n = self._spec.num_sips
        hops = [self.beside((sip, *pe), ((sip + 1) % n, *pe), "E") for sip in range(n) for pe in owners]
        return round_of(self.ways.of(hops))

    def ring(self, n: int, nbytes: int, ring: Round) -> RingTime:
        """Return the time of reduce-scatter and all-gather round a ring of ``n`` places, in pieces that fit a PE."""
        passes = [self._ring(n, part, ring) for part in self._split_by_scratch(nbytes)]
        return RingTime(
            oracle_ns=_sum(time.oracle_ns for time in passes),
            ends_ns=_sum(time.ends_ns for time in passes),
            overlap_ns=_sum(time.overlap_ns for time in passes),
            stalls_ns=_sum(time.stalls_ns for time in passes),
            start_ns=whole_ps(self.ways.start_ns),
            load_ns=_sum(time.load_ns for time in passes),
            store_ns=_sum(time.store_ns for time in passes),
        )

    def _ring(self, n: int, nbytes: int, ring: Round) -> RingTime:
        part = ceil(nbytes / n)
        chunk, steps = min(part, self._queues.slot_size), 2 * (n - 1)
        messages = ceil(part / chunk)
        way = ring.step
        one, pieces = self.ways.message_ns(way, chunk), n * messages
        # The last part is added after its load. The all-gather follows.
        all_steps = self._steps_ns(n, ring, chunk, messages)
        loaded = self._load_ns(nbytes, pieces, nbytes - part) + self._steps_ns(n, ring, chunk, messages, phases=1)
        oracle = steps * (way.latency_ns + part / way.bw_gbs)
        ends = steps * (self.ways.ends_ns + self.ways.math_ns(chunk))
        interval = self._between_ns(way, chunk)
        free = max(steps * one + (messages - 1) * interval, (steps * messages - 1) * interval + one)
        return RingTime(
            oracle_ns=oracle,
            ends_ns=ends,
            overlap_ns=free - oracle - ends,
            stalls_ns=all_steps - free,
            start_ns=0.0,
            load_ns=max(self.ways.load_ns(chunk), loaded - all_steps),
            store_ns=self.ways.store_ns(ceil(nbytes / pieces), pieces),
        )

    def _load_ns(self, nbytes: int, pieces: int, messages: int) -> float:
        """Return the time of all loads while ``messages`` bytes arrive over the same link of the PE."""
        alone = self.ways.load_ns(ceil(nbytes / pieces), pieces)
        return max(alone, self.ways.load_beside_ns(nbytes, messages))

    def _store_ns(self, nbytes: int, pieces: int) -> float:
        """Return the time of all stores after the last message."""
        return self.ways.store_ns(ceil(nbytes / pieces), pieces)

    def _steps_ns(self, n: int, ring: Round, chunk: int, messages: int, phases: int = 2) -> float:
        """Return the time of n-1 steps per phase round a ring, with ``messages`` messages in each step."""
        steps = phases * (n - 1)
        if not steps:
            return 0.0
        one = self.ways.message_ns(ring.step, chunk)
        passed_on = steps * one + self._behind_ns(ring.slowest, chunk, messages)
        return max(passed_on, self._behind_ns(ring.slowest, chunk, steps * messages) + one)

    def _between_ns(self, way: QueueWay, chunk: int) -> float:
        """Return the interval between messages without waits for credits. The route or the MATH unit limits it."""
        return max(chunk / way.stream_gbs, self.ways.math_ns(chunk))

    def _behind_ns(self, way: QueueWay, chunk: int, messages: int) -> float:
        """Return the time from the first to the last of ``messages`` messages."""
        rounds, rest = divmod(messages - 1, self._queues.n_slots)
        interval = self._between_ns(way, chunk)
        return (
            rounds * max(self.ways.message_ns(way, chunk) + way.credit_ns, self._queues.n_slots * interval)
            + rest * interval
        )

    @property
    def _is_grid(self) -> bool:
        sips = self._spec.system.sips
        return sips.two_dimensional and min(sips.grid.w, sips.grid.h) > 1

    def _over_grid(self, nbytes: int, lines: Sequence[Line]) -> float:
        """Return the time of loads, exchange along rows and columns, and stores.

        Half of a large tensor starts on the columns. Both halves follow one precomputed schedule. The end of a first
        phase needs the piece that is loaded last. All messages until then arrive over the PE link that also carries
        the loads.
        """
        even = self._spec.num_sips * (2 if lines[0].both and nbytes > 2 * self._queues.slot_size else 1)
        pieces = ceil(nbytes / (self._queues.slot_size * even)) * even
        chunk = ceil(nbytes / pieces)
        ways = [lines, lines[::-1]] if pieces >= 2 * self._spec.num_sips else [lines]
        halves = [self._phases(way, chunk, ceil(pieces / len(ways))) for way in ways]
        first, end = max(half[0].end for half in halves), max(half[-1].end for half in halves)
        messages = sum(half[0].messages for half in halves)
        loading = self.ways.load_ns(chunk) + _together_ns(halves, 0, first)
        loaded = self._load_ns(nbytes, pieces, messages * chunk)
        exchanged = max(loading, loaded) + _together_ns(halves, first, end) + _out_of_step_ns(halves)
        return exchanged + self._store_ns(nbytes, pieces)

    def _lines(self, owners: Sequence[tuple[int, int]]) -> list[Line]:
        """Return the rows and the columns of the SIP grid."""
        sips = self._spec.system.sips
        both = sips.topology == "torus_2d"
        line_list = []
        axes: list[tuple[int, Side, int]] = [(sips.grid.w, "E", 1), (sips.grid.h, "S", sips.grid.w)]
        for n, side, peer in axes:
            hops = [self.beside((0, *pe), (peer, *pe), side) for pe in owners]
            line_list.append(Line(side, n, round_of(self.ways.of(hops)).slowest, both))
        return line_list

    def _phases(self, lines: Sequence[Line], chunk: int, count: int) -> list[Phase]:
        """Return the phases: a reduce-scatter per line, of the parts that earlier lines left, then all-gathers back.

        Parts consist of whole messages. The all-gather of the last line follows message by message.

        A line of n has n-1 steps, in each of which a message of every piece of a part goes each way. A ring used in
        both directions has half as many steps, and a queue carries half of (n-1) parts. A place in the middle of a line
        receives n + 1 parts, any other place n - 1.
        """
        outward: list[Phase] = []
        begin = 0
        for line in lines:
            _, n, way, both = line
            count = ceil(count / n)
            phases = 2 if line is lines[-1] else 1
            turns, carried = (n // 2, ceil((n - 1) / 2 * count)) if both else (n - 1, (n - 1) * count)
            one = self.ways.message_ns(way, chunk)
            latency, busy = phases * turns * one, self._behind_ns(way, chunk, phases * carried)
            alone = max(latency + self._behind_ns(way, chunk, min(count, carried)), busy + one)
            messages = (n + 1 if n > 2 and not both else n - 1) * count
            outward.append(Phase(line, begin, begin + phases * turns * count, alone, busy, one, latency, messages))
            begin = outward[-1].end
        end = outward[-1].begin + begin
        back = [phase._replace(begin=end - phase.end, end=end - phase.begin) for phase in outward[-2::-1]]
        return [*outward, *back]

    def _split_by_scratch(self, nbytes: int) -> Iterator[int]:
        """Yield the bytes that a PE processes at a time: tensors get a quarter of the PE's scratch memory."""
        most = self._spec.pe.tcm.scratch_bytes // 4
        for at in range(0, nbytes, most):
            yield min(most, nbytes - at)

    def beside(self, src: PeCoord, dst: PeCoord, side: Side | None = None) -> PeHop:
        """Return the hop from one PE to another. It uses link ``side`` if that link joins their SIPs."""
        leads = side is not None and sip_neighbours(self._spec.system.sips, src[0]).get(side) == dst[0] != src[0]
        return PeHop(src, dst, side if leads else None)

    def intercube_bound_ns(self, nbytes: int, root: int) -> float:
        """Return a lower bound of ``intercube_allreduce``, without contention and row misses.

        Rows of cubes add up to the east, and the last column adds up to the cube ``root``. The SIPs exchange their
        sums, which then go back. ``nbytes``: bytes of a row of the tensor.
        """
        mesh = self._spec.sip.cube_mesh.grid
        x, y = mesh.xy(root)
        column = [mesh.index(mesh.w - 1, at) for at in range(mesh.h)]
        row = [mesh.index(at, mesh.h - 1) for at in range(mesh.w - 1, x - 1, -1)]
        cubes = [*range(mesh.w), *column[1:], *row[1:], *(mesh.index(x, at) for at in range(mesh.h - 2, y - 1, -1))]
        hops = [self._hop((0, a, 0), (0, b, 0)) for a, b in pairwise(cubes)]
        return self._chain_ns([*hops, *[self._next_sip] * self._steps_between_sips], nbytes)

    def _chain_ns(self, hops: Sequence[QueueWay], nbytes: int) -> float:
        """Return the bound for ``nbytes`` along a chain of hops and back: start + 2 Σ (L + ends) + bytes / B."""
        if not hops:
            return self.ways.start_ns
        chain_ns = 2 * sum(hop.latency_ns + self.ways.ends_ns for hop in hops)
        return self._bound_ns(chain_ns + nbytes / min(hop.bw_gbs for hop in hops))

    def _bound_ns(self, hops_ns: float) -> float:
        """Return the bound for messages that take ``hops_ns``: with start, first byte and last acknowledgement."""
        ends_ns = self.ways.idle_load_ns + self.ways.last_ack_ns
        return whole_ps(self.ways.start_ns + ends_ns + hops_ns)

    @property
    def _next_sip(self) -> QueueWay:
        """The fastest hop to another SIP."""
        hops = [self._hop((0, 0, 0), (sip, 0, 0)) for sip in range(1, self._spec.num_sips)]
        return min(hops, key=lambda way: way.latency_ns)

    @property
    def _steps_between_sips(self) -> int:
        """The number of steps until the data of a SIP reach the farthest SIP: on a grid, along rows and columns."""
        sips = self._spec.system.sips
        return sips.grid.w + sips.grid.h - 2 if sips.two_dimensional else sips.count - 1

    def _hop(self, src: PeCoord, dst: PeCoord) -> QueueWay:
        return self.ways.alone(PeHop(src, dst))


def _together_ns(halves: Iterable[Sequence[Phase]], begin: int, end: int) -> float:
    """Return the time of steps ``begin`` to ``end`` of a schedule. Phases on the same line at once share the line."""
    phases = [phase for half in halves for phase in half]
    edges = sorted({begin, end, *(at for phase in phases for at in (phase.begin, phase.end) if begin < at < end)})
    total_ns = 0.0
    for at, until in pairwise(edges):
        busy: defaultdict[Side, float] = defaultdict(float)
        alone = 0.0
        for phase in phases:
            if phase.begin <= at < phase.end:
                share = (until - at) / (phase.end - phase.begin)
                alone = max(alone, share * phase.ns)
                busy[phase.line.side] += share * phase.busy_ns
        total_ns += max(alone, *busy.values())
    return total_ns


def _out_of_step_ns(halves: Sequence[Sequence[Phase]]) -> float:
    """Return the time by which schedule order in queues extends the longest chain of messages.

    The last message of a phase waits for the first message of a phase of the other half. This holds if that phase is on
    the same line and begins before the first phase ends.
    """
    latest: dict[tuple[int, int], float] = {(half, -1): 0.0 for half in range(len(halves))}
    numbered = [(half, i, phase) for half, phases in enumerate(halves) for i, phase in enumerate(phases)]
    for half, i, phase in sorted(numbered, key=lambda entry: entry[2].end):
        between = [
            latest[other, j - 1] + later.one_ns
            for other, j, later in numbered
            if later.line.side == phase.line.side and phase.begin < later.begin < phase.end
        ]
        latest[half, i] = max(latest[half, i - 1] + phase.latency_ns, *between, 0.0)
    return max(latest.values()) - max(sum(phase.latency_ns for phase in phases) for phases in halves)


def _sum(times_ns: Iterable[float]) -> float:
    """Add times and round to whole picoseconds, so that rounding errors of equal sums do not appear as a difference."""
    return whole_ps(sum(times_ns))
