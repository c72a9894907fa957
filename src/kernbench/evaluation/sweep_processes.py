"""Start worker processes. The server process that forks them starts before any other work."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from types import ModuleType

# Imported once, in the server process from which workers are forked.
PRELOADED = ("kernbench.evaluation.sweep_warm",)
METHOD = "forkserver"


def worker_context() -> BaseContext:
    """Return a process start method that is safe in a process with threads."""
    if METHOD not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context(METHOD)
    context.set_forkserver_preload(list(PRELOADED))
    return context


def begin_server() -> None:
    """Start the server process from which workers are forked. It imports modules while this process imports others.

    Call this function in the main thread. A terminal sends Ctrl-C to all processes, but only this process handles it.
    """
    if worker_context().get_start_method() != METHOD:
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with hidden_main():
            forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def hidden_main() -> Iterator[None]:
    """Inside the block, new processes do not run the main program again, because it might start a sweep."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
