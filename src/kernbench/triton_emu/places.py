"""Where the bytes of a handle lie, and to whom they go back: scratch, or the slot of a queue."""

from __future__ import annotations

from typing import Literal, Protocol

from kernbench.common.values import state
from kernbench.messages.operands import Operand


class ScratchPlace(Protocol):
    """Bytes that one handle has at a time; ``turn`` counts how often they were taken and given back."""

    turn: int

    def free(self) -> None:
        """They go back."""


class SlotRing(Protocol):
    """The slots of a queue."""

    def free(self, slot: Slot, /) -> None:
        """Take back ``slot``."""


@state(eq=False)
class Slot:
    """What a kernel gets for a receive: message ``sequence`` of queue ``direction``, at ``address`` of ``owner``.

    The address is a physical one. ``ring`` takes the slot back when the kernel has done with it; ``pending``: the
    message is yet to come. ``array`` is how a message in it was last seen: messages of a queue are mostly alike.
    ``turn`` as for every place; ``kernel``: whose it was last.
    """

    direction: str
    space: Literal["tcm", "hbm", "sram"]
    owner: tuple[int, ...]
    address: int
    ring: SlotRing
    sequence: int
    pending: bool = False
    array: Operand | None = None
    turn: int = 0
    kernel: object = None

    @property
    def is_held(self) -> bool:
        """Whether a kernel has it."""
        return self.turn % 2 == 1

    def free(self) -> None:
        """The ring gets it back."""
        self.ring.free(self)


class UnmanagedPlace:
    """Bytes that no allocator gave and that go back to nobody."""

    __slots__ = ("turn",)

    def __init__(self) -> None:
        self.turn = 0

    def free(self) -> None:
        """Nothing to do."""
