"""Worker processes on this computer, and a worker that is this process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Set
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Self

from kernbench.common.errors import RunError
from kernbench.evaluation.sweep_driver import Chunked
from kernbench.evaluation.sweep_point import Chunk, run_chunk
from kernbench.evaluation.sweep_processes import worker_context

# One that is being run and one that waits, so that a worker never does.
CHUNKS_PER_WORKER = 2


class LocalWorkers:
    """``jobs`` processes, which end with this one. A context manager; after an error it does not wait for them."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._strangers = set(multiprocessing.active_children())
        self._pool = make_pool(jobs)

    @property
    def slots(self) -> int:
        """How many chunks keep all of them busy."""
        return CHUNKS_PER_WORKER * self._jobs

    def submit(self, chunk: Chunk) -> Chunked:
        """Begin to run a chunk, on new processes where the old ones died."""
        try:
            return self._pool.submit(run_chunk, chunk)
        except BrokenExecutor:
            self._pool.shutdown()
            self._pool = make_pool(self._jobs)
            return self._pool.submit(run_chunk, chunk)

    def is_loss(self, error: BaseException) -> bool:
        """Whether ``error`` means that a process died."""
        return isinstance(error, BrokenExecutor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _end(self._pool, self._strangers, at_once=error is not None)


class InlineWorker:
    """Runs chunks in this process, one after the other."""

    slots = 1

    def submit(self, chunk: Chunk) -> Chunked:
        """Run a chunk now."""
        future: Chunked = Future()
        future.set_result(run_chunk(chunk))
        return future

    def is_loss(self, error: BaseException) -> bool:
        """It cannot die alone."""
        return False


@contextmanager
def worker_pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """``jobs`` processes, which end with this one; after an error, Ctrl-C too, it does not wait for them.

    RunError when one of them dies.
    """
    strangers = set(multiprocessing.active_children())
    pool = make_pool(jobs)
    well = False
    try:
        yield pool
        well = True
    except BrokenExecutor as error:
        raise RunError("a worker process died: out of memory, or killed; fewer at once need less memory") from error
    finally:
        _end(pool, strangers, at_once=not well)


def make_pool(jobs: int) -> ProcessPoolExecutor:
    """A pool whose processes end with this one, and leave Ctrl-C to it."""
    return ProcessPoolExecutor(jobs, worker_context(), _begin, (os.getcwd(),))


def _end(pool: ProcessPoolExecutor, strangers: Set[BaseProcess], *, at_once: bool) -> None:
    """End a pool; ``strangers``: processes that were there before it."""
    pool.shutdown(wait=not at_once, cancel_futures=True)
    if at_once:
        for process in set(multiprocessing.active_children()) - strangers:
            process.kill()


def _begin(folder: str) -> None:
    """A worker begins: it leaves Ctrl-C to the process that started it, and ends when that one is no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.chdir(folder)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
