"""Who waits at a queue: a kernel for a message or for a slot; and where a slot lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from kernbench.common.values import state, value
from kernbench.core.clock import Clock
from kernbench.core.log import Cause, Row
from kernbench.messages.commands import Operand
from kernbench.messages.fabric import Access
from kernbench.triton_emu.handles import ReceivedSlot

Got: TypeAlias = Callable[[ReceivedSlot | Exception | None, Row], None]
"""Takes the slot of a message that has come, or what is wrong with it, and its row; None: it came before the receive"""


@state(eq=False)
class Awaited:
    """A receive at ``line`` whose message is not there: number ``sequence`` of its queue, to have ``nbytes``.

    It takes place at ``due_ps``, in ``place`` among the programs of that instant. ``posted``: the kernel has its slot
    already, and goes on.
    """

    got: Got
    sequence: int = -1
    nbytes: int = 0
    line: int = 0
    due_ps: int = -1
    place: int = -1
    posted: bool = False

    def effective(self, clock: Clock) -> bool:
        """Whether the kernel waits by now."""
        return self.due_ps < clock.time or clock.has_come(self.due_ps, self.place)


@state(eq=False)
class Blocked:
    """A kernel that waits since ``since_ps``, at ``line``, for a slot: ``free(cause)`` lets it go on."""

    line: int
    since_ps: int
    free: Callable[[Cause], None]


@value
class SlotPlace:
    """A slot of the peer as a message of one size, shape and dtype fills it: for the memory, and for the op-log."""

    access: Access
    slot: Operand
