"""``tl`` calls that move arrays between memory and TCM."""

from __future__ import annotations

from kernbench.messages.commands import LoadCommand, StoreCommand
from kernbench.triton_emu.checks import (
    Ints,
    as_shape,
    check_no_overlap,
    element_type,
    number_as,
    pointer,
    strides_of,
    valid_part,
)
from kernbench.triton_emu.handles import Handle, Number
from kernbench.triton_emu.issuer import Issuer


class MemoryCalls(Issuer):
    """Load and store."""

    __slots__ = ()

    def load(
        self,
        ptr: int,
        shape: Ints,
        dtype: object,
        strides: Ints | None = None,
        valid: Ints | None = None,
        other: Number = 0,
    ) -> Handle:
        """A DMA read of ``shape`` elements at virtual address ``ptr``.

        ``strides``: bytes per axis, row-major without. ``valid``: per axis, how many elements are there; the rest is
        ``other``. A single number does for one axis. KernelError for arguments that do not fit, AllocationError when
        scratch is full.
        """
        call = self._call()
        va, extent, item = pointer(ptr), as_shape(shape), element_type(dtype)
        steps, inside, fill = strides_of(strides, extent, item), valid_part(valid, extent), number_as(other, item)
        result = self._fresh("load", extent, item, call)
        serial, after = self._ordered(())
        command = LoadCommand(
            serial=serial,
            line=call.line,
            after=after,
            dst=result.array,
            va=va,
            strides=steps,
            valid=inside,
            other=fill,
        )
        self._issue(command, (), result)
        return result

    def store(self, ptr: int, handle: Handle, strides: Ints | None = None, valid: Ints | None = None) -> None:
        """A DMA write of ``handle`` to virtual address ``ptr``; ``strides`` and ``valid`` as in ``load``.

        Elements outside ``valid`` are not written. KernelError for arguments that do not fit.
        """
        line = self._call().line
        va, source = pointer(ptr), self._own(handle)
        steps = strides_of(strides, source.shape, source.dtype)
        check_no_overlap(steps, source.shape)
        inside = valid_part(valid, source.shape)
        serial, after = self._ordered((source,))
        command = StoreCommand(
            serial=serial, line=line, after=after, src=source.array, va=va, strides=steps, valid=inside
        )
        self._issue(command, (source,))
