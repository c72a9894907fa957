"""Handles: arrays in the PE's TCM that a command makes and later commands use; refs: arrays that stay in memory.

The bytes of a handle lie in scratch or in the slot of a queue, and go back there when the handle is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, NoReturn, Protocol, TypeAlias

from kernbench.common.dtypes import DType
from kernbench.common.errors import KernelError
from kernbench.common.values import state
from kernbench.messages.commands import MemoryRef, Operand
from kernbench.triton_emu.source import KernelSite, kernel_error


class ScratchPlace(Protocol):
    """Bytes that one handle has at a time; ``turn`` counts how often they were taken and given back."""

    turn: int

    def free(self) -> None:
        """Give the bytes back."""


class SlotRing(Protocol):
    """The slots of a queue."""

    def free(self, slot: Slot, /) -> None:
        """Take back ``slot``."""


@state(eq=False)
class Slot:
    """The slot of a received message: ``sequence`` of queue ``direction``, at ``address`` of ``owner``.

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

    def array_of(self, nbytes: int, shape: tuple[int, ...], dtype: DType) -> Operand:
        """Return the message in it as an array."""
        array = self.array
        if array is None or array.dtype is not dtype or (array.shape is not shape and array.shape != shape):
            array = self.array = Operand(self.space, self.owner, self.address, nbytes, shape, dtype)
        return array

    @property
    def is_held(self) -> bool:
        """True while a kernel holds the slot."""
        return self.turn % 2 == 1

    def free(self) -> None:
        """Give the slot back to its ring."""
        self.ring.free(self)


class UnmanagedPlace:
    """Bytes that no allocator gave and that go back to nobody."""

    __slots__ = ("turn",)

    def __init__(self) -> None:
        self.turn = 0

    def free(self) -> None:
        """Do nothing."""


Number: TypeAlias = int | float


class Language(Protocol):
    """The part of ``tl`` that handles call."""

    __slots__ = ()

    @property
    def site(self) -> KernelSite:
        """The site of the kernel: its PE, and what is around it."""

    def elementwise(self, name: str, *operands: Handle | Number) -> Handle:
        """Compute the operator ``name`` on handles and numbers."""

    def binary(self, name: str, a: Handle | Number, b: Handle | Number) -> Handle:
        """Compute the operator ``name`` of two, for operators between them."""

    def trans(self, x: Handle) -> Handle:
        """``x`` with its last two axes swapped."""


class Allocation:
    """An array that a PE holds: its memory goes back when the last reference is gone, if the place is still its own."""

    __slots__ = ("array", "place", "producer", "turn")

    def __init__(self, array: Operand, place: ScratchPlace) -> None:
        # A message may lie in HBM or SRAM: whoever computes with it first has it read into scratch.
        self.array = array
        self.place = place
        # While this is the turn of the place, the place is its own.
        self.turn = place.turn = place.turn + 1
        self.producer = -1  # the last command that writes it; -1: none does

    @property
    def root(self) -> Allocation:
        """The one that has the memory: itself, unless it is a view."""
        return self

    def __del__(self) -> None:
        place = self.place
        if place.turn == self.turn:
            place.turn += 1
            place.free()


def _operator(name: str) -> Callable[[Handle, Handle | Number], Handle]:
    """Return a handle's method for the operator ``name`` with a handle or a number behind it."""

    def operate(self: Handle, other: Handle | Number) -> Handle:
        return self.owner.binary(name, self, other)

    return operate


def _swap(name: str) -> Callable[[Handle, Number], Handle]:
    """Return the same for a number in front of the handle."""

    def operate(self: Handle, other: Number) -> Handle:
        return self.owner.binary(name, other, self)

    return operate


def _bit_operator(name: str) -> Callable[[Handle, Handle | Number], Handle]:
    """Return the same for an operator on bits, which not all types have."""

    def operate(self: Handle, other: Handle | Number) -> Handle:
        return self.owner.elementwise(name, self, other)

    return operate


def _swap_bit_operator(name: str) -> Callable[[Handle, Number], Handle]:
    def operate(self: Handle, other: Number) -> Handle:
        return self.owner.elementwise(name, other, self)

    return operate


def _sign(name: str) -> Callable[[Handle], Handle]:
    """Return a handle's method for the operator ``name`` of one operand."""

    def operate(self: Handle) -> Handle:
        return self.owner.elementwise(name, self)

    return operate


