"""Imports that are put off until they are needed."""

from __future__ import annotations

import importlib
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def late(module: str, name: str) -> Any:
    """Return what a module calls ``name``; this imports the module, and Ctrl-C waits for that.

    Use it for what takes long to import and few runs need: a command, pictures, Parquet. The caller states the type.
    """
    with _put_off_interrupt():
        return vars(importlib.import_module(module))[name]


@contextmanager
def _put_off_interrupt() -> Iterator[None]:
    """Inside, Ctrl-C waits: NumPy, interrupted while it is imported, raises an ImportError and is of no more use."""
    plain = signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not plain:
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, plain)
        if came:
            raise KeyboardInterrupt
