"""From a ``tl`` call or a step to a command: memory for its result, its place in the order, what it waits for."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from math import prod
from operator import attrgetter
from sys import getrefcount

from kernbench.common.dtypes import DType, Shape
from kernbench.common.errors import AllocationError
from kernbench.messages.commands import (
    LOAD,
    MATH,
    NO_PARAMS,
    AwaitSpace,
    Command,
    MemoryRef,
    Operand,
    Params,
)
from kernbench.policy.address.free_list import Block, Label, ScratchAllocator, label_text
from kernbench.triton_emu.handles import Allocation, Handle, Language, Number, Ref, Slot, load_first
from kernbench.triton_emu.kernel_runner import KernelRunner
from kernbench.triton_emu.source import KernelSite, call_line, call_place, kernel_error

_MANY_SLOTS = 1024


class CommandMaker:
    """Gives the commands of one program on the PE ``site`` their memory and their order.

    A command that is under way has the handles it uses, so that the memory of one goes back once the program has
    dropped it and the commands are done. So whoever gets the bytes next meets neither a read that is late nor a write
    that is. Nothing here waits: a program that gets no memory asks for ``AwaitSpace`` and tries again.

    ``under_way``: the commands that are not done, by serial, with their handles, which are let go from the last to the
    first. ``next_serial``: that of the next command. ``slots``: those that the program has had messages in.
    """

    __slots__ = ("_scratch", "coord", "next_serial", "site", "slots", "under_way")

    def __init__(self, site: KernelSite, scratch: ScratchAllocator) -> None:
        self.site = site
        self.coord = (site.sip, site.cube, site.pe)
        self._scratch = scratch
        self.next_serial = 0
        self.under_way: dict[int, tuple[Command, tuple[Allocation, ...]]] = {}
        self.slots: list[Slot] = []

    def result(self, label: Label, shape: Shape, dtype: DType, nbytes: int) -> Block | None:
        """Return memory for an array, its ``array`` set; None when commands under way will give some back.

        AllocationError, which says who holds it, when none of them will.
        """
        block = self._scratch.alloc(nbytes, label)
        if block is None:
            if self.will_free_memory():
                return None
            raise AllocationError(self._full_scratch(nbytes, label))
        array = block.array
        if array is None or array.dtype is not dtype or (array.shape is not shape and array.shape != shape):
            block.array = Operand("tcm", self.coord, block.address, nbytes, shape, dtype)
        return block

    def order(self, reads: Sequence[Allocation]) -> tuple[int, tuple[int, ...]]:
        """Return the serial of the next command, and those of the commands under way that make what it reads."""
        serial = self.next_serial
        self.next_serial = serial + 1
        under_way = self.under_way
        after: tuple[int, ...] = ()
        for x in reads:
            producer = x.producer
            if producer in under_way:
                if not after:
                    after = (producer,)
                elif producer not in after:
                    after = tuple(sorted((*after, producer)))
        return serial, after

    def enter(self, command: Command, reads: tuple[Allocation, ...], result: Allocation | None = None) -> None:
        """Hold what ``command`` uses until it is done."""
        if result is None:
            self.under_way[command.serial] = (command, reads[::-1])
        else:
            result.producer = serial = command.serial
            self.under_way[serial] = (command, (result, *reads[::-1]) if reads else (result,))

    def bring_in(self, x: Allocation, block: Block, line: int, physical: bool = True) -> Command:
        """Read a message that lies in HBM or SRAM into ``block``: from then on ``x`` is that, and its slot free.

        ``physical``: of its address.
        """
        here, there = block.array, x.array
        copy = Allocation(here, block)
        serial, after = self.order((x,))
        # The two change places: the slot goes back with the handle that nobody has.
        x.array, copy.array = here, there
        x.place, copy.place = copy.place, x.place
        x.turn, copy.turn = copy.turn, x.turn
        source = MemoryRef(there.address, there.shape, there.dtype, physical=physical)
        load = Command(LOAD, "load", serial, line, after, (source,), here)
        self.enter(load, (copy,), x)
        return load

    def will_free_memory(self) -> bool:
        """Return True when commands under way are the last to have some memory, which goes back when they are done."""
        under_way = self.under_way
        for _, handles in under_way.values():
            for i in range(len(handles)):
                if getrefcount(handles[i]) == 2:  # of this command, and the argument's: so it is almost always
                    return True
        uses = Counter(id(x) for _, handles in under_way.values() for x in handles)
        return any(
            getrefcount(handles[i]) == uses[id(handles[i])] + 1
            for _, handles in under_way.values()
            for i in range(len(handles))
        )

    def only_read_by(self, reader: int, serial: int) -> bool:
        """Return True when nobody but the command ``reader`` will read what ``serial`` makes: it has been dropped."""
        (_, made), (_, used) = self.under_way[serial], self.under_way[reader]
        here = sum(x is made[0] for x in used)
        return here == 1 and getrefcount(made[0]) == 3  # of the two commands, and the argument's

    def _full_scratch(self, nbytes: int, label: Label) -> str:
        """Say who holds the memory that there is none of for ``label``."""
        free, live = self._scratch.free_bytes, self._scratch.live()
        pieces = " but in pieces that are too small" if free >= nbytes else ""
        held: Counter[str] = Counter()
        for name, size in live:
            held[name] += size
        times = Counter(name for name, _ in live)
        lines = [f"{size:>12} bytes  {times[name]} x {name}" for name, size in held.most_common()]
        asked = f"scratch is full: asked for {nbytes} bytes ({label_text(label)}), {free} bytes are free{pieces}"
        return "\n".join([f"{asked}; live handles:", *(lines or ["none"])])

    def add_slot(self, slot: Slot) -> None:
        """Note that the program has its first message in ``slot``."""
        if len(self.slots) >= _MANY_SLOTS:  # of receives that were posted: each had a slot of its own
            for each in self.slots:
                if not each.is_held:
                    each.kernel = None
            self.slots = [each for each in self.slots if each.is_held]
        slot.kernel = self
        self.slots.append(slot)

    def finish(self) -> None:
        """End the program: the slots of its messages go back, those that commands still use when they are done.

        Handles that somebody has kept hold none any more: commands get handles of their own.
        """
        instead: dict[Allocation, Allocation] = {}
        used: list[Slot] = []
        for _, handles in self.under_way.values():
            for x in handles:
                owner = x.root
                place = owner.place
                if isinstance(place, Slot) and owner.turn == place.turn:
                    place.turn += 1
                    instead[owner] = Allocation(owner.array, place)
                    used.append(place)
        for serial, (command, handles) in self.under_way.items():
            self.under_way[serial] = (command, tuple([instead.get(x.root, x) for x in handles]))
        for slot in sorted(self.slots, key=attrgetter("sequence")):
            if slot.is_held and slot not in used:
                slot.turn += 1
                slot.free()
        for slot in self.slots:
            slot.kernel = None
        self.slots = []


class Issuer(Language):
    """The base of every group of ``tl`` calls: it hands commands over, and waits for memory."""

    __slots__ = ("_file", "_maker", "_request", "_runner", "_site")

    def __init__(self, maker: CommandMaker, runner: KernelRunner) -> None:
        self._maker = maker
        self._runner = runner
        self._request = runner.request
        self._site = maker.site
        self._file = maker.site.file

    @property
    def site(self) -> KernelSite:
        """The site of the kernel: its PE, and what is around it."""
        return self._site

    def _line(self, above: int = 2) -> int:
        """Return the line of the kernel's call that this is; KernelError when no kernel makes it.

        ``above``: how many frames further up the kernel is, if it makes the call itself.
        """
        if not self._runner.inside:
            self._runner.check()
        frame = sys._getframe(above)  # noqa: SLF001 - documented, public in all but name
        return frame.f_lineno if frame.f_code.co_filename == self._file else call_line(self._file, frame)

    def _own(self, x: object) -> Handle:
        """``x`` as a handle in TCM that this kernel may use."""
        if isinstance(x, Handle) and x.owner is self and x.array.space == "tcm":
            return x
        handle = self._check_owner(x)
        if handle.array.space != "tcm":
            self._bring_in(handle)
        return handle

    def _check_owner(self, x: object) -> Handle:
        """``x`` as a handle of this kernel."""
        if not isinstance(x, Handle):
            if isinstance(x, Ref):
                raise load_first(x)
            raise kernel_error(f"{x!r} is not a handle: tl.load makes one of memory, tl.full one of a number")
        if x.owner is not self:
            where = "an earlier kernel" if x.owner.site == self._site else f"a kernel on {x.owner.site}"
            raise kernel_error(f"{x!r} belongs to {where}; this is {self._site}: handles do not leave their kernel")
        return x

    def _bring_in(self, x: Handle) -> None:
        """Read a message that lies in HBM or SRAM into scratch."""
        line = self._line()
        block = self._block("message", x.shape, x.dtype, line)
        self._request(self._maker.bring_in(x, block, line, x.physical))

    def _block(self, what: str, shape: Shape, dtype: DType, line: int) -> Block:
        """Return memory for the array ``what``; waits for what commands under way will give back."""
        nbytes = prod(shape) * dtype.itemsize
        label = (what, shape, dtype, "at line", line)
        maker = self._maker
        try:
            while (block := maker.result(label, shape, dtype, nbytes)) is None:
                self._request(AwaitSpace(nbytes, line))
        except AllocationError as full:
            raise AllocationError(f"{call_place()}: {full}") from None
        return block

    def _result(self, what: str, shape: Shape, dtype: DType, line: int) -> Handle:
        """Return a handle for the result ``what`` of a call."""
        block = self._block(what, shape, dtype, line)
        return Handle(self, block.array, block)

    def _issue(self, command: Command, reads: tuple[Handle, ...], result: Handle | None = None) -> None:
        self._maker.enter(command, reads, result)
        hand_over = self._runner.hand_over  # whoever issues has asked for its ``_line``: the kernel runs
        hand_over(command)

    def _compute(
        self,
        line: int,
        name: str,
        operands: tuple[Handle | Number, ...],
        shape: Shape,
        dtype: DType,
        params: Params = NO_PARAMS,
    ) -> Handle:
        """Issue the MATH operator ``name`` on checked operands."""
        result = self._result(name, shape, dtype, line)
        reads = tuple([x for x in operands if isinstance(x, Handle)])
        serial, after = self._maker.order(reads)
        inputs = tuple([x.array if isinstance(x, Handle) else x for x in operands])
        command = Command(MATH, name, serial, line, after, inputs, result.array, params)
        self._issue(command, reads, result)
        return result
