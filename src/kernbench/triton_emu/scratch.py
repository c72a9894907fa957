"""The memory of a kernel's handles, and how long each piece of it is held."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from kernbench.messages.commands import PeCommand
from kernbench.triton_emu.slots import Slot


class Lent(Protocol):
    """Bytes that go back."""

    def free(self) -> None:
        """Nobody uses them any more."""


class Block(Lent, Protocol):
    """Bytes of scratch from ``address`` on; ``array`` is how they were last seen."""

    address: int
    array: Any


class Scratch(Protocol):
    """The part of a PE's TCM that kernels may fill; addresses are encoded physical ones."""

    @property
    def free_bytes(self) -> int:
        """Bytes that nothing holds."""

    def alloc(self, nbytes: int, label: str, /) -> Block:
        """``nbytes`` for ``label``; AllocationError when no free stretch is long enough."""

    def live(self) -> Sequence[tuple[str, int]]:
        """Label and bytes of everything that is allocated."""


class Buffer:
    """The bytes of one handle; ``producer``: the last command that writes them (-1: none does).

    Whoever may still use the bytes has the buffer: the handle, and every command under way that reads or writes it.
    Once nobody has it any more, the ``block`` goes back.
    """

    __slots__ = ("block", "producer")

    def __init__(self, block: Lent) -> None:
        self.block = block
        self.producer = -1

    def __del__(self) -> None:
        self.block.free()


class Message(Buffer):
    """The bytes of a message; its ``slot`` goes back, unless that has happened already."""

    __slots__ = ("slot", "turn")

    def __init__(self, slot: Slot) -> None:
        self.producer = -1
        self.slot = slot
        self.turn = slot.turn = slot.turn + 1

    def __del__(self) -> None:
        slot = self.slot
        if slot.turn == self.turn:
            slot.turn += 1
            slot.ring.free(slot.address)


class Lifetimes:
    """Gives a buffer back once its handle is dropped and every command that reads or writes it is done.

    So whoever gets the bytes next meets neither a read that is late nor a write that is. ``under_way``: the commands
    that are not done, by serial, with the buffers they use, which go back from the last to the first. ``slots``: those
    that the kernel has had messages in.
    """

    __slots__ = ("slots", "under_way")

    def __init__(self) -> None:
        self.under_way: dict[int, tuple[PeCommand, tuple[Buffer, ...]]] = {}
        self.slots: list[Slot] = []

    def uses_scratch(self) -> bool:
        """Whether commands under way use scratch, of which some may thus go back soon."""
        return any(not isinstance(b, Message) for _, buffers in self.under_way.values() for b in buffers)

    def received(self, slot: Slot) -> None:
        """The kernel has its first message in ``slot``."""
        slot.kernel = self
        if len(self.slots) >= _MANY_SLOTS:  # of receives that were posted: each had a slot of its own
            self.slots = [each for each in self.slots if each.is_held]
        self.slots.append(slot)

    def finish(self) -> None:
        """The kernel is over: the slots of its messages go back, those that commands still use when they are done.

        Handles that somebody has kept hold none any more: commands get buffers of their own.
        """
        instead: dict[Buffer, Buffer] = {}
        for buffer in [b for _, buffers in self.under_way.values() for b in buffers]:
            if isinstance(buffer, Message) and buffer.turn == buffer.slot.turn:
                buffer.slot.turn += 1
                instead[buffer] = Message(buffer.slot)
        for serial, (command, buffers) in self.under_way.items():
            self.under_way[serial] = (command, tuple([instead.get(b, b) for b in buffers]))
        used = [b.slot for b in instead.values() if isinstance(b, Message)]
        for slot in self.slots:
            if slot.is_held and slot not in used:
                slot.turn += 1
                slot.ring.free(slot.address)


_MANY_SLOTS = 1024
