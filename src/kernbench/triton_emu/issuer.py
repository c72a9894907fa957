"""How a ``tl`` call becomes a command: memory for its result, its place in the order, and what it waits for."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import CodeType

from kernbench.common.dtypes import DType
from kernbench.common.errors import AllocationError
from kernbench.common.operators import PLAIN, Attributes
from kernbench.messages.commands import AwaitSpace, LoadCommand, MathCommand, PeCommand, Receive
from kernbench.messages.operands import Operand
from kernbench.triton_emu.checks import Shape
from kernbench.triton_emu.handles import Handle, Language, Number
from kernbench.triton_emu.kernel_runner import KernelRunner
from kernbench.triton_emu.refs import Ref, load_first
from kernbench.triton_emu.scratch import Buffer, Lifetimes, Scratch
from kernbench.triton_emu.site import KernelSite
from kernbench.triton_emu.source import call_line, call_place, kernel_error

_KEPT_ARRAYS = 64


class _Room:
    """What a call of the kernel last needed: so many bytes of ``owner`` for an array, which it has had at addresses."""

    __slots__ = ("_owner", "arrays", "dtype", "label", "nbytes", "shape")

    def __init__(self, owner: tuple[int, int, int], shape: Shape, dtype: DType, label: str) -> None:
        self.shape = shape
        self.dtype = dtype
        self.nbytes = math.prod(shape) * dtype.itemsize
        self.label = label
        self._owner = owner
        self.arrays: dict[int, Operand] = {}

    def at(self, address: int) -> Operand:
        """The array when it lies at ``address``."""
        if len(self.arrays) == _KEPT_ARRAYS:
            self.arrays.clear()
        made = self.arrays[address] = Operand("tcm", self._owner, address, self.nbytes, self.shape, self.dtype)
        return made


@dataclass(frozen=True, slots=True)
class Asked:
    """A receive with the arguments of its call, and what they mean: the same for every turn of a loop."""

    direction: object
    shape: object
    dtype: object
    receive: Receive
    extent: Shape
    item: DType


class Issuer(Language):
    """What every group of ``tl`` calls is built on; its surface is for the PE that runs the kernel."""

    __slots__ = (
        "_asked",
        "_code",
        "_coord",
        "_file",
        "_lifetimes",
        "_lines",
        "_next_serial",
        "_request",
        "_rooms",
        "_runner",
        "_scratch",
        "_site",
    )

    def __init__(self, site: KernelSite, scratch: Scratch, runner: KernelRunner) -> None:
        self._site = site
        self._scratch = scratch
        self._runner = runner
        self._coord = (site.sip, site.cube, site.pe)
        self._request = runner.request
        self._lifetimes = Lifetimes()
        self._next_serial = 0
        self._file = site.file
        # The function that last made a call, and the lines of its calls by where in its code they are.
        self._code: CodeType | None = None
        self._lines: dict[int, int] = {}
        # What scratch calls the result of a call in a line, and its size: the same for every turn of a loop.
        self._rooms: dict[tuple[int, str], _Room] = {}
        # What the receive in a line last asked for.
        self._asked: dict[int, Asked] = {}

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

    def _line(self, above: int = 2) -> int:
        """The kernel's line that makes this call; KernelError when no kernel of this ``tl`` makes it.

        ``above``: how many frames further up the kernel is, if it makes the call itself.
        """
        if not self._runner.inside:
            self._runner.check()
        frame = sys._getframe(above)  # noqa: SLF001 - documented, public in all but name
        code = frame.f_code
        if code is not self._code:
            if code.co_filename != self._file:
                return call_line(self._file, frame)
            self._code, self._lines = code, {}
        at = frame.f_lasti
        return self._lines.get(at) or self._lines.setdefault(at, frame.f_lineno)

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
        line = self._line()
        copy = self._fresh("message", x.shape, x.dtype, line)
        serial, after = self._ordered((x,))
        there, source, here, buffer = x.array, x.buffer, copy.array, copy.buffer
        # The two change places: the slot goes back with the handle that nobody has.
        x.array, x.buffer, copy.array, copy.buffer = here, buffer, there, source
        buffer.producer = serial
        self._lifetimes.began(serial, (source, buffer))
        self._request(
            LoadCommand(serial=serial, line=line, after=after, dst=here, va=there.address, physical=x.physical)
        )

    def _fresh(self, what: str, shape: Shape, dtype: DType, line: int) -> Handle:
        """A handle for the result of the call ``what``; waits for memory that commands under way will give back."""
        room = self._rooms.get((line, what))
        if room is None or room.shape != shape or room.dtype is not dtype:
            room = self._room(what, shape, dtype, line)
        try:
            address = self._scratch.alloc(room.nbytes, room.label)
        except AllocationError:
            address = -1
        if address < 0:
            address = self._alloc_later(room.nbytes, room.label, line)
        array = room.arrays.get(address) or room.at(address)
        return Handle(self, array, Buffer(address, self._scratch, self._lifetimes))

    def _room(self, what: str, shape: Shape, dtype: DType, line: int) -> _Room:
        """What the result of the call ``what`` needs."""
        room = self._rooms[line, what] = _Room(self._coord, shape, dtype, f"{what} {shape} {dtype.name} at line {line}")
        return room

    def _alloc_later(self, nbytes: int, label: str, line: int) -> int:
        """Wait until enough has come back; AllocationError when nothing is about to."""
        while self._lifetimes.releasing:
            self._request(AwaitSpace(nbytes, line))
            with suppress(AllocationError):
                return self._scratch.alloc(nbytes, label)
        raise AllocationError(f"{call_place()}: {self._full(nbytes, label)}")

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
        producers = [producer for x in reads if (producer := x.buffer.producer) >= 0]
        return serial, tuple(sorted(set(producers)) if len(producers) > 1 else producers)

    def _combine(self, line: int, name: str, a: Handle, b: Handle, dtype: DType) -> Handle:
        """Issue the MATH operator ``name`` on two handles in TCM of one shape."""
        left, right = a.array, b.array
        result = self._fresh(name, left.shape, dtype, line)
        one, other, made = a.buffer, b.buffer, result.buffer
        serial, first, second = self._next_serial, one.producer, other.producer
        self._next_serial = serial + 1
        after: tuple[int, ...]
        if first == second or second < 0:
            after = (first,) if first >= 0 else ()
        elif first < 0:
            after = (second,)
        else:
            after = (first, second) if first < second else (second, first)
        command = MathCommand(serial, line, after, name, (left, right), result.array, PLAIN)
        made.producer = serial
        self._lifetimes.under_way[serial] = (one, other, made)
        one.uses += 1
        other.uses += 1
        made.uses += 1
        self._request(command)
        return result

    def _issue(self, command: PeCommand, reads: Iterable[Handle], result: Handle | None = None) -> None:
        buffers = [x.buffer for x in reads]
        if result is not None:
            result.buffer.producer = command.serial
            buffers.append(result.buffer)
        self._lifetimes.began(command.serial, tuple(buffers))
        self._request(command)

    def _compute(
        self,
        line: int,
        name: str,
        operands: tuple[Handle | Number, ...],
        shape: Shape,
        dtype: DType,
        attributes: Attributes = PLAIN,
    ) -> Handle:
        """Issue the MATH operator ``name`` on checked operands."""
        result = self._fresh(name, shape, dtype, line)
        reads = [x for x in operands if isinstance(x, Handle)]
        serial, after = self._ordered(reads)
        command = MathCommand(
            serial=serial,
            line=line,
            after=after,
            operator=name,
            inputs=tuple([x.array if isinstance(x, Handle) else x for x in operands]),
            dst=result.array,
            attributes=attributes,
        )
        self._issue(command, reads, result)
        return result
