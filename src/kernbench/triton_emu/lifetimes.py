"""How long the memory of a kernel's handles is held."""

from __future__ import annotations

from kernbench.messages.commands import PeCommand
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.places import Slot

_MANY_SLOTS = 1024


class Lifetimes:
    """Who holds the memory of one kernel: its handles, and the commands that read or write it.

    A command that is under way has the handles it uses, so that the memory of one goes back once the kernel has dropped
    it and the commands are done. So whoever gets the bytes next meets neither a read that is late nor a write that is.

    ``under_way``: the commands that are not done, by serial, with their handles, which are let go from the last to the
    first. ``slots``: those that the kernel has had messages in.
    """

    __slots__ = ("slots", "under_way")

    def __init__(self) -> None:
        self.under_way: dict[int, tuple[PeCommand, tuple[Handle, ...]]] = {}
        self.slots: list[Slot] = []

    def uses_scratch(self) -> bool:
        """Whether commands under way use scratch, of which some may thus go back soon."""
        return any(not isinstance(x.place, Slot) for _, handles in self.under_way.values() for x in handles)

    def received(self, slot: Slot) -> None:
        """The kernel has its first message in ``slot``."""
        slot.kernel = self
        if len(self.slots) >= _MANY_SLOTS:  # of receives that were posted: each had a slot of its own
            self.slots = [each for each in self.slots if each.is_held]
        self.slots.append(slot)

    def finish(self) -> None:
        """The kernel is over: the slots of its messages go back, those that commands still use when they are done.

        Handles that somebody has kept hold none any more: commands get handles of their own.
        """
        instead: dict[Handle, Handle] = {}
        for x in [x for _, handles in self.under_way.values() for x in handles]:
            if isinstance(x.place, Slot) and x.turn == x.place.turn:
                x.place.turn += 1
                instead[x] = Handle(x.owner, x.array, x.place)
        for serial, (command, handles) in self.under_way.items():
            self.under_way[serial] = (command, tuple([instead.get(x, x) for x in handles]))
        used = [x.place for x in instead]
        for slot in self.slots:
            if slot.is_held and slot not in used:
                slot.turn += 1
                slot.free()
