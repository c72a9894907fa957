"""Imports that are put off until they are needed, and stops that are put off until an import is over."""

from __future__ import annotations

import importlib
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_STOPS = (signal.SIGINT, signal.SIGALRM)
"""What ends a run from outside: Ctrl-C, and its limit in seconds"""


def late(module: str, name: str) -> Any:
    """Return what a module calls ``name``; this imports the module, and stops wait for that.

    Use it for what takes long to import and few runs need: a command, pictures, Parquet. The caller states the type.
    """
    with put_off_stops():
        return vars(importlib.import_module(module))[name]


@contextmanager
def put_off_stops() -> Iterator[None]:
    """Inside, Ctrl-C and the limit of a run in seconds wait.

    NumPy, stopped while it is imported, raises an ImportError and is of no more use; Triton's library complains.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = [(number, handler) for number in _STOPS if callable(handler := signal.getsignal(number))]
    came: list[int] = []
    for number, _ in handlers:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, handler in handlers:
            signal.signal(number, handler)
        for number, handler in handlers:
            if number in came:
                handler(number, None)
