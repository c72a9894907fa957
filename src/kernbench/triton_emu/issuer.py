"""Creation of commands from ``tl`` calls and steps: memory for results, order, and dependencies."""

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
from kernbench.policy.address.free_list import OwnerLabel, ScratchAllocator, ScratchBlock, label_text
from kernbench.triton_emu.handles import Allocation, Handle, Language, Number, Ref, Slot, load_first
from kernbench.triton_emu.kernel_runner import KernelRunner
from kernbench.triton_emu.repeats import Repeats
from kernbench.triton_emu.source import KernelSite, call_line, call_place, kernel_error

_MANY_SLOTS = 1024


class CommandMaker:
    """Maker of the commands of one program on the PE ``site``: it assigns memory and order.

    A command in flight holds references to the handles that it uses. The memory of a handle is therefore freed once the
    program has dropped the handle and all commands that use it are complete; no late read or write can touch the bytes
    of a later owner. The maker never waits: if there is no free memory, the program requests ``AwaitSpace`` and tries
    again.

    ``under_way`` has the commands in flight by serial, with their handles, which are dropped last to first.
    ``next_serial`` is the serial of the next command. ``slots`` are the slots that have held messages of the
    program. ``repeats``: its tasks, if repeated work may be left out.
    """

    __slots__ = ("_scratch", "coord", "next_serial", "repeats", "site", "slots", "under_way")

    def __init__(self, site: KernelSite, scratch: ScratchAllocator) -> None:
        self.site = site
        self.coord = (site.sip, site.cube, site.pe)
        self._scratch = scratch
        self.next_serial = 0
        self.under_way: dict[int, tuple[Command, tuple[Allocation, ...]]] = {}
        self.slots: list[Slot] = []
        self.repeats: Repeats | None = None

    def result(self, label: OwnerLabel, shape: Shape, dtype: DType, nbytes: int) -> ScratchBlock | None:
        """Return memory for an array, with its ``array`` set; None if scratch is full until commands in flight end.

        Raises AllocationError, which lists the owners of scratch, if no command will free memory.
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
        """Return the serial of the next command, and the serials of commands in flight that produce its operands."""
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
        """Hold the handles of ``command`` until it is complete."""
        if result is None:
            self.under_way[command.serial] = (command, reads[::-1])
        else:
            result.producer = serial = command.serial
            self.under_way[serial] = (command, (result, *reads[::-1]) if reads else (result,))

    def stage_in(self, x: Allocation, block: ScratchBlock, line: int, physical: bool = True) -> Command:
        """Read a message in HBM or SRAM into ``block``; ``x`` then refers to ``block``, and its slot is freed.

        ``physical`` says whether the message has a physical address.
        """
        local, remote = block.array, x.array
        copy = Allocation(local, block)
        serial, after = self.order((x,))
        # The two swap places: the slot is freed with the handle that no program holds.
        x.array, copy.array = local, remote
        x.place, copy.place = copy.place, x.place
        x.turn, copy.turn = copy.turn, x.turn
        source = MemoryRef(remote.address, remote.shape, remote.dtype, physical=physical)
        load = Command(LOAD, "load", serial, line, after, (source,), local)
        self.enter(load, (copy,), x)
        return load

    def will_free_memory(self) -> bool:
        """Return True if commands in flight hold the last reference to some memory, which they free at their end."""
        under_way = self.under_way
        for _, handles in under_way.values():
            for i in range(len(handles)):
                if getrefcount(handles[i]) == 2:  # references of the command and of the argument: the usual case
                    return True
        uses = Counter(id(x) for _, handles in under_way.values() for x in handles)
        return any(
            getrefcount(handles[i]) == uses[id(handles[i])] + 1
            for _, handles in under_way.values()
            for i in range(len(handles))
        )

    def only_read_by(self, reader: int, serial: int) -> bool:
        """Return True if ``reader`` is the only command that will ever read the result of ``serial``.

        The program has then dropped the result.
        """
        (_, produced), (_, used) = self.under_way[serial], self.under_way[reader]
        here = sum(x is produced[0] for x in used)
        return here == 1 and getrefcount(produced[0]) == 3  # references of the two commands and of the argument

    def _full_scratch(self, nbytes: int, label: OwnerLabel) -> str:
        """Return the text of the error for full scratch, with the owners of the memory."""
        free, live = self._scratch.free_bytes, self._scratch.live()
        pieces = " but in pieces that are too small" if free >= nbytes else ""
        sizes: Counter[str] = Counter()
        for name, size in live:
            sizes[name] += size
        times = Counter(name for name, _ in live)
        lines = [f"{size:>12} bytes  {times[name]} x {name}" for name, size in sizes.most_common()]
        headline = f"scratch is full: asked for {nbytes} bytes ({label_text(label)}), {free} bytes are free{pieces}"
        return "\n".join([f"{headline}; live handles:", *(lines or ["none"])])

    def add_slot(self, slot: Slot) -> None:
        """Record that the program has its first message in ``slot``."""
        if len(self.slots) >= _MANY_SLOTS:  # posted receives: each has its own slot
            for old_slot in self.slots:
                if not old_slot.is_held:
                    old_slot.kernel = None
            self.slots = [old_slot for old_slot in self.slots if old_slot.is_held]
        slot.kernel = self
        self.slots.append(slot)

    def finish(self) -> None:
        """End the program and free the slots of its messages; slots still used are freed when their commands end.

        Handles that survive the program own no slot any more: commands get handles of their own.
        """
        substitutes: dict[Allocation, Allocation] = {}
        used: list[Slot] = []
        for _, handles in self.under_way.values():
            for x in handles:
                owner = x.root
                place = owner.place
                if isinstance(place, Slot) and owner.turn == place.turn:
                    place.turn += 1
                    substitutes[owner] = Allocation(owner.array, place)
                    used.append(place)
        for serial, (command, handles) in self.under_way.items():
            self.under_way[serial] = (command, tuple([substitutes.get(x.root, x) for x in handles]))
        for slot in sorted(self.slots, key=attrgetter("sequence")):
            if slot.is_held and slot not in used:
                slot.turn += 1
                slot.free()
        for slot in self.slots:
            slot.kernel = None
        self.slots = []


class Issuer(Language):
    """Base class of the groups of ``tl`` calls: issues commands and waits for memory."""

    __slots__ = ("_file", "_maker", "_request", "_runner", "_site")

    def __init__(self, maker: CommandMaker, runner: KernelRunner) -> None:
        self._maker = maker
        self._runner = runner
        self._request = runner.request
        self._site = maker.site
        self._file = maker.site.file

    @property
    def site(self) -> KernelSite:
        """The site of the kernel: its PE, and the participants of its launch."""
        return self._site

    def _line(self, above: int = 2) -> int:
        """Return the line of the kernel's call; raises KernelError outside a kernel.

        ``above`` is the number of frames up to the kernel for a direct call.
        """
        if not self._runner.inside:
            self._runner.check()
        frame = sys._getframe(above)  # noqa: SLF001 - documented, public in all but name
        return frame.f_lineno if frame.f_code.co_filename == self._file else call_line(self._file, frame)

    def _own(self, x: object) -> Handle:
        """Return ``x`` as a handle in TCM that this kernel may use."""
        if isinstance(x, Handle) and x.owner is self and x.array.space == "tcm":
            return x
        handle = self._check_owner(x)
        if handle.array.space != "tcm":
            self._stage_in(handle)
        return handle

    def _check_owner(self, x: object) -> Handle:
        """Return ``x`` as a handle of this kernel."""
        if not isinstance(x, Handle):
            if isinstance(x, Ref):
                raise load_first(x)
            raise kernel_error(f"{x!r} is not a handle: tl.load makes one of memory, tl.full one of a number")
        if x.owner is not self:
            where = "an earlier kernel" if x.owner.site == self._site else f"a kernel on {x.owner.site}"
            raise kernel_error(f"{x!r} belongs to {where}; this is {self._site}: handles do not leave their kernel")
        return x

    def _stage_in(self, x: Handle) -> None:
        """Read a message in HBM or SRAM into scratch."""
        line = self._line()
        block = self._block("message", x.shape, x.dtype, line)
        self._request(self._maker.stage_in(x, block, line, x.physical))

    def _block(self, name: str, shape: Shape, dtype: DType, line: int) -> ScratchBlock:
        """Return memory for the array ``name``; waits until commands in flight free enough."""
        nbytes = prod(shape) * dtype.itemsize
        label = (name, shape, dtype, "at line", line)
        maker = self._maker
        try:
            while (block := maker.result(label, shape, dtype, nbytes)) is None:
                self._request(AwaitSpace(nbytes, line))
        except AllocationError as full:
            raise AllocationError(f"{call_place()}: {full}") from None
        return block

    def _result(self, name: str, shape: Shape, dtype: DType, line: int) -> Handle:
        """Return a handle for the result ``name`` of a call."""
        block = self._block(name, shape, dtype, line)
        return Handle(self, block.array, block)

    def _issue(self, command: Command, reads: tuple[Handle, ...], result: Handle | None = None) -> None:
        self._maker.enter(command, reads, result)
        hand_over = self._runner.hand_over  # the caller has called ``_line``: the kernel runs
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
