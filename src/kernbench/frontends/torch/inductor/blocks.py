"""Sizes of the blocks of generated kernels: their programs and PEs follow from the machine.

A kernel has a program for each PE that has work. A program computes whole rows if scratch has room for them. It is
divided further where loads of the next program then overlap with the computation of this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from kernbench.common.values import value
from kernbench.topology.spec import TopologySpec

_MOST_PROGRAMS = 4
"""Maximum number of programs of a PE that has room for a single one"""


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
        math, scheduler = spec.pe.math, spec.pe.components.pe_cpu.attrs
        return PeSizes(
            spec.pe.tcm.scratch_bytes,
            spec.cube.links.pe_to_xbar.bw_gbs,
            math.bytes_per_ns,
            math.startup_ns + scheduler.issue_ns,
        )


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

    def ns(self, elements: int, programs: int, pe: PeSizes) -> float:
        """Return the time of ``programs`` programs of ``elements`` elements on a PE: reads overlap with computation."""
        read_ns = self.arrays * self.item_bytes * elements / pe.read_bytes_per_ns
        math_ns = self.commands * (pe.math_start_ns + _WIDE_BYTES * elements / pe.math_bytes_per_ns)
        return read_ns + programs * max(read_ns, math_ns)


_WIDE_BYTES = 4
"""Bytes of an element while it is computed"""
_LIVE_RESULTS = 4
"""Intermediate results of a kernel that are in use at one time"""


def power_of_two(n: int) -> int:
    """Return the smallest power of two that is at least ``n``."""
    return 1 << max(0, n - 1).bit_length()


def choose_blocks(blocks: Mapping[str, int], work: KernelWork, pes: int, pe: PeSizes) -> dict[str, int]:
    """Return the block of each axis of a kernel, for ``pes`` PEs. ``blocks``: Inductor's sizes, by parameter.

    Parameters other than blocks of axes keep their values.
    """
    most, extents = work.most_elements(pe), work.extents
    chosen = dict(blocks)
    if "R0_BLOCK" in blocks:
        chosen["R0_BLOCK"] = min(power_of_two(extents["r0_"]), most)
    row = chosen.get("R0_BLOCK", power_of_two(extents.get("r0_", 1)))
    if "XBLOCK" not in blocks:
        return chosen
    x, y = extents.get("x", 1), extents.get("y", 1)
    widest = max(1, most // row)
    if "YBLOCK" not in blocks:
        chosen["XBLOCK"] = _divide(x, row, min(widest, power_of_two(-(-x // pes))), work, pes, pe)
        return chosen
    share = power_of_two(-(-(x * y) // pes))
    chosen["XBLOCK"] = min(power_of_two(x), share, widest)
    columns = -(-x // chosen["XBLOCK"])
    tallest = max(1, min(widest, share) // chosen["XBLOCK"])
    chosen["YBLOCK"] = _divide(
        y, row * chosen["XBLOCK"], min(tallest, power_of_two(y)), work, max(1, pes // columns), pe
    )
    return chosen


def _divide(extent: int, inner: int, largest: int, work: KernelWork, pes: int, pe: PeSizes) -> int:
    """Return the block of an axis, at most ``largest``, that ends first. Each index has ``inner`` elements."""
    sizes = [largest >> shift for shift in range(_MOST_PROGRAMS.bit_length()) if largest >> shift]

    def ns(size: int) -> float:
        programs = -(-extent // size)
        return work.ns(size * inner, -(-programs // pes), pe)

    return min(sizes, key=ns)


def size_of(extents: Mapping[str, int]) -> int:
    """Return the number of elements of a kernel's work."""
    return prod(extents.values())
