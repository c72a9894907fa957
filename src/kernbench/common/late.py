"""Imports that are deferred until their first use, and stops that are deferred until an import ends."""

from __future__ import annotations

import importlib
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_STOPS = (signal.SIGINT, signal.SIGALRM)
"""Signals that end a run from outside: Ctrl-C, and the alarm of its limit in seconds"""


def late(module: str, name: str) -> Any:
    """Import ``module`` and return its attribute ``name``; stops wait until the import ends.

    Use this function for modules that are slow to import and that few runs need: a command, pictures, Parquet. The
    caller declares the type of the result.
    """
    with defer_stops():
        return vars(importlib.import_module(module))[name]


@contextmanager
def defer_stops() -> Iterator[None]:
    """Defer a stop, by Ctrl-C or by a limit of seconds, to the end of the block.

    If a stop interrupts the import of NumPy, NumPy raises ImportError and cannot be imported again. Triton's library
    then prints complaints.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = [(number, handler) for number in _STOPS if callable(handler := signal.getsignal(number))]
    arrived: list[int] = []
    for number, _ in handlers:
        signal.signal(number, lambda number, _: arrived.append(number))
    try:
        yield
    finally:
        for number, handler in handlers:
            signal.signal(number, handler)
        for number, handler in handlers:
            if number in arrived:
                handler(number, None)
