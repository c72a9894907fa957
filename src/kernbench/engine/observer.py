"""What may watch a run from its beginning. The engine takes observers and knows none of them."""

from __future__ import annotations

from typing import ClassVar

from kernbench.core.op_log import OpRecord
from kernbench.engine.machine import Machine
from kernbench.messages.requests import HostMsg


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
