"""The slot of a queue that a received message lies in."""

from __future__ import annotations

from typing import Literal, NamedTuple

from kernbench.triton_emu.scratch import Home


class Slot(NamedTuple):
    """What a kernel gets for a receive: the message of queue ``direction``, at physical ``address`` of ``owner``.

    ``ring`` takes the slot back (``free(address)``) when the kernel has done with it; ``pending``: the message is yet
    to come.
    """

    direction: str
    space: Literal["tcm", "hbm", "sram"]
    owner: tuple[int, ...]
    address: int
    ring: Home
    pending: bool = False
