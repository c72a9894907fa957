"""The slot of a queue that a received message lies in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kernbench.messages.operands import Operand
from kernbench.triton_emu.scratch import Home


@dataclass(slots=True, eq=False)
class Slot:
    """What a kernel gets for a receive: the message of queue ``direction``, at physical ``address`` of ``owner``.

    ``ring`` takes the slot back (``free(address)``) when the kernel has done with it; ``pending``: the message is yet
    to come. ``array`` is how a message in it was last seen: messages of a queue are mostly alike.
    """

    direction: str
    space: Literal["tcm", "hbm", "sram"]
    owner: tuple[int, ...]
    address: int
    ring: Home
    pending: bool = False
    array: Operand | None = None
