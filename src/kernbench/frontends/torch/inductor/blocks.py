"""Sizes of the blocks of generated kernels: their programs and PEs follow from the machine.

A kernel has a program for each PE that stores a part of its largest tensor: the memories of few PEs serve more PEs
later, not faster. A program computes whole rows if scratch has room for them. If all PEs have work, it is divided
further where loads of the next program overlap with the computation of this one, and the kernel ends earlier.
"""

from __future__ import annotations

from collections.abc import Mapping

from kernbench.common.values import value
from kernbench.topology.spec import TopologySpec

_MOST_PROGRAMS = 4
"""Maximum number of programs of a PE whose scratch has room for their work in one"""
_WIDE_BYTES = 4
"""Bytes of an element while it is computed"""
_LIVE_RESULTS = 4
"""Intermediate results of a kernel that are in use at one time"""


@value
class PeSizes:
    """The scratch of a PE in bytes, its rates in bytes per ns, and the start of a command of MATH."""

    scratch_bytes: int
    read_bytes_per_ns: float
    math_bytes_per_ns: float
    math_start_ns: float

    @staticmethod
    def of(spec: TopologySpec) -> PeSizes:
        """Return the sizes of a machine's PEs."""
        math, cpu = spec.pe.math, spec.pe.components.pe_cpu.attrs
        rate = spec.cube.links.pe_to_xbar.bw_gbs
        return PeSizes(spec.pe.tcm.scratch_bytes, rate, math.bytes_per_ns, math.startup_ns + cpu.issue_ns)


@value
class KernelPes:
    """The number of PEs that share a kernel's work, and their sizes. ``has_all``: no PE is left without work."""

    count: int
    has_all: bool
    sizes: PeSizes


@value
class KernelWork:
    """The work of a generated kernel: its ``extents`` by axis (x, y, r0_), and its commands and arrays of a block.

    ``arrays``: blocks that are loaded or stored; ``commands``: operations of MATH on a block. ``item_bytes``: the mean
    size of an element in memory.
    """

    extents: Mapping[str, int]
    arrays: int
    commands: int
    item_bytes: float

    def most_elements(self, pe: PeSizes) -> int:
        """Return the largest power of two such that blocks of so many elements fit in scratch, two programs at once."""
        live = self.arrays + _LIVE_RESULTS
        return 1 << max(0, (pe.scratch_bytes // (2 * _WIDE_BYTES * live)).bit_length() - 1)

    def ns(self, elements: int, programs: int, pes: KernelPes) -> float:
        """Return an estimate of the time of ``programs`` programs of ``elements`` elements."""
        rounds, pe = -(-programs // pes.count), pes.sizes
        read_ns = self.arrays * self.item_bytes * elements / pe.read_bytes_per_ns
        math_ns = self.commands * (pe.math_start_ns + _WIDE_BYTES * elements / pe.math_bytes_per_ns)
        return read_ns + (rounds - 1) * max(read_ns, math_ns) + math_ns


def power_of_two(n: int) -> int:
    """Return the smallest power of two that is at least ``n``."""
    return 1 << max(0, n - 1).bit_length()


def choose_blocks(blocks: Mapping[str, int], work: KernelWork, pes: KernelPes) -> dict[str, int]:
    """Return the block of each axis of a kernel. ``blocks``: Inductor's sizes, by parameter.

    Parameters other than blocks of axes keep their values.
    """
    most, extents = work.most_elements(pes.sizes), work.extents
    chosen = dict(blocks)
    if "R0_BLOCK" in blocks:
        chosen["R0_BLOCK"] = min(power_of_two(extents["r0_"]), most)
    row = chosen.get("R0_BLOCK", power_of_two(extents.get("r0_", 1)))
    if "XBLOCK" not in blocks:
        return chosen
    x, y = extents.get("x", 1), extents.get("y", 1)
    widest = max(1, most // row)
    share = min(widest, power_of_two(-(-(x * y) // pes.count)))
    if "YBLOCK" not in blocks:
        chosen["XBLOCK"] = _divide(share, row, x, work, pes)
        return chosen
    chosen["XBLOCK"] = min(power_of_two(x), share)
    columns = -(-x // chosen["XBLOCK"])
    tallest = max(1, min(power_of_two(y), share // chosen["XBLOCK"]))
    chosen["YBLOCK"] = _divide(tallest, row * chosen["XBLOCK"], y, work, pes, columns)
    return chosen


def _divide(largest: int, inner: int, extent: int, work: KernelWork, pes: KernelPes, columns: int = 1) -> int:
    """Return the block of an axis of ``extent``, at most ``largest``, that ends first.

    Each index has ``inner`` elements. ``columns``: the number of blocks along the other axis.
    """
    most = _MOST_PROGRAMS if pes.has_all else 1
    sizes = [largest >> shift for shift in range(most.bit_length()) if largest >> shift]
    return min(sizes, key=lambda size: work.ns(size * inner, columns * -(-extent // size), pes))
