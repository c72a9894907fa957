"""The slot of a queue that a received message lies in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from kernbench.messages.operands import Operand


class Ring(Protocol):
    """The slots of a queue."""

    def free(self, addr: int, /) -> None:
        """Take back the slot at ``addr``."""


@dataclass(slots=True, eq=False)
class Slot:
    """What a kernel gets for a receive: the message of queue ``direction``, at physical ``address`` of ``owner``.

    ``ring`` takes the slot back (``free(address)``) when the kernel has done with it; ``pending``: the message is yet
    to come. ``array`` is how a message in it was last seen: messages of a queue are mostly alike. ``turn`` counts how
    often it was taken and given back; ``kernel``: whose it was last.
    """

    direction: str
    space: Literal["tcm", "hbm", "sram"]
    owner: tuple[int, ...]
    address: int
    ring: Ring
    pending: bool = False
    array: Operand | None = None
    turn: int = 0
    kernel: object = None

    @property
    def is_held(self) -> bool:
        """Whether a kernel has it."""
        return self.turn % 2 == 1
