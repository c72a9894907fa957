"""``tl``: the language that kernels are written in."""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np

from kernbench.common.errors import NoDataError
from kernbench.messages.commands import AwaitCommand, Fence, Meet, PrintCommand, ReadValue
from kernbench.triton_emu.atomic_calls import AtomicCalls
from kernbench.triton_emu.checks import element_type
from kernbench.triton_emu.composite_calls import CompositeCalls
from kernbench.triton_emu.dot_calls import DotCalls
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.math_calls import MathCalls
from kernbench.triton_emu.queue_calls import QueueCalls
from kernbench.triton_emu.source import call_place, kernel_error

_AXES = "axis 0 counts PEs, axis 1 cubes, axis 2 SIPs"


class TLContext(QueueCalls, AtomicCalls, DotCalls, MathCalls, CompositeCalls):
    """What a kernel is given as ``tl``: one for each run of a kernel on a PE.

    Commands go to the PE in program order and overlap there; a command waits for those that make its operands.
    Everything that the language forbids is a KernelError, which begins with the file and line of the kernel's call.
    """

    __slots__ = ()

    def program_id(self, axis: int) -> int:
        """Where this kernel runs: axis 0 the PE in its cube, axis 1 the cube in its SIP, axis 2 the SIP."""
        self._runner.check()
        return self._site.ids[_program_axis(axis)]

    def num_programs(self, axis: int) -> int:
        """How many PEs of a cube, cubes of a SIP, SIPs take part."""
        self._runner.check()
        return self._site.counts[_program_axis(axis)]

    def cdiv(self, a: int, b: int) -> int:
        """``a / b`` rounded up, for whole numbers, ``b`` at least 1."""
        number, parts = _whole(a), _whole(b)
        if parts < 1:
            raise kernel_error(f"cdiv divides by {b}: it must be at least 1")
        return -(-number // parts)

    def arange(self, start: int, end: int | None = None, step: int = 1) -> range:
        """The whole numbers from ``start`` (0 when only one number is given) to before ``end``: a Python range."""
        first, last = (0, start) if end is None else (start, end)
        if _whole(step) == 0:
            raise kernel_error("arange with step 0")
        return range(_whole(first), _whole(last), _whole(step))

    def itemsize(self, dtype: object) -> int:
        """Bytes of an element, for pointers and strides."""
        return element_type(dtype).itemsize

    def value(self, handle: Handle) -> np.ndarray[Any, Any]:
        """The numbers of ``handle``: the kernel waits until they are there. For addresses, bounds, conditions.

        NoDataError in a run that keeps no data.
        """
        line = self._call().line
        x = self._own(handle)
        if x.producer in self._under_way:
            self._request(AwaitCommand(x.producer, line))
        try:
            found = self._request(ReadValue(x.array, line))
        except NoDataError as refusal:
            raise NoDataError(f"{call_place()}: {refusal}") from None
        assert isinstance(found, np.ndarray), "what a ReadValue is answered"
        return found

    def device_print(self, *args: object) -> None:
        """A line of output with time and PE; handles show their values once phase 2 knows them."""
        line = self._call().line
        reads = [self._own(x) for x in args if isinstance(x, Handle)]
        serial, after = self._ordered(reads)
        parts = tuple([x.array if isinstance(x, Handle) else str(x) for x in args])
        self._issue(PrintCommand(serial=serial, line=line, after=after, parts=parts), reads)

    def barrier(self) -> None:
        """Wait until every PE of this launch in this cube has come to its barrier."""
        self._runner.request(Meet(self._call().line))

    def fence(self) -> None:
        """Wait until what this kernel has stored, also by atomics and composites, is in memory, where others see it."""
        self._runner.request(Fence(self._call().line))


def _program_axis(axis: int) -> int:
    found = _whole(axis)
    if found not in (0, 1, 2):
        raise kernel_error(f"there is no axis {axis}: {_AXES}")
    return found


def _whole(value: object) -> int:
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        raise kernel_error(f"{value!r} is not a whole number") from None
