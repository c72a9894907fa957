"""The SIPs by their links: a ring, or a grid, on whose rows and columns a PE works with the same PE of the others."""

from __future__ import annotations

from typing import Any, NamedTuple

from kernbench.ccl.steps.chunks import Parts
from kernbench.ccl.steps.grids import Axis, all_reduce_by, order_of_use, timetable
from kernbench.ccl.steps.messages import Messages, on_the_way
from kernbench.ccl.steps.rings import Ring
from kernbench.kernels.shares import blocks

WINDOW_BYTES = 24 << 10
"""What passes a link between SIPs in the time of a message and its credit: measured. With more on their way PEs that
share a link hold each other up."""


class SipGrid(NamedTuple):
    """``n`` SIPs, linked as ``system.sips.topology`` says: ``kind``; in a grid of ``w`` columns and ``h`` rows."""

    n: int
    kind: str
    w: int
    h: int

    @property
    def is_grid(self) -> bool:
        """Whether these are all SIPs of a torus or mesh with several rows and columns."""
        return self.kind in ("torus_2d", "mesh_2d_no_wrap") and min(self.w, self.h) > 1 and self.n == self.w * self.h

    def axes(self, here: int) -> list[Axis]:
        """The rings, or lines, of links that SIP ``here`` is on."""
        if self.kind not in ("torus_2d", "mesh_2d_no_wrap"):
            return [Axis(Ring("global_E", "global_W", here, self.n), "ring")]
        y, x = divmod(here, self.w)
        row, column = Ring("global_E", "global_W", x, self.w), Ring("global_S", "global_N", y, self.h)
        return [Axis(axis, "torus" if self.kind == "torus_2d" else "line") for axis in (row, column)]

    def pieces(self, n_elem: int, chunk: int) -> int:
        """In how many messages of up to ``chunk`` elements ``n_elem`` go: as many for each place, and each way there.

        Of few elements one for each place: more messages would take longer than they save.
        """
        both_ways = self.kind == "torus_2d" and n_elem > 2 * chunk
        even = self.n * (2 if both_ways else 1)
        return min(n_elem, -(-n_elem // (chunk * even)) * even)


def all_reduce_in_place(ptr: int, n: int, sips: SipGrid, sharers: int, messages: Messages, tl: Any) -> None:
    """Reduce ``n`` elements at ``ptr`` over the grid, as much at a time as scratch is meant to hold.

    ``sharers``: how many PEs of a SIP do so over the same links.
    """
    item = tl.itemsize(messages.dtype)
    for first, count in blocks(n, messages.segment()):
        pieces = sips.pieces(count, messages.chunk)
        data = Parts(ptr + first * item, count, pieces, messages, tl)
        steps = timetable(sips.axes(tl.program_id(2)), pieces)
        data.load(messages, order_of_use(steps, pieces), tl)
        window = on_the_way(WINDOW_BYTES, -(-count // pieces) * item * sharers)
        all_reduce_by(steps, data.values, messages, sips.n, tl, window)
        data.store(tl)
