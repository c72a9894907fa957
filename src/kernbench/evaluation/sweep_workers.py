"""Worker processes on this computer, and a worker that is this process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from types import TracebackType
from typing import Self

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
        self._pool = self._make_pool()

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
            self._pool = self._make_pool()
            return self._pool.submit(run_chunk, chunk)

    def is_loss(self, error: BaseException) -> bool:
        """Whether ``error`` means that a process died."""
        return isinstance(error, BrokenExecutor)

    def _make_pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(self._jobs, worker_context(), _begin, (os.getcwd(),))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=error is None, cancel_futures=True)
        if error is not None:
            for process in set(multiprocessing.active_children()) - self._strangers:
                process.kill()


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
