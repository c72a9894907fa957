"""Handles: arrays in the PE's TCM that a command produces and later commands use; refs: arrays that stay in memory.

The bytes of a handle are in scratch or in the slot of a queue, and are freed when the handle is dropped.
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
    """A range of bytes that one handle at a time may own.

    ``turn`` is how many times the range was allocated or freed, so an odd value means that the range is in use.
    """

    turn: int

    def free(self) -> None:
        """Free the bytes."""


class SlotRing(Protocol):
    """The slots of a queue."""

    def free(self, slot: Slot, /) -> None:
        """Return ``slot`` to the queue."""


@state(eq=False)
class Slot:
    """The slot of a received message: number ``sequence`` of queue ``direction``, at physical ``address`` of ``owner``.

    The slot returns to ``ring`` when the kernel no longer needs the message. ``pending`` is True until the message has
    arrived. ``array`` caches the description of the last message, because most messages of a queue have the same shape
    and type. ``turn`` is as in ``ScratchPlace``. ``kernel`` is the last program that received a message in the slot.
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
        """Return the message in the slot as an array."""
        array = self.array
        if array is None or array.dtype is not dtype or (array.shape is not shape and array.shape != shape):
            array = self.array = Operand(self.space, self.owner, self.address, nbytes, shape, dtype)
        return array

    @property
    def is_held(self) -> bool:
        """True while a kernel holds the slot."""
        return self.turn % 2 == 1

    def free(self) -> None:
        """Return the slot to its ring."""
        self.ring.free(self)


class UnmanagedPlace:
    """Bytes that belong to no allocator."""

    __slots__ = ("turn",)

    def __init__(self) -> None:
        self.turn = 0

    def free(self) -> None:
        """Do nothing."""


Number: TypeAlias = int | float


class Language(Protocol):
    """The calls of ``tl`` that handles use."""

    __slots__ = ()

    @property
    def site(self) -> KernelSite:
        """The site of the kernel: its PE, and the participants of its launch."""

    def elementwise(self, name: str, *operands: Handle | Number) -> Handle:
        """Apply the operator ``name`` to handles and numbers."""

    def binary(self, name: str, a: Handle | Number, b: Handle | Number) -> Handle:
        """Apply the operator ``name`` to two operands."""

    def trans(self, x: Handle) -> Handle:
        """Return ``x`` with its last two axes swapped."""


class Allocation:
    """An array in the memory of a PE; the memory is freed with the last reference, unless it has been freed before."""

    __slots__ = ("array", "place", "producer", "turn")

    def __init__(self, array: Operand, place: ScratchPlace) -> None:
        # A message may be in HBM or SRAM: before the first command that computes with it, it is read into scratch.
        self.array = array
        self.place = place
        # The allocation owns the place as long as both counts are equal.
        self.turn = place.turn = place.turn + 1
        self.producer = -1  # the last command that writes the array; -1: none

    @property
    def root(self) -> Allocation:
        """The allocation that owns the memory: itself, unless it is a view."""
        return self

    def __del__(self) -> None:
        place = self.place
        if place.turn == self.turn:
            place.turn += 1
            place.free()


def _operator(name: str, call: str = "binary") -> Callable[[Handle, Handle | Number], Handle]:
    """Return a handle's method for the operator ``name`` with a handle or a number on the right.

    ``call`` is the language's method: ``elementwise`` for the bit operators, which not all types have.
    """

    def operate(self: Handle, other: Handle | Number) -> Handle:
        result: Handle = getattr(self.owner, call)(name, self, other)
        return result

    return operate


def _swap(name: str, call: str = "binary") -> Callable[[Handle, Number], Handle]:
    """Return a handle's method for the operator ``name`` with a number on the left."""

    def operate(self: Handle, other: Number) -> Handle:
        result: Handle = getattr(self.owner, call)(name, other, self)
        return result

    return operate


def _sign(name: str) -> Callable[[Handle], Handle]:
    """Return a handle's method for the unary operator ``name``."""

    def operate(self: Handle) -> Handle:
        return self.owner.elementwise(name, self)

    return operate


