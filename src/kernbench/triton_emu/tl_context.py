"""``tl``: the language in which kernels are written.

This module defines the calls that transfer arrays between memory and TCM, use queues, update memory atomically and
multiply matrices. ``math_calls`` defines the calls of the MATH engine, ``composites`` those of the tile scheduler.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable, Sequence
from math import prod
from operator import index
from typing import Any, TypeAlias, TypedDict, Unpack

import numpy as np

from kernbench.common.dtypes import BF16, F16, F32, I8, I32, I64, U32, U64, DType, Shape
from kernbench.common.errors import NoDataError
from kernbench.common.operators import ATOMICS, OPERATORS
from kernbench.messages.commands import (
    ATOMIC,
    DOT,
    LOAD,
    MATH,
    NO_PARAMS,
    NOWHERE,
    PRINT,
    RECEIVE,
    SEND,
    STORE,
    AwaitCommand,
    Command,
    CommandSource,
    Fence,
    Meet,
    MemoryRef,
    Operand,
    Params,
    ReadValue,
    Receive,
)
from kernbench.triton_emu.checks import (
    Ints,
    as_shape,
    check_has_bits,
    check_no_box,
    check_no_overlap,
    element_type,
    factor_type,
    number_as,
    pointer,
    product_shape,
    run_list,
    strides_of,
    valid_part,
)
from kernbench.triton_emu.composites import CompositeCalls
from kernbench.triton_emu.handles import Handle, Number, Ref, Slot, UnmanagedPlace
from kernbench.triton_emu.issuer import Issuer
from kernbench.triton_emu.math_calls import MathCalls
from kernbench.triton_emu.source import call_place, kernel_error

Runs: TypeAlias = Sequence[Sequence[int | None]]
"""A scatter-gather list: (address, bytes) of each contiguous run; address None marks masked elements."""


class MemoryCalls(Issuer):
    """Load and store: DMA between memory and TCM."""

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
        """Read an array by DMA into TCM and return its handle, without waiting for the data.

        Commands that use the handle wait for the data.

        - ``ptr``: a virtual address in bytes, or a scatter-gather list: (address, bytes) of each contiguous run, in
          row-major order of the elements. A run with address None is filled with ``other``.
        - ``shape``: elements per axis, each at least 1; an int means one axis.
        - ``dtype``: the element type or its name.
        - ``strides``: bytes from one element to the next per axis, 0 or at least an element; row-major by default.
        - ``valid``: number of elements per axis that are in memory, at most ``shape``; all by default. Elements outside
          have the value ``other``.
        - ``other``: a number that ``dtype`` can represent.

        A list allows no ``strides`` or ``valid``. Raises KernelError for invalid arguments and AllocationError if
        scratch is full and no command in flight will free memory.
        """
        line = self._line()
        if isinstance(ptr, tuple | list):
            return self._gather(line, ptr, as_shape(shape), element_type(dtype), (strides, valid), other)
        va, extent, item = pointer(ptr), as_shape(shape), element_type(dtype)
        steps, inside, fill = strides_of(strides, extent, item), valid_part(valid, extent), number_as(other, item)
        result = self._result("load", extent, item, line)
        serial, after = self._maker.order(())
        source = MemoryRef(va, extent, item, steps, inside, fill)
        command = Command(LOAD, "load", serial, line, after, (source,), result.array)
        self._issue(command, (), result)
        return result

    def _gather(
        self, line: int, runs: Runs, extent: Shape, item: DType, no_box: tuple[object, object], other: Number
    ) -> Handle:
        check_no_box(*no_box)
        byte_runs, fill = run_list(runs, extent, item), number_as(other, item)
        result = self._result("load", extent, item, line)
        serial, after = self._maker.order(())
        source = MemoryRef(NOWHERE, extent, item, other=fill, runs=byte_runs)
        command = Command(LOAD, "load", serial, line, after, (source,), result.array)
        self._issue(command, (), result)
        return result

    def store(self, ptr: int | Runs, handle: Handle, strides: Ints | None = None, valid: Ints | None = None) -> None:
        """Start a DMA write of ``handle`` to ``ptr``, a virtual address or scatter-gather list, without waiting for it.

        The arguments are those of ``load``. Elements outside ``valid``, and runs with address None, are not written. If
        runs overlap, the last run in the list wins. Raises KernelError for invalid arguments, and for a stride of 0
        along an axis of several elements.
        """
        line = self._line()
        if isinstance(ptr, tuple | list):
            self._scatter(line, ptr, self._own(handle), (strides, valid))
            return
        va, source = pointer(ptr), self._own(handle)
        steps = strides_of(strides, source.shape, source.dtype)
        check_no_overlap(steps, source.shape)
        inside = valid_part(valid, source.shape)
        serial, after = self._maker.order((source,))
        target = MemoryRef(va, source.shape, source.dtype, steps, inside)
        command = Command(STORE, "store", serial, line, after, (source.array,), target)
        self._issue(command, (source,))

    def _scatter(self, line: int, runs: Runs, source: Handle, no_box: tuple[object, object]) -> None:
        check_no_box(*no_box)
        byte_runs = run_list(runs, source.shape, source.dtype)
        serial, after = self._maker.order((source,))
        target = MemoryRef(NOWHERE, source.shape, source.dtype, runs=byte_runs)
        command = Command(STORE, "store", serial, line, after, (source.array,), target)
        self._issue(command, (source,))


_SPACES = ("tcm", "hbm", "sram")


class QueueCalls(MemoryCalls):
    """Send and receive: messages between PEs."""

    __slots__ = ()

    def send(
        self,
        dir: str,  # noqa: A002 - the language's name
        src: Handle | Ref | None = None,
        *,
        src_addr: int | None = None,
        nbytes: int | None = None,
        shape: Ints | None = None,
        dtype: object = None,
        space: str = "hbm",
        window: int | None = None,
    ) -> None:
        """Send ``src`` to queue ``dir``; block until the receiver has a free slot.

        ``src`` is a handle, or a ref to an array that the DMA first reads from memory. Without ``src``, the call sends
        the data at ``src_addr`` of memory ``space``: a virtual address for ``hbm``, a physical address for ``tcm`` and
        ``sram``. ``shape`` and ``dtype`` then give the size of the data, or ``nbytes`` does alone. ``window`` has no
        effect: it is accepted, with a warning, for old kernels.

        Raises IpcqInvalidDirection for a queue that the PE does not have, and KernelError for a message larger than a
        slot.
        """
        line = self._line()
        direction = dir if type(dir) is str else _direction(dir)
        if src_addr is None and isinstance(src, Handle) and src.owner is self and src.array.space == "tcm":
            source = src
        else:
            source = self._source(src, src_addr, space, nbytes, shape, dtype)
        if window is not None:
            warnings.warn(f"{call_place()}: tl.send(window=…) has no effect any more", FutureWarning, stacklevel=2)
        maker = self._maker
        serial, after = maker.order((source,))
        command = Command(SEND, direction, serial, line, after, (source.array,))
        maker.enter(command, (source,))
        hand_over = self._runner.hand_over  # ``_line`` has checked that the kernel runs
        hand_over(command)

    def _source(
        self,
        src: Handle | Ref | None,
        src_addr: int | None,
        space: str,
        nbytes: int | None,
        shape: Ints | None,
        dtype: object,
    ) -> Handle:
        """Return the handle that ``send`` sends."""
        if (src is None) is (src_addr is None):
            raise kernel_error("send takes exactly one of a handle, a ref, or src_addr= with shape= and dtype=")
        if src_addr is not None:
            return self._own(self._at_address(src_addr, _space(space), *_extent(nbytes, shape, dtype)))
        if isinstance(src, Ref):
            return self.load(src.va, src.shape, src.dtype, strides=src.array.strides)
        return self._own(src)

    def recv(
        self,
        dir: str | None = None,  # noqa: A002 - the language's name
        shape: Ints | None = None,
        dtype: object = None,
        dst_addr: int | None = None,
        dst_space: str | None = None,
    ) -> Handle:
        """Wait for the next message of queue ``dir`` and return its handle.

        With ``dir`` None, the call receives from any queue; it polls the queues round-robin. ``shape`` (elements per
        axis) and ``dtype`` are required, and their size in bytes must equal the size of the message.

        By default the handle refers to the message in its queue slot, and the slot is freed when the handle is dropped.
        With ``dst_space`` or ``dst_addr`` the message is copied, the handle refers to the copy, and the slot is freed
        after the copy. ``dst_space="tcm"`` copies to scratch, or to the TCM address ``dst_addr``. ``"hbm"`` copies to
        the virtual address ``dst_addr``, and ``"sram"`` to the physical address ``dst_addr``.

        Raises IpcqInvalidDirection for a queue that the PE does not have, and KernelError if the sizes differ.
        """
        line = self._line()
        extent, item = _message(shape, dtype)
        direction = dir if dir is None or type(dir) is str else _direction(dir)
        nbytes = prod(extent) * item.itemsize
        hand_over = self._runner.hand_over  # ``_line`` has checked that the kernel runs
        slot: Any = hand_over(Receive(direction, nbytes, line))
        handle = self._in_slot(slot, nbytes, extent, item)
        if dst_addr is None and dst_space is None:
            return handle
        return self._copy(handle, _space(dst_space or "tcm"), dst_addr, line)

    def recv_async(self, dir: str, shape: Ints, dtype: object) -> Handle:  # noqa: A002 - the language's name
        """Return a handle of the next message of queue ``dir`` without waiting for the message.

        Commands that use the handle wait for the message, as does ``wait``. ``shape`` and ``dtype`` are as for
        ``recv``.
        """
        line = self._line()
        direction, (extent, item) = _direction(dir), _message(shape, dtype)
        nbytes = prod(extent) * item.itemsize
        serial, after = self._maker.order(())
        command = Command(RECEIVE, direction, serial, line, after, (nbytes,))
        hand_over = self._runner.hand_over  # ``_line`` has checked that the kernel runs
        slot: Any = hand_over(command)
        handle = self._in_slot(slot, nbytes, extent, item)
        if slot.pending:
            self._maker.enter(command, (), handle)
        return handle

    def wait(self, handle: Handle) -> Handle:
        """Wait until the command that produces ``handle`` is complete, and return ``handle``."""
        line = self._line()
        self._check_owner(handle)
        if handle.producer in self._maker.under_way:
            self._request(AwaitCommand(handle.producer, line))
        return handle

    def _in_slot(self, slot: Slot, nbytes: int, shape: Shape, item: DType) -> Handle:
        if slot.kernel is not self._maker:
            self._maker.add_slot(slot)
        return Handle(self, slot.array_of(nbytes, shape, item), slot)

    def _at_address(self, address: object, space: str, shape: Shape, item: DType) -> Handle:
        """Return a handle of the bytes at an address that the kernel passed."""
        nbytes = prod(shape) * item.itemsize
        target = Operand(space, self._maker.coord, pointer(address), nbytes, shape, item, by_address=True)
        tcm = self._site.tcm
        if space == "tcm" and tcm is not None and not tcm.start <= target.address <= tcm.stop - target.nbytes:
            raise kernel_error(
                f"{target.address:#x} is not in the TCM of this PE: give the addr of a handle of this kernel"
            )
        return Handle(self, target, UnmanagedPlace(), physical=space != "hbm")

    def _copy(self, message: Handle, space: str, address: int | None, line: int) -> Handle:
        """Copy ``message``; its slot is freed after the copy."""
        if address is None and space != "tcm":
            raise kernel_error(f"recv to dst_space={space!r} needs dst_addr")
        moved = message.space != "tcm"
        source = self._own(message)
        if space == "tcm" and address is None and moved:
            return source
        shape, item = source.shape, source.dtype
        if address is None:
            result = self._result("recv", shape, item, line)
        else:
            result = self._at_address(address, space, shape, item)
        serial, after = self._maker.order((source,))
        if space == "tcm":
            command = Command(MATH, "cast", serial, line, after, (source.array,), result.array)
        else:
            target = MemoryRef(result.array.address, shape, item, physical=result.physical)
            command = Command(STORE, "store", serial, line, after, (source.array,), target)
        self._issue(command, (source,), result)
        return result


def _direction(name: object) -> str:
    if not isinstance(name, str):
        raise kernel_error(f"a queue is named by a direction such as 'E', not {name!r}")
    return name


def _space(name: str) -> str:
    if name not in _SPACES:
        raise kernel_error(f"there is no space {name!r}; there are: {', '.join(_SPACES)}")
    return name


def _message(shape: Ints | None, dtype: object) -> tuple[Shape, DType]:
    if shape is None or dtype is None:
        raise kernel_error("recv needs the shape and the dtype of the message")
    return as_shape(shape), element_type(dtype)


def _extent(nbytes: int | None, shape: Ints | None, dtype: object) -> tuple[Shape, DType]:
    """Return the shape and element type of the data that ``send`` reads; with ``nbytes`` alone, the type is i8."""
    if shape is not None and dtype is not None:
        extent, item = as_shape(shape), element_type(dtype)
        if nbytes is not None and nbytes != prod(extent) * item.itemsize:
            raise kernel_error(f"nbytes={nbytes}, but {extent} of {item} are {prod(extent) * item.itemsize} bytes")
        return extent, item
    if nbytes is None or shape is not None:
        raise kernel_error("send from src_addr needs shape= and dtype=, or nbytes=")
    item = I8 if dtype is None else element_type(dtype)
    if nbytes < 1 or nbytes % item.itemsize:
        raise kernel_error(f"nbytes={nbytes} is no whole number of {item} elements")
    return (nbytes // item.itemsize,), item


_TYPES = (I32, F32, F16, BF16, I64, U32, U64)


class How(TypedDict, total=False):
    """Options of the atomic calls; ``strides`` and ``valid`` are as for ``store``.

    With ``fetch``, the call returns a handle of the previous values. With ``release``, the atomic starts only when all
    earlier commands of the kernel are complete, so a reader that sees the atomic's result also sees the results of
    these commands.
    """

    strides: Ints | None
    valid: Ints | None
    fetch: bool
    release: bool


class AtomicCalls(Issuer):
    """Atomic updates: the memory combines its elements with those of a handle, indivisibly.

    ``ptr`` is a virtual address or a scatter-gather list. An element that the list contains twice is updated twice. The
    calls return None, or with ``fetch`` a handle of the previous values. Elements are i32, i64, u32, u64, f16, bf16 or
    f32; the bit operators accept only integers. Raises KernelError for other types and for invalid arguments.
    """

    __slots__ = ()

    def atomic_add(self, ptr: int | Runs, value: Handle, **how: Unpack[How]) -> Handle | None:
        """Add ``value`` to memory."""
        return self._atomic("atomic_add", ptr, value, None, **how)

    def atomic_max(self, ptr: int | Runs, value: Handle, **how: Unpack[How]) -> Handle | None:
        """Replace memory by the maximum of memory and ``value``."""
        return self._atomic("atomic_max", ptr, value, None, **how)

    def atomic_min(self, ptr: int | Runs, value: Handle, **how: Unpack[How]) -> Handle | None:
        """Replace memory by the minimum of memory and ``value``."""
        return self._atomic("atomic_min", ptr, value, None, **how)

    def atomic_and(self, ptr: int | Runs, value: Handle, **how: Unpack[How]) -> Handle | None:
        """Replace memory by the bitwise AND of memory and ``value``; integers only."""
        return self._atomic("atomic_and", ptr, value, None, **how)

    def atomic_or(self, ptr: int | Runs, value: Handle, **how: Unpack[How]) -> Handle | None:
        """Replace memory by the bitwise OR of memory and ``value``; integers only."""
        return self._atomic("atomic_or", ptr, value, None, **how)

    def atomic_xor(self, ptr: int | Runs, value: Handle, **how: Unpack[How]) -> Handle | None:
        """Replace memory by the bitwise XOR of memory and ``value``; integers only."""
        return self._atomic("atomic_xor", ptr, value, None, **how)

    def atomic_xchg(self, ptr: int | Runs, value: Handle, **how: Unpack[How]) -> Handle | None:
        """Replace memory by ``value``."""
        return self._atomic("atomic_xchg", ptr, value, None, **how)

    def atomic_cas(self, ptr: int | Runs, compared: Handle, value: Handle, **how: Unpack[How]) -> Handle | None:
        """Replace memory by ``value`` where memory equals ``compared``; other elements do not change.

        ``compared`` and ``value`` must have the same shape and type; KernelError is raised otherwise.
        """
        a, b = self._own(compared), self._own(value)
        if a.shape != b.shape or a.dtype is not b.dtype:
            raise kernel_error(
                f"atomic_cas of {a.shape} {a.dtype} and {b.shape} {b.dtype}: both must have one shape and type"
            )
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
        line = self._line(3)
        shape, item = self._own(value).shape, value.dtype
        if item not in _TYPES:
            raise kernel_error(f"{name} of {item}: atomics take {', '.join(map(str, _TYPES))}; use tl.cast")
        check_has_bits(ATOMICS[name], item)
        va, steps, inside = NOWHERE, None, None
        runs = run_list(ptr, shape, item) if isinstance(ptr, tuple | list) else ()
        if runs:
            check_no_box(strides, valid)
        else:
            va, steps, inside = pointer(ptr), strides_of(strides, shape, item), valid_part(valid, shape)
            check_no_overlap(steps, shape)
        result = self._result(name, shape, item, line) if fetch else None
        reads = (value,) if compared is None else (compared, value)
        serial, after = self._maker.order(reads)
        if release:
            after = tuple(sorted(self._maker.under_way))
        target = MemoryRef(va, shape, item, steps, inside, runs=runs)
        srcs: tuple[CommandSource, ...] = (target, *[x.array for x in reads])
        params = NO_PARAMS if result is None else Params(old=result.array)
        command = Command(ATOMIC, name, serial, line, after, srcs, target, params)
        self._issue(command, reads, result)
        return result


class DotCalls(Issuer):
    """The matrix product."""

    __slots__ = ()

    def dot(
        self,
        a: Handle,
        b: Handle,
        acc: Handle | None = None,
        out_dtype: object = None,
        trans_a: bool = False,
        trans_b: bool = False,
    ) -> Handle:
        """Return ``op(a) @ op(b) + acc`` as a new handle.

        ``op(a)`` has shape (m, k) and ``op(b)`` has shape (k, n). ``op`` swaps the axes of ``a`` if ``trans_a`` is set,
        and those of ``b`` if ``trans_b`` is set. The result has shape (m, n) and type ``out_dtype``, which defaults to
        the type of ``acc``, or without ``acc`` to the type of the operands (i32 for i8 operands). ``acc`` must have the
        shape and type of the result. Raises KernelError for shapes and types that do not fit.
        """
        line = self._line()
        item = factor_type("dot", self._own(a).dtype, self._own(b).dtype, self._site.dot_dtypes)
        shape = product_shape("dot", a.shape, b.shape, trans_a, trans_b)
        out = _result_type(item, acc if acc is None else self._own(acc), out_dtype)
        if acc is not None and (acc.shape != shape or acc.dtype is not out):
            raise kernel_error(f"acc is {acc.shape} {acc.dtype}, the result {shape} {out}: they must be the same")
        result = self._result("dot", shape, out, line)
        reads = (a, b) if acc is None else (a, b, acc)
        serial, after = self._maker.order(reads)
        factors = tuple([x.array for x in reads])
        params = Params(trans_a=bool(trans_a), trans_b=bool(trans_b)) if trans_a or trans_b else NO_PARAMS
        command = Command(DOT, "dot", serial, line, after, factors, result.array, params)
        self._issue(command, reads, result)
        return result


def _result_type(item: DType, acc: Handle | None, out_dtype: object) -> DType:
    if out_dtype is not None:
        out = element_type(out_dtype)
    else:
        out = OPERATORS["dot"].result_dtype(item, item) if acc is None else acc.dtype
    if out.is_float != item.is_float:
        raise kernel_error(f"a dot of {item} does not make {out}: tl.cast converts between integers and floats")
    return out


_AXES = "axis 0 counts PEs, axis 1 cubes, axis 2 SIPs"


class TLContext(QueueCalls, AtomicCalls, DotCalls, MathCalls, CompositeCalls):
    """The ``tl`` argument of a kernel; each run of a kernel on a PE has its own.

    Calls issue commands to the PE in program order, and the PE executes commands concurrently. A command waits for the
    commands that produce its operands. Invalid calls raise KernelError, whose message begins with the file and line of
    the kernel's call.
    """

    __slots__ = ()

    def program_id(self, axis: int) -> int:
        """Return the number of this PE in its cube (axis 0), of its cube in the SIP (axis 1), or its SIP (axis 2)."""
        self._runner.check()
        return self._site.ids[_program_axis(axis)]

    def num_programs(self, axis: int) -> int:
        """Return the number of participating PEs of a cube (axis 0), cubes of a SIP (axis 1), or SIPs (axis 2)."""
        self._runner.check()
        return self._site.counts[_program_axis(axis)]

    def cdiv(self, a: int, b: int) -> int:
        """Return ``a / b`` rounded up, for integers with ``b`` at least 1."""
        dividend, divisor = _whole(a), _whole(b)
        if divisor < 1:
            raise kernel_error(f"cdiv divides by {b}: it must be at least 1")
        return -(-dividend // divisor)

    def arange(self, start: int, end: int | None = None, step: int = 1) -> range:
        """Return a Python range from ``start`` up to, but not including, ``end``; ``arange(n)`` starts from 0."""
        first, last = (0, start) if end is None else (start, end)
        if _whole(step) == 0:
            raise kernel_error("arange with step 0")
        return range(_whole(first), _whole(last), _whole(step))

    def itemsize(self, dtype: object) -> int:
        """Return the size in bytes of an element of ``dtype``, for pointer and stride arithmetic."""
        return element_type(dtype).itemsize

    def repeated(self, pieces: Iterable[tuple[Shape, Shape]], kind: Hashable) -> Iterable[tuple[Shape, Shape]]:
        """Return the ``pieces`` of a task to compute: corner and extents. Tasks of one ``kind`` have the same pieces.

        All pieces of a kernel must be computed alike. In a long launch of a run that reuses launches, some are left
        out, and the launch takes longer in proportion.
        """
        repeats = self._maker.repeats
        return pieces if repeats is None else repeats.choose(pieces, kind)

    def value(self, handle: Handle, expected: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        """Wait until ``handle`` is computed, and return its values as an array for Python code of the kernel.

        Kernels compute addresses, loop bounds and conditions from these values. Raises NoDataError in a run without
        data, unless the caller passes the values ``expected``.
        """
        line = self._line()
        x = self._own(handle)
        if x.producer in self._maker.under_way:
            self._request(AwaitCommand(x.producer, line))
        try:
            numbers = self._request(ReadValue(x.array, line, expected))
        except NoDataError as refusal:
            raise NoDataError(f"{call_place()}: {refusal}") from None
        assert isinstance(numbers, np.ndarray), "the answer to a ReadValue"
        return numbers

    def device_print(self, *args: object) -> None:
        """Print ``args`` in a line that begins with the simulated time and the PE; phase 2 adds values of handles."""
        line = self._line()
        reads = tuple([self._own(x) for x in args if isinstance(x, Handle)])
        serial, after = self._maker.order(reads)
        parts = tuple([x.array if isinstance(x, Handle) else str(x) for x in args])
        self._issue(Command(PRINT, "print", serial, line, after, parts), reads)

    def barrier(self, writes_only: bool = False) -> None:
        """Wait until every PE of this launch in this cube has reached its barrier.

        A PE reaches the barrier when all its earlier commands are done. With ``writes_only``, a PE reaches it when its
        earlier writes are in memory, as after a ``fence``. Its loads, computations and sent messages stay in flight.
        """
        line = self._line()
        if writes_only:
            self._runner.request(Fence(line))
        self._runner.request(Meet(line, drains=not writes_only))

    def fence(self) -> None:
        """Wait until all writes of this kernel are in memory and visible to others.

        Stores, atomics and composites count as writes.
        """
        self._runner.request(Fence(self._line()))


def _program_axis(axis: int) -> int:
    number = _whole(axis)
    if number not in (0, 1, 2):
        raise kernel_error(f"there is no axis {axis}: {_AXES}")
    return number


def _whole(value: object) -> int:
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        raise kernel_error(f"{value!r} is not a whole number") from None
