"""Closed forms and bounds of the collectives that the evaluation does not simulate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from math import ceil

from kernbench.common.units import whole_ps
from kernbench.engine.machine import Machine
from kernbench.evaluation.ccl_theory import ClosedForms
from kernbench.evaluation.ccl_ways import PeHop, QueueFigures, QueueWay, Round, Ways, round_of
from kernbench.messages.requests import PeCoord
from kernbench.topology.grid import Grid, Side


class TreeWays(Ways):
    """The times of hops, and of links and slices that several messages of a tree share."""

    def in_flight_bytes(self, hop: PeHop) -> float:
        """Return the bytes that an uncontended hop carries during a round trip."""
        way = self.alone(hop)
        return (2 * way.latency_ns + self.ends_ns + self.spec.pe.math.startup_ns) * way.bw_gbs

    def busiest_ns(self, hops: Iterable[PeHop], loads: Iterable[PeCoord], nbytes: float) -> float:
        """Return the time of the busiest link. Each hop carries ``nbytes``, and each PE loads and stores ``nbytes``."""
        carried = Counter(link for hop in hops for link in self._route(hop).links)
        for pe in loads:
            carried.update(link for back in (False, True) for link in self._to_slice(pe, back=back).links)
        return max((n * nbytes / self._stream_gbs(link) for link, n in carried.items()), default=0.0)

    def read_and_write_ns(self, nbytes: int) -> float:
        """Return the time in which a slice reads and writes ``nbytes`` each.

        The buses of the slice turn around twice per write drain. At a turnaround, the rows of the other direction are
        opened again. Only the longer of the two delays is added.
        """
        banks, hbm = self._banks, self.spec.cube.hbm
        if banks is None:
            return 2 * self.piece_ns(nbytes)
        drained = (banks.high - banks.low) * hbm.queue * hbm.num_pcs * banks.burst_bytes
        to_read, to_write = banks.rp_ns + banks.rcd_ns, banks.rp_ns + banks.rcd_write_ns
        turning = max(banks.wtr_ns, to_read) + max(banks.rtw_ns, to_write)
        return 2 * self.piece_ns(nbytes) + turning * nbytes / max(drained, banks.burst_bytes)


class AlgorithmForms(ClosedForms):
    """The closed forms of rings, meshes and trees over any PEs. ``pes``: the PE of each rank."""

    def __init__(self, machine: Machine, queues: QueueFigures) -> None:
        super().__init__(machine, queues)
        self.ways: TreeWays = TreeWays(machine, queues)

    def ring_ns(self, pes: Sequence[PeCoord], nbytes: int) -> float:
        """Return the time of ``ring_allreduce``: every piece passes all n-1 hops, with half the slots in use."""
        if len(pes) == 1:
            return self.ways.start_ns
        ways = self.ways.of(self._around(pes))
        return whole_ps(
            self.ways.start_ns + sum(self._ring_pass(ways, part) for part in self._split_by_scratch(nbytes))
        )

    def _ring_pass(self, ways: Sequence[QueueWay], nbytes: int) -> float:
        """Return the time of one pass of all pieces round a ring.

        Full queues in a ring would deadlock, so at most half the slots are used. Their number is a power of two, which
        divides most tensors. A forwarded piece frees its slot once it has arrived at the next PE: after two hops and a
        credit.
        """
        n, ring, fastest = len(ways), round_of(ways), min(ways, key=lambda way: way.latency_ns)
        chunk, slots, way = min(nbytes, self._queues.slot_size), self._queues.n_slots, ring.step
        pieces = ceil(nbytes / chunk)
        at_once = min(1 << max(0, (slots // 2).bit_length() - 1), pieces)
        between = self._between_ns(ring.slowest, chunk)
        if n > 2:
            occupied_ns = self.ways.message_ns(ring.slowest, chunk) + ring.slowest.credit_ns
            between = max(between, (occupied_ns + self.ways.passing_ns(fastest, chunk)) / slots)
        step = max(self.ways.passing_ns(way, chunk), at_once * between)
        round_ns = ceil(pieces / at_once) * (n - 1) * step + (at_once - 1) * between + self.ways.math_ns(chunk)
        loaded = self._load_ns(nbytes, pieces, (n - 1) * nbytes) + self.ways.message_ns(way, chunk)
        return max(self.ways.load_ns(chunk) + round_ns, loaded) + self._store_ns(nbytes, pieces)

    def rs_ag_ns(self, pes: Sequence[PeCoord], nbytes: int) -> float:
        """Return the time of ``ring_allreduce_rs_ag``: 2(n-1) steps of one part each."""
        if len(pes) == 1:
            return self.ways.start_ns
        return whole_ps(self.ring(len(pes), nbytes, round_of(self.ways.of(self._around(pes)))).ns)

    def mesh_ns(self, pes: Sequence[PeCoord], grid: Grid, nbytes: int) -> float:
        """Return the time of ``mesh_allreduce``: rings along the rows, then along the columns, each with all bytes."""
        if len(pes) == 1:
            return self.ways.start_ns
        rows, columns = self._rings_of(pes, grid, "E"), self._rings_of(pes, grid, "S")
        return whole_ps(
            self.ways.start_ns
            + sum(self._mesh_pass(grid, part, rows, columns) for part in self._split_by_scratch(nbytes))
        )

    def _mesh_pass(self, grid: Grid, nbytes: int, row: Round, column: Round) -> float:
        part = ceil(nbytes / len(grid))
        chunk = min(part, self._queues.slot_size)
        messages = ceil(part / chunk)
        pieces = len(grid) * messages
        along_row = self._steps_ns(grid.w, row, chunk, grid.h * messages)
        gathered = self._steps_ns(grid.w, row, chunk, grid.h * messages, phases=1)
        begun = max(
            self.ways.load_ns(chunk) + along_row, self._load_ns(nbytes, pieces, nbytes - nbytes // grid.w) + gathered
        )
        return begun + self._steps_ns(grid.h, column, chunk, grid.w * messages) + self._store_ns(nbytes, pieces)

    def _rings_of(self, pes: Sequence[PeCoord], grid: Grid, side: Side) -> Round:
        """Return the routes of a step in which all rows (``E``) or all columns (``S``) send at once."""
        beyond = ((at, grid.neighbour(at, side, wrap=True)) for at in range(len(pes)))
        hops = [self.beside(pes[at], pes[peer], side) for at, peer in beyond if peer not in (None, at)]
        return round_of(self.ways.of(hops))

    def tree_ns(self, pes: Sequence[PeCoord], nbytes: int) -> float:
        """Return the time of ``tree_allreduce``: messages go up from the deepest place to the root, and back."""
        if len(pes) == 1:
            return self.ways.start_ns
        chunk = min(nbytes, self._queues.slot_size)
        up = [self.beside(pe, pes[(at - 1) // 2]) for at, pe in enumerate(pes) if at]
        down = [self.beside(hop.dst, hop.src) for hop in up]
        ways = self.ways
        up_ways, down_ways = self._by_level(up), self._by_level(down)
        longest = max(
            sum(self._up_and_down(up_ways[at - 1], down_ways[at - 1], at, len(pes), chunk) for at in _to_root(leaf))
            for leaf in range(1, len(pes))
        )
        # A node sends after it has added its second child's message. Until then, its links are idle.
        interval_ns = max(
            ways.busiest_ns((*up, *down), pes, chunk) + (ways.math_ns(chunk) if len(pes) > 2 else 0.0),
            ways.read_and_write_ns(chunk),
            max(self._result_ns(down_ways, at, chunk) for at in range(1, len(pes))) / self._queues.n_slots,
        )
        messages = ceil(nbytes / chunk)
        # Results of messages sent ahead, except those in slots, arrive after a leaf has sent everything.
        ahead = min(messages, max(self._ahead(up, leaf, chunk) for leaf in range(1, len(pes)))) - self._queues.n_slots
        last = max(longest, ahead * ways.busiest_ns(down, (), chunk))
        return whole_ps(
            ways.start_ns + ways.load_ns(chunk) + (messages - 1) * interval_ns + last + ways.store_ns(chunk)
        )

    def _ahead(self, up: Sequence[PeHop], leaf: int, chunk: int) -> int:
        """Count the messages that ``leaf`` sends before a result: one plus those in flight, on each hop to the root."""
        return sum(
            min(self._queues.n_slots, 1 + ceil(self.ways.in_flight_bytes(up[at - 1]) / chunk)) for at in _to_root(leaf)
        )

    def _by_level(self, hops: Sequence[PeHop]) -> list[QueueWay]:
        """Return the routes of the hops of places 1, 2, ... of a binary tree. Hops of one level are simultaneous."""
        ends = [(2 << level) - 2 for level in range(len(hops).bit_length() + 1)]
        return [way for first, end in pairwise(ends) for way in self.ways.of(hops[first:end])]

    def _result_ns(self, down: Sequence[QueueWay], at: int, chunk: int) -> float:
        """Return the time from a result's departure to place ``at`` until its slot is free again.

        Until then, the result is stored and passed on, and the credit returns.
        """
        way = down[at - 1]
        onward = [self.ways.passing_ns(child, chunk) for child in down[2 * at : 2 * at + 2]]
        return self.ways.passing_ns(way, chunk) + max([self.ways.store_ns(chunk), *onward]) + way.credit_ns

    def _up_and_down(self, up: QueueWay, down: QueueWay, at: int, n: int, chunk: int) -> float:
        """Return the time of a tree level. The second child is served after the first child."""
        second = at % 2 == 0
        level_ns = self.ways.message_ns(up, chunk) + self.ways.passing_ns(down, chunk)
        if at + 1 < n or second:
            level_ns += self.ways.math_ns(chunk)
        return level_ns

    def _around(self, pes: Sequence[PeCoord]) -> list[PeHop]:
        """Return the hops of a ring over these PEs."""
        return [self.beside(pe, far, "E") for pe, far in zip(pes, (*pes[1:], *pes[:1]), strict=True)]


def _to_root(at: int) -> Iterator[int]:
    """Yield a place of a binary tree and the places above it, without the root."""
    while at:
        yield at
        at = (at - 1) // 2


class AlgorithmBounds(ClosedForms):
    """Lower bounds of collectives over SIPs or over all PEs: the longest chain of hops, and the busiest link.

    ``nbytes``: bytes per PE, or per block if there are several.
    """

    def hierarchical_ns(self, nbytes: int) -> float:
        """Return the bound for PEs to PE 0 from both sides, cubes to cube 0, SIPs up a binary tree, and back."""
        spec = self._spec
        pes = [self._hop((0, 0, pe), (0, 0, pe + 1)) for pe in range(spec.pes_per_cube // 2)]
        cubes = [self._hop((0, cube, 0), (0, cube + 1, 0)) for cube in range(spec.cubes_per_sip // 2)]
        levels = spec.num_sips.bit_length() - 1
        return self._chain_ns([*pes, *cubes, *[self._next_sip] * levels], nbytes)

    def broadcast_ns(self, nbytes: int) -> float:
        """Return the bound: all bytes pass n-1 hops of the SIP ring."""
        hop = self._next_sip
        return self._bound_ns(self._round_ns + nbytes / hop.bw_gbs)

    reduce_ns = broadcast_ns

    def all_gather_ns(self, nbytes: int) -> float:
        """Return the bound: n-1 steps of one block each."""
        return self._blocks_ns(nbytes, self._spec.num_sips - 1)

    reduce_scatter_ns = all_gather_ns

    def all_to_all_ns(self, nbytes: int) -> float:
        """Return the bound: n-1 steps, from n-1 blocks in the first to one block in the last."""
        return self._blocks_ns(nbytes, self._spec.num_sips / 2 * (self._spec.num_sips - 1))

    def _blocks_ns(self, nbytes: int, blocks: float) -> float:
        """Return the bound of a ring on which ``blocks`` blocks pass each hop. The last block passes a single hop."""
        hop = self._next_sip
        one_hop_ns = hop.latency_ns + self.ways.ends_ns + blocks * nbytes / hop.bw_gbs
        return self._bound_ns(max(self._round_ns + nbytes / hop.bw_gbs, one_hop_ns))

    @property
    def _round_ns(self) -> float:
        return (self._spec.num_sips - 1) * (self._next_sip.latency_ns + self.ways.ends_ns)
