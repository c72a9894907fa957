"""``tl`` calls that change arrays where they lie in memory."""

from __future__ import annotations

from typing import TypedDict, Unpack

from kernbench.common.dtypes import BF16, F16, F32, I32
from kernbench.common.operators import ATOMICS
from kernbench.messages.commands import AtomicCommand
from kernbench.messages.operands import NOWHERE
from kernbench.triton_emu.checks import (
    Ints,
    check_has_bits,
    check_no_box,
    check_no_overlap,
    pointer,
    run_list,
    strides_of,
    valid_part,
)
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.issuer import Issuer
from kernbench.triton_emu.memory_calls import Runs
from kernbench.triton_emu.source import kernel_error

_TYPES = (I32, F32, F16, BF16)


class How(TypedDict, total=False):
    """``strides`` and ``valid`` as in ``store``.

    ``fetch``: the call gives a handle of what was there before. ``release``: not before all earlier commands of the
    kernel are done, so that whoever finds what the atomic leaves finds what they left.
    """

    strides: Ints | None
    valid: Ints | None
    fetch: bool
    release: bool


class AtomicCalls(Issuer):
    """The memory combines its elements with those of a handle, and nobody can come between.

    ``ptr`` is an address or a scatter-gather list; an element that the list has twice is changed twice. Without
    ``fetch`` they give None. KernelError for arguments that do not fit and for types other than i32, f32, f16 and bf16.
    """

    __slots__ = ()

    def atomic_add(self, ptr: int | Runs, value: Handle, **how: Unpack[How]) -> Handle | None:
        """Add ``value``."""
        return self._atomic("atomic_add", ptr, value, None, **how)

    def atomic_max(self, ptr: int | Runs, value: Handle, **how: Unpack[How]) -> Handle | None:
        """The larger of both."""
        return self._atomic("atomic_max", ptr, value, None, **how)

    def atomic_min(self, ptr: int | Runs, value: Handle, **how: Unpack[How]) -> Handle | None:
        """The smaller of both."""
        return self._atomic("atomic_min", ptr, value, None, **how)

    def atomic_and(self, ptr: int | Runs, value: Handle, **how: Unpack[How]) -> Handle | None:
        """The bits that both have."""
        return self._atomic("atomic_and", ptr, value, None, **how)

    def atomic_or(self, ptr: int | Runs, value: Handle, **how: Unpack[How]) -> Handle | None:
        """The bits that one of them has."""
        return self._atomic("atomic_or", ptr, value, None, **how)

    def atomic_xor(self, ptr: int | Runs, value: Handle, **how: Unpack[How]) -> Handle | None:
        """The bits in which they differ."""
        return self._atomic("atomic_xor", ptr, value, None, **how)

    def atomic_xchg(self, ptr: int | Runs, value: Handle, **how: Unpack[How]) -> Handle | None:
        """``value`` itself."""
        return self._atomic("atomic_xchg", ptr, value, None, **how)

    def atomic_cas(self, ptr: int | Runs, compared: Handle, value: Handle, **how: Unpack[How]) -> Handle | None:
        """``value`` where the memory holds ``compared``, of the same shape and type; elsewhere nothing changes."""
        a, b = self._own(compared), self._own(value)
        if a.shape != b.shape or a.dtype is not b.dtype:
            raise kernel_error(f"atomic_cas of {a.shape} {a.dtype} and {b.shape} {b.dtype}: both have to be alike")
        return self._atomic("atomic_cas", ptr, value, compared, **how)

    def _atomic(
        self,
        name: str,
        ptr: int | Runs,
        value: Handle,
        compared: Handle | None,
        *,
        strides: Ints | None = None,
        valid: Ints | None = None,
        fetch: bool = False,
        release: bool = False,
    ) -> Handle | None:
        call = self._call(3)
        shape, item = self._own(value).shape, value.dtype
        if item not in _TYPES:
            raise kernel_error(f"{name} of {item}: memories change {', '.join(map(str, _TYPES))}; use tl.cast")
        check_has_bits(ATOMICS[name], item)
        va, steps, inside = NOWHERE, None, None
        runs = run_list(ptr, shape, item) if isinstance(ptr, tuple | list) else ()
        if runs:
            check_no_box(strides, valid)
        else:
            va, steps, inside = pointer(ptr), strides_of(strides, shape, item), valid_part(valid, shape)
            check_no_overlap(steps, shape)
        result = self._fresh(name, shape, item, call) if fetch else None
        reads = (value,) if compared is None else (compared, value)
        serial, after = self._ordered(reads)
        if release:
            after = tuple(sorted(self._under_way))
        command = AtomicCommand(
            serial=serial,
            line=call.line,
            after=after,
            operator=name,
            src=value.array,
            compared=None if compared is None else compared.array,
            dst=None if result is None else result.array,
            va=va,
            strides=steps,
            valid=inside,
            runs=runs,
        )
        self._issue(command, reads, result)
        return result