class Handle(Allocation):
    """An array of ``shape`` and ``dtype`` at ``addr`` of the memory ``space``; its values exist only in phase 2.

    Handles are values: an operation creates a new handle and changes none. The memory of a handle is freed when the
    last reference to it is gone and the commands that use it are complete.
    """

    # NumPy scalars and arrays leave an operation with a handle to the handle.
    __array_ufunc__ = None
    __slots__ = ("owner", "physical")

    def __init__(self, owner: Language, array: Operand, place: ScratchPlace, physical: bool = True) -> None:
        # Repeats Allocation.__init__: a further call for each handle would be expensive.
        self.owner = owner
        self.array = array
        self.place = place
        self.turn = place.turn = place.turn + 1
        self.producer = -1
        self.physical = physical

    @property
    def space(self) -> str:
        """The memory of the array: tcm, hbm or sram."""
        return self.array.space

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements per axis."""
        return self.array.shape

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.array.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return self.array.nbytes

    @property
    def addr(self) -> int:
        """The address in memory ``space``: an encoded physical address, or virtual for a message copied to HBM."""
        return self.array.address

    @property
    def T(self) -> Handle:  # noqa: N802 - NumPy's name
        """The array with its last two axes swapped: an operation, as ``tl.trans``."""
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
    __and__ = _operator("and", "elementwise")
    __rand__ = _swap("and", "elementwise")
    __or__ = _operator("or", "elementwise")
    __ror__ = _swap("or", "elementwise")
    __xor__ = _operator("xor", "elementwise")
    __rxor__ = _swap("xor", "elementwise")
    __lshift__ = _operator("shl", "elementwise")
    __rlshift__ = _swap("shl", "elementwise")
    __rshift__ = _operator("shr", "elementwise")
    __rrshift__ = _swap("shr", "elementwise")
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
        raise _no_value("branch on", "use tl.where to choose between values, or scalar arguments to choose a branch")

    def __int__(self) -> NoReturn:
        raise _no_value("convert")

    def __float__(self) -> NoReturn:
        raise _no_value("convert")

    def __index__(self) -> NoReturn:
        raise _no_value("index with")

    def __iter__(self) -> NoReturn:
        raise _no_value("iterate over")

    def __getitem__(self, key: object) -> NoReturn:
        raise _no_value("pick elements of", "load only the part that you need")

    def __array__(self, *args: object, **kwargs: object) -> NoReturn:
        raise _no_value("convert")

    def item(self) -> NoReturn:
        """Raise KernelError: a handle has no value while timing is simulated."""
        raise _no_value("read")


class HandleView(Handle):
    """The bytes of ``base`` from byte ``offset`` on, in row-major order, in another shape.

    A view keeps the handle alive, and frees no memory itself.
    """

    __slots__ = ("base",)

    def __init__(self, base: Handle, shape: tuple[int, ...], offset: int = 0) -> None:
        self.base = base.root
        array, nbytes = base.array, math.prod(shape) * base.dtype.itemsize
        view = replace(array, shape=shape, nbytes=nbytes, address=array.address + offset)
        super().__init__(base.owner, view, UnmanagedPlace())
        self.producer = base.producer

    @property
    def root(self) -> Allocation:
        """The handle that owns the memory."""
        return self.base


def _no_value(verb: str, instead: str = "") -> Exception:
    text = f"cannot {verb} a handle: its numbers are in the machine. tl.value(x) waits for them and returns them"
    return kernel_error(f"{text}{instead and f'; {instead}'}")


class Ref:
    """An array of ``shape`` and ``dtype`` at virtual address ``va``, as an operand of ``tl.composite``.

    A ref costs no time and reserves no memory. A command that reads the ref uses the values in memory at that time.
    """

    # NumPy scalars and arrays leave an operation with a ref to the ref, which raises the error.
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
        """The element type."""
        return self.array.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.array.shape) * self.array.dtype.itemsize

    @property
    def va(self) -> int:
        """The virtual address of the first element."""
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
    """Return the error for a ref as an operand of a call that computes only with handles."""
    return kernel_error(f"{ref!r} is in memory, and only tl.composite takes refs: tl.load it to use it here")
