"""``tl`` calls for the queues between PEs."""

from __future__ import annotations

import warnings
from math import prod
from typing import Any

from kernbench.common.dtypes import I8, DType
from kernbench.common.operators import PLAIN
from kernbench.messages.commands import (
    AwaitCommand,
    MathCommand,
    Receive,
    RecvCommand,
    SendCommand,
    StoreCommand,
)
from kernbench.messages.operands import Operand
from kernbench.triton_emu.calls import Asked, Call
from kernbench.triton_emu.checks import Ints, Shape, as_shape, element_type, pointer
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.memory_calls import MemoryCalls
from kernbench.triton_emu.places import Slot, UnmanagedPlace
from kernbench.triton_emu.refs import Ref
from kernbench.triton_emu.source import call_place, kernel_error

_SPACES = ("tcm", "hbm", "sram")


class QueueCalls(MemoryCalls):
    """Send and receive."""

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
        """Send ``src`` by queue ``dir``; goes on once the receiver has a slot for it.

        ``window``, of old kernels, has no effect, and a warning says so.
        Instead of ``src``: ``src_addr`` in ``space`` (``hbm``: a virtual address; ``tcm``, ``sram``: a physical one)
        with ``shape`` and ``dtype``, or with ``nbytes``. What lies in memory is read by the DMA first.
        IpcqInvalidDirection for a queue that the PE does not have, KernelError for what is larger than a slot.
        """
        line = self._call().line
        direction = dir if type(dir) is str else _direction(dir)
        if src_addr is None and isinstance(src, Handle) and src.owner is self and src.array.space == "tcm":
            source = src
        else:
            source = self._source(src, src_addr, space, nbytes, shape, dtype)
        if window is not None:
            warnings.warn(f"{call_place()}: tl.send(window=…) has no effect any more", FutureWarning, stacklevel=2)
        serial, producer, under_way = self._next_serial, source.producer, self._under_way
        self._next_serial = serial + 1
        after = (producer,) if producer in under_way else ()
        command = SendCommand(serial, line, after, direction, source.array)
        under_way[serial] = (command, (source,))
        hand_over = self._runner.hand_over  # ``_call`` has seen that the kernel runs
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
        """What ``send`` sends, in TCM."""
        if (src is None) is (src_addr is None):
            raise kernel_error("send takes a handle, a ref, or src_addr= with shape= and dtype=, and one of them only")
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
        """Wait for the next message of queue ``dir`` (None: of whichever has one, in turn); it has to be that large.

        The handle is the slot itself, until it is dropped. With ``dst_space`` or ``dst_addr`` it is a copy: in
        scratch, at the TCM address, or in memory (``hbm``: a virtual address; ``sram``: a physical one).
        """
        call = self._call()
        asked = self._asked.get(call)
        if asked is None or asked.shape != shape or asked.dtype is not dtype or asked.direction != dir:
            asked = self._asked[call] = _asked(call.line, dir, shape, dtype)
        hand_over = self._runner.hand_over  # ``_call`` has seen that the kernel runs
        slot: Any = hand_over(asked.receive)
        handle = self._in_slot(slot, asked.receive.nbytes, asked.extent, asked.item)
        if dst_addr is None and dst_space is None:
            return handle
        return self._copied(handle, _space(dst_space or "tcm"), dst_addr, call)

    def recv_async(self, dir: str, shape: Ints, dtype: object) -> Handle:  # noqa: A002 - the language's name
        """The next message of queue ``dir``, which may be yet to come: commands that use the handle wait for it."""
        call = self._call()
        asked = self._asked.get(call)
        if asked is None or asked.shape != shape or asked.dtype is not dtype or asked.direction != dir:
            asked = self._asked[call] = _asked(call.line, _direction(dir), shape, dtype)
        serial, nbytes = self._next_serial, asked.receive.nbytes
        self._next_serial = serial + 1
        command = RecvCommand(serial, call.line, (), dir, nbytes)
        hand_over = self._runner.hand_over  # ``_call`` has seen that the kernel runs
        slot: Any = hand_over(command)
        handle = self._in_slot(slot, nbytes, asked.extent, asked.item)
        if slot.pending:
            handle.producer = serial
            self._under_way[serial] = (command, (handle,))
        return handle

    def wait(self, handle: Handle) -> Handle:
        """Wait until the command that makes ``handle`` is done; returns it."""
        line = self._call().line
        self._check_owner(handle)
        if handle.producer in self._under_way:
            self._request(AwaitCommand(handle.producer, line))
        return handle

    def _in_slot(self, slot: Slot, nbytes: int, shape: Shape, item: DType) -> Handle:
        array = slot.array
        if array is None or array.dtype is not item or (array.shape is not shape and array.shape != shape):
            array = slot.array = Operand(slot.space, slot.owner, slot.address, nbytes, shape, item)
        if slot.kernel is not self._lifetimes:
            self._lifetimes.received(slot)
        return Handle(self, array, slot)

    def _at_address(self, address: object, space: str, shape: Shape, item: DType) -> Handle:
        """What lies at an address that the kernel names."""
        nbytes = prod(shape) * item.itemsize
        here = Operand(space, self._coord, pointer(address), nbytes, shape, item, by_address=True)
        own = self._site.tcm
        if space == "tcm" and own is not None and not own.start <= here.address <= own.stop - here.nbytes:
            raise kernel_error(
                f"{here.address:#x} is not in the TCM of this PE: give the addr of a handle of this kernel"
            )
        return Handle(self, here, UnmanagedPlace(), physical=space != "hbm")

    def _copied(self, message: Handle, space: str, address: int | None, call: Call) -> Handle:
        """A copy of ``message``, whose slot is given back once it is made."""
        if address is None and space != "tcm":
            raise kernel_error(f"recv to dst_space={space!r} needs dst_addr")
        moved = message.space != "tcm"
        source = self._own(message)
        if space == "tcm" and address is None and moved:
            return source
        shape, item = source.shape, source.dtype
        if address is None:
            result = self._fresh("recv", shape, item, call)
        else:
            result = self._at_address(address, space, shape, item)
        serial, after = self._ordered((source,))
        if space == "tcm":
            self._issue(
                MathCommand(
                    serial=serial,
                    line=call.line,
                    after=after,
                    operator="cast",
                    inputs=(source.array,),
                    dst=result.array,
                    attributes=PLAIN,
                ),
                (source,),
                result,
            )
        else:
            va = result.array.address
            physical = result.physical
            store = StoreCommand(serial=serial, line=call.line, after=after, src=source.array, va=va, physical=physical)
            self._issue(store, (source,), result)
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


def _asked(line: int, name: object, shape: Ints | None, dtype: object) -> Asked:
    """What a receive in ``line`` asks for, checked."""
    extent, item = _message(shape, dtype)
    direction = None if name is None else _direction(name)
    given = shape if isinstance(shape, tuple | int) else None  # a list may be another one the next time
    return Asked(name, given, dtype, Receive(direction, prod(extent) * item.itemsize, line), extent, item)


def _extent(nbytes: int | None, shape: Ints | None, dtype: object) -> tuple[Shape, DType]:
    """Shape and type of what is sent from an address; bytes when only their number is given."""
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
