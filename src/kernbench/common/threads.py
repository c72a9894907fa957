"""Exceptions that one thread raises in another."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Any

from kernbench.common.program_line import is_program

_RAISE = ctypes.pythonapi.PyThreadState_SetAsyncExc


def raise_in_thread(thread: Thread, kind: type[BaseException]) -> None:
    """Raise an exception of class ``kind`` in a thread, before its next instruction of Python.

    A thread that has ended is left alone. A thread inside a call of a library receives the exception after the call.
    """
    if thread.ident is not None:
        _RAISE(ctypes.c_ulong(thread.ident), ctypes.py_object(kind))


class InterruptAtLines(KeyboardInterrupt):
    """An interrupt that each further line of the program raises again, for a program that catches interrupts.

    Pass the class to ``raise_in_thread``: the thread that receives the exception creates it.
    """

    def __init__(self) -> None:
        super().__init__()
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - documented, public in all but name
        while frame is not None:
            if is_program(Path(frame.f_code.co_filename)):
                frame.f_trace = _interrupt_at_line
            frame = frame.f_back
        sys.settrace(_interrupt_at_line)  # last: the next line of any function raises


def _interrupt_at_line(_: FrameType, event: str, __: object) -> Any:
    """Interrupt a program that caught an interrupt. Its next line is outside of the ``try``."""
    if event == "line":
        raise KeyboardInterrupt
    return _interrupt_at_line


def take_back_exception(thread: Thread) -> None:
    """Remove an exception for a thread that it has not received yet."""
    if thread.ident is not None:
        _RAISE(ctypes.c_ulong(thread.ident), None)
