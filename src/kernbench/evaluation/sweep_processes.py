"""Start worker processes. Light: the process they are forked from is begun before anything else."""

from __future__ import annotations

import multiprocessing
import signal
from multiprocessing import forkserver
from multiprocessing.context import BaseContext

# Imported once, in the process from which workers are forked.
PRELOADED = ("__main__", "kernbench.evaluation.sweep_warm")
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
        forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGINT, before)
