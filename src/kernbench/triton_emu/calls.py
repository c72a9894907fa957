"""The calls in a kernel's source, and what they need: the same on every PE and in every turn of a loop."""

from __future__ import annotations

import math
from types import CodeType

from kernbench.common.dtypes import DType, Shape
from kernbench.common.values import value
from kernbench.messages.commands import Receive

_MANY_FUNCTIONS = 1024


@value
class Room:
    """What the result of a call needs: an array of ``nbytes``, for ``label``."""

    shape: Shape
    dtype: DType
    nbytes: int
    label: str


@value
class Asked:
    """A receive with the arguments of its call, and what they mean.

    Every run of a kernel keeps its own: numbers of another type may be equal, and whether they are allowed must not
    depend on who ran before.
    """

    direction: object
    shape: object
    dtype: object
    receive: Receive
    extent: Shape
    item: DType


class Call:
    """A call of ``tl`` in ``line``, and what it last needed for each of its results, which depends on no PE."""

    __slots__ = ("line", "rooms")

    def __init__(self, line: int) -> None:
        self.line = line
        self.rooms: dict[str, Room] = {}

    def room(self, what: str, shape: Shape, dtype: DType) -> Room:
        """What the result ``what`` needs from now on."""
        label = f"{what} {shape} {dtype.name} at line {self.line}"
        made = self.rooms[what] = Room(shape, dtype, math.prod(shape) * dtype.itemsize, label)
        return made


class KnownCalls:
    """The calls of all kernels of a machine, by where in their code they are."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        # By identity, which the code is kept for: what it is equal to takes longer to find out than the line of a call.
        self._of: dict[int, tuple[CodeType, dict[int, Call]]] = {}

    def of(self, code: CodeType) -> dict[int, Call]:
        """The calls in ``code`` that have been made so far."""
        found = self._of.get(id(code))
        if found is None:
            if len(self._of) == _MANY_FUNCTIONS:
                self._of.clear()
            found = self._of[id(code)] = (code, {})
        return found[1]
