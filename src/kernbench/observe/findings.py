"""Findings of the sanitizer: the fault, and the commands of kernels or of the host that caused it."""

from __future__ import annotations

from typing import Literal, TypeAlias

from kernbench.common.ids import cube_part
from kernbench.common.values import value
from kernbench.messages.requests import PeCoord

FindingKind: TypeAlias = Literal["unwritten", "copies", "race", "inversion", "slot", "message", "scratch"]


@value(kw_only=True)
class Party:
    """One side of a finding: ``action`` (``load``, ``store``, ``composite`` …) of a kernel's line on a PE; times in ns.

    For the host, ``kernel`` is empty, there is no PE, and ``line`` is a line of ``file`` (0 and empty if unknown).
    ``place`` is the line in words, or the step of a schedule. ``writes``: True if the side writes the bytes of the
    finding.
    """

    action: str
    kernel: str
    line: int
    pe: PeCoord | None
    writes: bool
    t_start_ns: float
    t_end_ns: float
    place: str = ""
    file: str = ""

    def __str__(self) -> str:
        where = f" at {self.place} of kernel {self.kernel!r}" if self.kernel else f" at {self.place}" * bool(self.file)
        on = f" on {cube_part(*self.pe[:2], f'pe{self.pe[2]}')}" if self.pe is not None else " of the host"
        return f"{self.action}{where}{on}"


@value
class Finding:
    """A fault, described at its first occurrence; ``count`` is the number of occurrences on these lines.

    - ``unwritten``: ``side`` reads ``nbytes`` that were never written, the first at ``address``.
    - ``copies``: ``side``, the host, reads or compares copies that differ in ``nbytes``, the first at ``address``.
    - ``race``: ``side`` and ``other``, which began earlier, access ``nbytes`` at the same time, and one of them writes.
    - ``inversion``: ``side`` accesses ``nbytes`` before ``other``, which precedes it in the program; one of them
      writes.
    - ``slot``: ``side`` reads ``nbytes`` of a queue's slot that its kernel does not own at that time.
    - ``message``: the message that ``side`` sent was never received.
    - ``scratch``: the kernel waited for ``nbytes`` of scratch; ``address`` is 0.

    ``tensor`` is empty for bytes outside tensors. ``owners`` belongs to elements that the host reads: the PE with the
    first unwritten element, or the PEs whose copies differ from the first copy.
    """

    kind: FindingKind
    message: str
    side: Party
    space: str
    tensor: str
    address: int
    nbytes: int
    other: Party | None = None
    owners: tuple[PeCoord, ...] = ()
    count: int = 1

    @property
    def kernel(self) -> str:
        """The kernel of the first occurrence, empty for the host."""
        return self.side.kernel

    @property
    def line(self) -> int:
        """The line of the kernel's source, or of the host program."""
        return self.side.line

    @property
    def pe(self) -> PeCoord | None:
        """The PE of the first occurrence."""
        return self.side.pe

    @property
    def t_start_ns(self) -> float:
        """The begin of the command of ``side`` in ns."""
        return self.side.t_start_ns

    @property
    def t_end_ns(self) -> float:
        """The end of the command of ``side`` in ns."""
        return self.side.t_end_ns

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" + (f" ({self.count} times)" if self.count > 1 else "")
