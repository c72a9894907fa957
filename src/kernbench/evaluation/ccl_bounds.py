"""Bounds of collectives, which no run undercuts: the longest chain of hops, and the bytes of the busiest link.

    start + first byte + Σ (L + ends) + bytes / B + the last acknowledgement

B: the least bandwidth of a hop when all bytes pass all hops of the chain, else of one hop with what it carries.
Hops are taken at their fastest, links as if nobody shared them, memory as if no row had to be opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from kernbench.common.units import whole_ps
from kernbench.engine.machine import Machine
from kernbench.evaluation.ccl_ways import PeHop, QueueFigures, QueueWay, Ways


class CollectiveBounds:
    """The bounds of a machine with queues in TCM; ``nbytes``: of each PE, of a block where there are several."""

    def __init__(self, machine: Machine, queues: QueueFigures) -> None:
        self._ways, self._spec = Ways(machine, queues), machine.spec

    def hierarchical_ns(self, nbytes: int) -> float:
        """PEs to PE 0 from both sides, cubes to cube 0, SIPs up a binary tree; and back."""
        spec = self._spec
        pes = [self._hop((0, 0, pe), (0, 0, pe + 1)) for pe in range(spec.pes_per_cube // 2)]
        cubes = [self._hop((0, cube, 0), (0, cube + 1, 0)) for cube in range(spec.cubes_per_sip // 2)]
        levels = spec.num_sips.bit_length() - 1
        return self._bound([*pes, *cubes, *[self._next_sip] * levels], nbytes, there_and_back=True)

    def intercube_ns(self, nbytes: int, root: int) -> float:
        """Rows east, the last column south, to the root; the SIPs; and back. ``nbytes``: of a row of the tensor."""
        mesh = self._spec.sip.cube_mesh.grid
        x, y = mesh.xy(root)
        column = [mesh.index(mesh.w - 1, at) for at in range(mesh.h)]
        row = [mesh.index(at, mesh.h - 1) for at in range(mesh.w - 1, x - 1, -1)]
        cubes = [*range(mesh.w), *column[1:], *row[1:], *(mesh.index(x, at) for at in range(mesh.h - 2, y - 1, -1))]
        ways = [self._hop((0, a, 0), (0, b, 0)) for a, b in pairwise(cubes)]
        return self._bound([*ways, *[self._next_sip] * self._steps_between_sips], nbytes, 1, there_and_back=True)

    def broadcast_ns(self, nbytes: int) -> float:
        """All bytes pass n-1 hops of the ring of SIPs."""
        return self._bound(self._round, nbytes)

    reduce_ns = broadcast_ns

    def all_gather_ns(self, nbytes: int) -> float:
        """n-1 steps of a block each."""
        return self._bound(self._round, nbytes, len(self._round))

    reduce_scatter_ns = all_gather_ns

    def all_to_all_ns(self, nbytes: int) -> float:
        """n-1 steps, the first of n-1 blocks, the last of one."""
        return self._bound(self._round, nbytes, self._spec.num_sips / 2 * len(self._round))

    def _bound(
        self, ways: Sequence[QueueWay], nbytes: int, blocks: float = 1, *, there_and_back: bool = False
    ) -> float:
        """``blocks``: how often ``nbytes`` passes each way of the chain."""
        if not ways:
            return self._ways.start_ns
        chain = sum(way.latency_ns + self._ways.ends_ns for way in ways) * (2 if there_and_back else 1)
        # All-gathers of several blocks have their last one a single hop from its end.
        first = min(way.latency_ns + self._ways.ends_ns for way in ways)
        carried = max(blocks * nbytes / way.bw_gbs for way in ways)
        found = max(chain + nbytes / max(way.bw_gbs for way in ways), first + carried)
        if there_and_back or blocks == 1:
            found = max(found, chain + nbytes / min(way.bw_gbs for way in ways))
        ends = self._ways.idle_load_ns + self._ways.last_ack_ns
        return whole_ps(self._ways.start_ns + ends + found)

    @property
    def _round(self) -> list[QueueWay]:
        return [self._next_sip] * (self._spec.num_sips - 1)

    @property
    def _next_sip(self) -> QueueWay:
        """The fastest hop to another SIP."""
        hops = [self._hop((0, 0, 0), (sip, 0, 0)) for sip in range(1, self._spec.num_sips)]
        return min(hops, key=lambda way: way.latency_ns)

    @property
    def _steps_between_sips(self) -> int:
        """Steps until one SIP's data are at the farthest place; a grid has both of its sides."""
        sips = self._spec.system.sips
        return sips.grid.w + sips.grid.h - 2 if sips.two_dimensional else sips.count - 1

    def _hop(self, src: tuple[int, int, int], dst: tuple[int, int, int]) -> QueueWay:
        return self._ways.alone(PeHop(src, dst))
