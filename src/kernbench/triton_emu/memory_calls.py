"""``tl`` calls that move arrays between memory and TCM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from kernbench.common.dtypes import DType, Shape
from kernbench.messages.commands import LoadCommand, StoreCommand
from kernbench.messages.operands import NOWHERE
from kernbench.triton_emu.calls import Call
from kernbench.triton_emu.checks import (
    Ints,
    as_shape,
    check_no_box,
    check_no_overlap,
    element_type,
    number_as,
    pointer,
    run_list,
    strides_of,
    valid_part,
)
from kernbench.triton_emu.handles import Handle, Number
from kernbench.triton_emu.issuer import Issuer

Runs: TypeAlias = Sequence[Sequence[int | None]]
"""A scatter-gather list: (address, bytes) of each run; address None: of elements that are masked off."""


class MemoryCalls(Issuer):
    """Load and store."""

    __slots__ = ()

    def load(
        self,
        ptr: int | Runs,
        shape: Ints,
        dtype: object,
        strides: Ints | None = None,
        valid: Ints | None = None,
        other: Number = 0,
    ) -> Handle:
        """A DMA read of ``shape`` elements at virtual address ``ptr``, or from a scatter-gather list.

        ``strides``: bytes per axis, row-major without. ``valid``: per axis, how many elements are there; the rest is
        ``other``. A single number does for one axis. A list says where the elements lie, row by row: (address, bytes)
        of each contiguous run, address None for elements that are ``other``.
        KernelError for arguments that do not fit, AllocationError when scratch is full.
        """
        call = self._call()
        if isinstance(ptr, tuple | list):
            return self._gather(call, ptr, as_shape(shape), element_type(dtype), (strides, valid), other)
        va, extent, item = pointer(ptr), as_shape(shape), element_type(dtype)
        steps, inside, fill = strides_of(strides, extent, item), valid_part(valid, extent), number_as(other, item)
        result = self._fresh("load", extent, item, call)
        serial, after = self._ordered(())
        command = LoadCommand(serial, call.line, after, result.array, va, steps, inside, fill)
        self._issue(command, (), result)
        return result

    def _gather(
        self, call: Call, runs: Runs, extent: Shape, item: DType, no_box: tuple[object, object], other: Number
    ) -> Handle:
        check_no_box(*no_box)
        found, fill = run_list(runs, extent, item), number_as(other, item)
        result = self._fresh("load", extent, item, call)
        serial, after = self._ordered(())
        command = LoadCommand(
            serial=serial, line=call.line, after=after, dst=result.array, va=NOWHERE, other=fill, runs=found
        )
        self._issue(command, (), result)
        return result

    def store(self, ptr: int | Runs, handle: Handle, strides: Ints | None = None, valid: Ints | None = None) -> None:
        """A DMA write of ``handle`` to virtual address ``ptr``, or by a scatter-gather list; all as in ``load``.

        Elements outside ``valid``, and those whose address is None, are not written. Where runs overlap, the last one
        stays. KernelError for arguments that do not fit.
        """
        line = self._call().line
        if isinstance(ptr, tuple | list):
            self._scatter(line, ptr, self._own(handle), (strides, valid))
            return
        va, source = pointer(ptr), self._own(handle)
        steps = strides_of(strides, source.shape, source.dtype)
        check_no_overlap(steps, source.shape)
        inside = valid_part(valid, source.shape)
        serial, after = self._ordered((source,))
        command = StoreCommand(serial, line, after, source.array, va, steps, inside)
        self._issue(command, (source,))

    def _scatter(self, line: int, runs: Runs, source: Handle, no_box: tuple[object, object]) -> None:
        check_no_box(*no_box)
        found = run_list(runs, source.shape, source.dtype)
        serial, after = self._ordered((source,))
        command = StoreCommand(serial=serial, line=line, after=after, src=source.array, va=NOWHERE, runs=found)
        self._issue(command, (source,))
