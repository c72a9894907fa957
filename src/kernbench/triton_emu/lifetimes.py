"""How long the memory of a kernel's handles is held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from sys import getrefcount

from kernbench.messages.commands import PeCommand
from kernbench.triton_emu.handles import Allocation, Handle
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

    def returning(self) -> bool:
        """Whether commands under way are the last to have some memory, which thus goes back when they are done."""
        return returning(self.under_way)

    def only_read_by(self, reader: int, serial: int) -> bool:
        """Whether nobody but the command ``reader`` will read what ``serial`` makes: the kernel has dropped it."""
        (_, made), (_, used) = self.under_way[serial], self.under_way[reader]
        here = sum(x is made[0] for x in used)
        return here == 1 and getrefcount(made[0]) == 3  # of the two commands, and the argument's

    def received(self, slot: Slot) -> None:
        """The kernel has its first message in ``slot``."""
        if len(self.slots) >= _MANY_SLOTS:  # of receives that were posted: each had a slot of its own
            for each in self.slots:
                if not each.is_held:
                    each.kernel = None
            self.slots = [each for each in self.slots if each.is_held]
        slot.kernel = self
        self.slots.append(slot)

    def finish(self) -> None:
        """The kernel is over: the slots of its messages go back, those that commands still use when they are done.

        Handles that somebody has kept hold none any more: commands get handles of their own.
        """
        instead: dict[Handle, Handle] = {}
        for x in [x.root for _, handles in self.under_way.values() for x in handles]:
            if isinstance(x.place, Slot) and x.turn == x.place.turn:
                x.place.turn += 1
                instead[x] = Handle(x.owner, x.array, x.place)
        for serial, (command, handles) in self.under_way.items():
            self.under_way[serial] = (command, tuple([instead.get(x.root, x) for x in handles]))
        used = [x.place for x in instead]
        for slot in sorted(self.slots, key=lambda each: each.sequence):
            if slot.is_held and slot not in used:
                slot.turn += 1
                slot.free()
        for slot in self.slots:
            slot.kernel = None
        self.slots = []


def returning(under_way: Mapping[int, tuple[PeCommand, tuple[Allocation, ...]]]) -> bool:
    """Whether commands ``under_way`` are the last to have some memory."""
    uses = Counter(id(x) for _, handles in under_way.values() for x in handles)
    return any(
        getrefcount(handles[i]) == uses[id(handles[i])] + 1  # one is the argument's
        for _, handles in under_way.values()
        for i in range(len(handles))
    )
