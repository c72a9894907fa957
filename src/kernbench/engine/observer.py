"""What may watch a run from its beginning. The engine takes observers and knows none of them."""

from __future__ import annotations

from typing import ClassVar, Literal

from kernbench.common.program_line import ProgramLine
from kernbench.common.values import value
from kernbench.core.op_log import OpRecord
from kernbench.engine.machine import Machine
from kernbench.messages.requests import HostMsg, PeCoord


@value(kw_only=True)
class HostRead:
    """What a line of the host program did with a tensor: read elements, or compared them; times in ps."""

    action: Literal["read", "assert_close"]
    tensor: str
    line: ProgramLine | None
    start_ps: int
    end_ps: int


@value(kw_only=True)
class SomeElements:
    """``count`` of the ``total`` elements of a read, ``nbytes`` in all; the first at ``index``, on ``pe`` at ``pa``."""

    count: int
    total: int
    nbytes: int
    index: tuple[int, ...]
    pe: PeCoord
    pa: int


@value(kw_only=True)
class UnlikeCopies:
    """Copies of a tensor that are not close to the first: those of ``pes``, of ``owners`` PEs that hold what was read.

    ``held``: what the first of them holds of the first element; ``first_held``: what the first copy, on ``first_pe``,
    does. ``written``: whether somebody wrote to it there.
    """

    pes: tuple[PeCoord, ...]
    owners: int
    held: float
    first_held: float
    first_pe: PeCoord
    written: bool


class Observer:
    """Watches the run of one engine; a subclass overrides what it wants to be told.

    ``needs_data``: it looks at bytes, so the engine has to compute them.
    """

    needs_data: ClassVar[bool] = False

    def begin(self, machine: Machine) -> None:
        """The engine of ``machine`` is made; nothing has happened yet."""

    def submitted(self, msg: HostMsg, time_ps: int) -> None:
        """The host has submitted ``msg``."""

    def unwritten(self, record: OpRecord | None, space: str, address: int, nbytes: int) -> None:
        """The replay of ``record`` read ``nbytes`` that nobody wrote, the first at ``address``. With data only."""

    def read_unwritten(self, read: HostRead, elements: SomeElements) -> None:
        """The host has read or compared ``elements`` that nobody wrote. For observers that need data."""

    def read_unlike(self, read: HostRead, elements: SomeElements, copies: UnlikeCopies) -> None:
        """The host has read or compared ``elements`` that are not the same in all copies. For those that need data."""
