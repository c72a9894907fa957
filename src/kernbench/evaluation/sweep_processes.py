"""Start worker processes. Light: the process they are forked from is begun before anything else."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from types import ModuleType

# Imported once, in the process from which workers are forked.
PRELOADED = ("kernbench.evaluation.sweep_warm",)
METHOD = "forkserver"


def worker_context() -> BaseContext:
    """A way to start processes that is safe where this one has threads."""
    if METHOD not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context(METHOD)
    context.set_forkserver_preload(list(PRELOADED))
    return context


def begin_server() -> None:
    """Begin the process from which workers are forked: it imports what they need while this one does.

    To be called by the main thread. Ctrl-C, which a terminal sends to all, is left to this process.
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
    """Inside, processes that begin do not run the main program again: workers need nothing of it, and it may sweep."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
