"""Workers of a dask.distributed cluster. Needs the extra: pip install 'kernbench[cluster]'."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from distributed import Client, LocalCluster
from distributed.scheduler import KilledWorker

from kernbench.common.errors import InputError
from kernbench.evaluation.sweep_driver import Chunked
from kernbench.evaluation.sweep_point import PointChunk, run_chunk

CONNECT_S = 10
CHUNKS_PER_THREAD = 2


class DaskWorkers:
    """The workers of the scheduler at ``address``, or ``jobs`` workers of a temporary cluster without an address."""

    def __init__(self, address: str | None, jobs: int) -> None:
        # A simulation uses one thread.
        self._cluster = _local_cluster(jobs) if address is None else None
        self._client = _connect(self._cluster or address)
        self._executor = self._client.get_executor(pure=False)

    @property
    def slots(self) -> int:
        """The number of chunks that keeps all workers busy. Workers may join and leave."""
        threads = sum(int(count) for count in self._client.nthreads().values())
        return CHUNKS_PER_THREAD * max(1, threads)

    def submit(self, chunk: PointChunk) -> Chunked:
        """Start a chunk. Dask runs the chunk again on another worker if its worker is lost."""
        future: Chunked = self._executor.submit(run_chunk, chunk)
        return future

    def is_loss(self, error: BaseException) -> bool:
        """Return True if ``error`` means that a chunk killed its workers."""
        return isinstance(error, KilledWorker)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._executor.shutdown(wait=False)
        self._client.close()
        if self._cluster is not None:
            self._cluster.close()


def _local_cluster(jobs: int) -> LocalCluster:
    return LocalCluster(n_workers=jobs, threads_per_worker=1, dashboard_address=None)


def _connect(where: str | LocalCluster | None) -> Client:
    try:
        return Client(where, timeout=CONNECT_S)
    except OSError as error:
        raise InputError(f"--executor: no dask scheduler answers at {where}: {error}") from error