class Handle(Allocation):
    """An array of ``shape`` and ``dtype`` at ``addr`` of the memory ``space``; its values exist only in phase 2.

    Handles are values: an operation makes a new one and changes none. The memory of a handle is given back when the
    last reference to it is gone and the commands that use it are done.
    """

    # NumPy scalars and arrays leave an operation with a handle to the handle.
    __array_ufunc__ = None
    __slots__ = ("owner", "physical")

    def __init__(self, owner: Language, array: Operand, place: ScratchPlace, physical: bool = True) -> None:
        # As Allocation has it, once more: a call for each handle would be dear.
        self.owner = owner
        self.array = array
        self.place = place
        self.turn = place.turn = place.turn + 1
        self.producer = -1
        self.physical = physical

    @property
    def space(self) -> str:
        """The memory that it lies in: tcm, hbm or sram."""
        return self.array.space

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements per axis."""
        return self.array.shape

    @property
    def dtype(self) -> DType:
        """The type of an element."""
        return self.array.dtype

    @property
    def nbytes(self) -> int:
        """Bytes it holds."""
        return self.array.nbytes

    @property
    def addr(self) -> int:
        """The address in the memory ``space``: an encoded physical one, or the virtual one it was received to."""
        return self.array.address

    @property
    def T(self) -> Handle:  # noqa: N802 - NumPy's name
        """The handle with its last two axes swapped: an operation, as ``tl.trans``."""
        return self.owner.trans(self)

    def __repr__(self) -> str:
        return f"<handle {self.shape} {self.dtype} at {self.addr:#x}>"

    __add__ = _operator("add")
    __radd__ = _swap("add")
    __sub__ = _operator("sub")
    __rsub__ = _swap("sub")
    __mul__ = _operator("mul")
    __rmul__ = _swap("mul")
    __truediv__ = _operator("div")
    __rtruediv__ = _swap("div")
    __mod__ = _operator("rem")
    __rmod__ = _swap("rem")
    __and__ = _bit_operator("and")
    __rand__ = _swap_bit_operator("and")
    __or__ = _bit_operator("or")
    __ror__ = _swap_bit_operator("or")
    __xor__ = _bit_operator("xor")
    __rxor__ = _swap_bit_operator("xor")
    __lshift__ = _bit_operator("shl")
    __rlshift__ = _swap_bit_operator("shl")
    __rshift__ = _bit_operator("shr")
    __rrshift__ = _swap_bit_operator("shr")
    __invert__ = _sign("not")
    __neg__ = _sign("neg")
    __lt__ = _operator("lt")
    __le__ = _operator("le")
    __gt__ = _operator("gt")
    __ge__ = _operator("ge")
    __eq__ = _operator("eq")  # type: ignore[assignment]
    __ne__ = _operator("ne")  # type: ignore[assignment]
    __hash__ = object.__hash__

    def __bool__(self) -> NoReturn:
        raise _no_value("branch on", "use tl.where to choose between values, scalar arguments to choose what to do")

    def __int__(self) -> NoReturn:
        raise _no_value("convert")

    def __float__(self) -> NoReturn:
        raise _no_value("convert")

    def __index__(self) -> NoReturn:
        raise _no_value("index with")

    def __iter__(self) -> NoReturn:
        raise _no_value("iterate over")

    def __getitem__(self, key: object) -> NoReturn:
        raise _no_value("pick elements of", "load the part that is wanted")

    def __array__(self, *args: object, **kwargs: object) -> NoReturn:
        raise _no_value("convert")

    def item(self) -> NoReturn:
        """KernelError: there is no value while timing is simulated."""
        raise _no_value("read")


class View(Handle):
    """The bytes of ``base`` from ``offset`` on, row by row, in another shape.

    It holds on to the handle, and gives nothing back itself.
    """

    __slots__ = ("base",)

    def __init__(self, base: Handle, shape: tuple[int, ...], offset: int = 0) -> None:
        self.base = base.root
        there, nbytes = base.array, math.prod(shape) * base.dtype.itemsize
        seen = replace(there, shape=shape, nbytes=nbytes, address=there.address + offset)
        super().__init__(base.owner, seen, UnmanagedPlace())
        self.producer = base.producer

    @property
    def root(self) -> Allocation:
        """The handle that has the memory."""
        return self.base


def _no_value(what: str, instead: str = "") -> Exception:
    text = f"cannot {what} a handle: its numbers are in the machine. tl.value(x) waits for them and gives them"
    return kernel_error(f"{text}{instead and f'; {instead}'}")


class Ref:
    """An array of ``shape`` and ``dtype`` at virtual address ``va``: an operand of ``tl.composite`` only.

    It names bytes and holds none: making one costs nothing, and it has the values that are in memory when it is read.
    """

    # NumPy scalars and arrays leave an operation with a ref to the ref, which refuses.
    __array_ufunc__ = None
    __slots__ = ("array", "site")

    def __init__(self, site: KernelSite, array: MemoryRef) -> None:
        self.site = site
        self.array = array

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements per axis."""
        return self.array.shape

    @property
    def dtype(self) -> DType:
        """The type of an element."""
        return self.array.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.array.shape) * self.array.dtype.itemsize

    @property
    def va(self) -> int:
        """The virtual address of its first element."""
        return self.array.va

    def __repr__(self) -> str:
        return f"<ref {self.shape} {self.dtype} at {self.va:#x}>"

    def _refuse(self, *_: object) -> NoReturn:
        raise load_first(self)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _refuse
    __neg__ = __getitem__ = __iter__ = __bool__ = __int__ = __float__ = __index__ = __array__ = _refuse
    __hash__ = object.__hash__


def load_first(ref: Ref) -> KernelError:
    """Return the error for a ref that is the operand of anything but a composite."""
    return kernel_error(f"{ref!r} is in memory, and only tl.composite takes refs: tl.load it to use it here")
