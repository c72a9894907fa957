"""A ref: an array that stays in memory, for the tile scheduler to stream."""

from __future__ import annotations

import math
from typing import NoReturn

from kernbench.common.dtypes import DType
from kernbench.common.errors import KernelError
from kernbench.messages.commands import MemoryRef
from kernbench.triton_emu.site import KernelSite
from kernbench.triton_emu.source import kernel_error


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
    """What is wrong with a ref as the operand of anything but a composite."""
    return kernel_error(f"{ref!r} is in memory, and only tl.composite takes refs: tl.load it to use it here")
