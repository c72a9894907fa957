"""Graphs of launches, ``torch.cuda.CUDAGraph``: launches are captured once and replayed by one order.

Launches do not start while they are captured. A replay starts them at the same addresses. Storages that the program
drops during a capture are therefore reused only by graphs of the same pool.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self
from weakref import finalize

import torch

from kernbench.common.errors import InputError
from kernbench.frontends.torch.modules import program_place
from kernbench.frontends.torch.storage import Pool, Shelves, current, pool_of
from kernbench.runtime_api.launch_queue import CapturedLaunch


class GraphPool:
    """The memory that captures share. Its dropped storages return to the program with it."""

    def __init__(self, pool: Pool) -> None:
        self.shelves: Shelves = {}
        finalize(self, pool.return_shelves, self.shelves).atexit = False


def graph_pool_handle() -> GraphPool:
    """Return memory that captures can share."""
    return GraphPool(pool_of(current()))


class CUDAGraph:
    """A graph of launches, each of which begins when the one before it has ended."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._pool: GraphPool | None = None
        self._launches: tuple[CapturedLaunch, ...] | None = None

    def capture_begin(
        self,
        pool: GraphPool | None = None,
        capture_error_mode: str = "global",
        check_input_liveness: bool = False,
    ) -> None:
        """Begin to capture launches; ``pool``: memory of other captures.

        Raises InputError in a capture, and in one of several ranks.
        """
        context = current()
        if context.multiprocessing.n_ranks > 1:
            raise InputError(f"{program_place()}: a graph of launches: only a program without ranks can capture one")
        context.queue.begin_capture()
        self._pool = pool or graph_pool_handle()
        pool_of(context).captured = self._pool.shelves

    def capture_end(self) -> None:
        """End the capture. Raises InputError without a capture, and for launches on several SIPs."""
        context = current()
        launches = context.queue.end_capture()
        pool_of(context).captured = None
        sips = {captured.launch.message.targets[0][0] for captured in launches}
        if len(sips) > 1:
            listed = ", ".join(f"sip{sip}" for sip in sorted(sips))
            raise InputError(
                f"capture_end: the launches of a graph are of one SIP; found {listed}; capture one for each"
            )
        self._launches = launches

    def instantiate(self) -> None:
        """Do nothing: a captured graph can be replayed."""

    def replay(self) -> None:
        """Start the launches by one order. Raises InputError before the capture has ended."""
        if self._launches is None:
            raise InputError("replay: the graph has no launches; capture some first, by torch.cuda.graph(g)")
        if self._launches:
            current().replay(self._launches)

    def reset(self) -> None:
        """Drop the launches and their memory."""
        self._launches = self._pool = None

    def pool(self) -> GraphPool:
        """Return the memory of the graph, for other captures."""
        if self._pool is None:
            raise InputError("pool: the graph has no memory before its capture")
        return self._pool

    def enable_debug_mode(self) -> None:
        """Do nothing: ``debug_dump`` is always possible."""

    def debug_dump(self, debug_path: str) -> None:
        """Write the titles of the launches, one a line."""
        lines = [f"{captured.launch.message.title}\n" for captured in self._launches or ()]
        with open(debug_path, "w", encoding="utf-8") as file:
            file.writelines(lines)


class graph:  # noqa: N801 - as in torch.cuda
    """A context manager that captures the launches inside the ``with`` block into a graph."""

    def __init__(
        self,
        cuda_graph: CUDAGraph,
        pool: GraphPool | None = None,
        stream: object = None,
        capture_error_mode: str = "global",
        enable_annotations: bool = False,
        check_input_liveness: bool = False,
    ) -> None:
        self.cuda_graph, self._pool = cuda_graph, pool

    def __enter__(self) -> Self:
        current().accelerator.synchronize()
        self.cuda_graph.capture_begin(self._pool)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cuda_graph.capture_end()


def is_current_stream_capturing() -> bool:
    """Return True while launches are captured."""
    return current().queue.is_capturing


make_graphed_callables = torch.cuda.graphs.make_graphed_callables
"""PyTorch's own function, which uses the names above"""
