"""From a ``tl`` call to a command: memory for its result, its place in the order, and the commands it waits for."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from sys import getrefcount
from types import CodeType

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
from kernbench.policy.address.free_list import Block, ScratchAllocator
from kernbench.triton_emu.calls import Asked, Call, KnownCalls, Room
from kernbench.triton_emu.handles import Allocation, Handle, Language, Number, Ref, Slot, load_first
from kernbench.triton_emu.kernel_runner import KernelRunner
from kernbench.triton_emu.source import KernelSite, call_line, call_place, kernel_error

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
        self.under_way: dict[int, tuple[Command, tuple[Handle, ...]]] = {}
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


def returning(under_way: Mapping[int, tuple[Command, tuple[Allocation, ...]]]) -> bool:
    """Whether commands ``under_way`` are the last to have some memory."""
    uses = Counter(id(x) for _, handles in under_way.values() for x in handles)
    return any(
        getrefcount(handles[i]) == uses[id(handles[i])] + 1  # one is the argument's
        for _, handles in under_way.values()
        for i in range(len(handles))
    )


class Issuer(Language):
    """What every group of ``tl`` calls is built on; its surface is for the PE that runs the kernel."""

    __slots__ = (
        "_asked",
        "_calls",
        "_code",
        "_coord",
        "_elsewhere",
        "_file",
        "_known",
        "_lifetimes",
        "_next_serial",
        "_request",
        "_runner",
        "_scratch",
        "_site",
        "_under_way",
    )

    def __init__(self, site: KernelSite, scratch: ScratchAllocator, runner: KernelRunner, known: KnownCalls) -> None:
        self._site = site
        self._scratch = scratch
        self._runner = runner
        self._coord = (site.sip, site.cube, site.pe)
        self._request = runner.request
        self._lifetimes = lifetimes = Lifetimes()
        self._under_way = lifetimes.under_way
        self._next_serial = 0
        self._file = site.file
        # The function that last made a call, and its calls by where in its code they are.
        self._known = known
        self._code: CodeType | None = None
        self._calls: dict[int, Call] = {}
        self._elsewhere: dict[int, Call] = {}
        # What its receives last asked for.
        self._asked: dict[Call, Asked] = {}

    @property
    def site(self) -> KernelSite:
        """Where the kernel runs."""
        return self._site

    @property
    def lifetimes(self) -> Lifetimes:
        """How long the memory of its handles is held."""
        return self._lifetimes

    def finish(self) -> None:
        """The kernel is over: all its memory is given back."""
        self._lifetimes.finish()

    def _call(self, above: int = 2) -> Call:
        """The kernel's call that this is, as the kernel has made it before; KernelError when no kernel makes it.

        ``above``: how many frames further up the kernel is, if it makes the call itself.
        """
        if not self._runner.inside:
            self._runner.check()
        frame = sys._getframe(above)  # noqa: SLF001 - documented, public in all but name
        code = frame.f_code
        if code is not self._code:
            if code.co_filename != self._file:
                return self._call_from(call_line(self._file, frame))
            self._code, self._calls = code, self._known.of(code)
        at = frame.f_lasti
        return self._calls.get(at) or self._calls.setdefault(at, Call(frame.f_lineno))

    def _call_from(self, line: int) -> Call:
        """The call that a function in another file makes for ``line`` of the kernel."""
        return self._elsewhere.get(line) or self._elsewhere.setdefault(line, Call(line))

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
        """Read a message that lies in HBM or SRAM into scratch: from then on the handle is that, and its slot free."""
        call = self._call()
        copy = self._fresh("message", x.shape, x.dtype, call)
        serial, after = self._ordered((x,))
        there, here = x.array, copy.array
        # The two change places: the slot goes back with the handle that nobody has.
        x.array, copy.array = here, there
        x.place, copy.place = copy.place, x.place
        x.turn, copy.turn = copy.turn, x.turn
        x.producer = serial
        source = MemoryRef(there.address, there.shape, there.dtype, physical=x.physical)
        command = Command(LOAD, "load", serial, call.line, after, (source,), here)
        self._under_way[serial] = (command, (x, copy))
        self._request(command)

    def _fresh(self, what: str, shape: Shape, dtype: DType, call: Call) -> Handle:
        """A handle for the result ``what`` of a call; waits for memory that commands under way will give back."""
        room = call.rooms.get(what)
        if room is None or room.dtype is not dtype or (room.shape is not shape and room.shape != shape):
            room = call.room(what, shape, dtype)
        try:
            block = self._scratch.alloc(room.nbytes, room.label)
        except AllocationError:
            block = self._alloc_later(room, call.line)
        array = block.array
        if array is None or array.dtype is not dtype or (array.shape is not shape and array.shape != shape):
            array = block.array = Operand("tcm", self._coord, block.address, room.nbytes, shape, dtype)
        return Handle(self, array, block)

    def _alloc_later(self, room: Room, line: int) -> Block:
        """Wait until enough has come back; AllocationError when nothing is about to."""
        while self._lifetimes.returning():
            self._request(AwaitSpace(room.nbytes, line))
            with suppress(AllocationError):
                return self._scratch.alloc(room.nbytes, room.label)
        raise AllocationError(f"{call_place()}: {self._full(room.nbytes, room.label)}")

    def _full(self, nbytes: int, label: str) -> str:
        free, live = self._scratch.free_bytes, self._scratch.live()
        pieces = " but in pieces that are too small" if free >= nbytes else ""
        held: Counter[str] = Counter()
        for name, size in live:
            held[name] += size
        times = Counter(name for name, _ in live)
        lines = [f"{size:>12} bytes  {times[name]} x {name}" for name, size in held.most_common()]
        head = f"scratch is full: asked for {nbytes} bytes ({label}), {free} bytes are free{pieces}; live handles:"
        return "\n".join([head, *(lines or ["none"])])

    def _ordered(self, reads: Collection[Handle]) -> tuple[int, tuple[int, ...]]:
        """The serial of the next command, and those of the commands under way that make what it reads."""
        serial = self._next_serial
        self._next_serial = serial + 1
        if not reads:
            return serial, ()
        under_way = self._under_way
        producers = [producer for x in reads if (producer := x.producer) in under_way]
        return serial, tuple(sorted(set(producers)) if len(producers) > 1 else producers)

    def _issue(self, command: Command, reads: Iterable[Handle], result: Handle | None = None) -> None:
        handles = [*reads]
        if result is not None:
            result.producer = command.serial
            handles.append(result)
        self._under_way[command.serial] = (command, tuple(handles[::-1]))
        hand_over = self._runner.hand_over  # whoever issues has asked for its ``_call``: the kernel runs
        hand_over(command)

    def _compute(
        self,
        call: Call,
        name: str,
        operands: tuple[Handle | Number, ...],
        shape: Shape,
        dtype: DType,
        params: Params = NO_PARAMS,
    ) -> Handle:
        """Issue the MATH operator ``name`` on checked operands."""
        result = self._fresh(name, shape, dtype, call)
        reads = [x for x in operands if isinstance(x, Handle)]
        serial, after = self._ordered(reads)
        inputs = tuple([x.array if isinstance(x, Handle) else x for x in operands])
        command = Command(MATH, name, serial, call.line, after, inputs, result.array, params)
        self._issue(command, reads, result)
        return result
