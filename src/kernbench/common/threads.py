"""Exceptions that one thread raises in another."""

from __future__ import annotations

import ctypes
from threading import Thread

_RAISE = ctypes.pythonapi.PyThreadState_SetAsyncExc


def raise_in_thread(thread: Thread, kind: type[BaseException]) -> None:
    """Raise an exception of class ``kind`` in a thread, before its next instruction of Python.

    A thread that has ended is left alone. A thread inside a call of a library receives the exception after the call.
    """
    if thread.ident is not None:
        _RAISE(ctypes.c_ulong(thread.ident), ctypes.py_object(kind))


def take_back_exception(thread: Thread) -> None:
    """Remove an exception for a thread that it has not received yet."""
    if thread.ident is not None:
        _RAISE(ctypes.c_ulong(thread.ident), None)
