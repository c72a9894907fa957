"""Works of the engines of PEs, read from the rows of the log in bulk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kernbench.common.values import value
from kernbench.core import op_log
from kernbench.core.clock import NEVER
from kernbench.core.log import LAUNCH, PARENT, TILE, WIDTH, Columns, Kind, Log, Row
from kernbench.engine.passed_launches import PassedLaunches
from kernbench.engine.recorder import name_of
from kernbench.messages.commands import BY_BLOCKS
from kernbench.messages.requests import PeCoord

ENGINE_OF: dict[op_log.RecordKind, str] = {
    "dma_read": "DMA in",
    "dma_write": "DMA out",
    "fetch": "fetch",
    "gemm": "GEMM",
    "store": "store",
    "math": "MATH",
    "ipcq_copy": "ipcq",
    "atomic": "DMA out",
}
"""The engine of a PE that a record occupies, in the order of the pipeline"""
Times: TypeAlias = NDArray[np.int64]
WorkNumbers: TypeAlias = NDArray[np.int32]
PLAN = "scheduler"
"""The engine of a complete dot or composite; its tiles are separate works"""
PE_ENGINES = tuple(dict.fromkeys(ENGINE_OF.values()))
"""Each engine, in the order of the pipeline"""
ENGINES = (*PE_ENGINES, PLAN)
_STAGES = (Kind.FETCH, Kind.GEMM, Kind.MATH, Kind.STORE)
_ENGINE_OF_KIND = np.array([ENGINES.index(ENGINE_OF[kind.label]) for kind in Kind if kind.label in ENGINE_OF], np.int8)


@value
class EngineWork:
    """A work of an engine of a PE from ``start_ps`` to ``end_ps`` (NEVER while in flight): a row of the log.

    A stage or a transfer of a ``tile`` is a part of a work on the engine ``PLAN``.
    """

    row: Row
    engine: str
    name: str
    node: str
    pe: PeCoord
    start_ps: int
    end_ps: int
    kernel: str
    launch_id: int
    line: int
    tile: tuple[int, ...] | None


class Works:
    """The works of a log as columns.

    ``rows`` are numbers of rows, ``engine`` indices into ``ENGINES``. ``about`` are the numbers of the objects that
    describe the amount of work. ``weights``: how often each work counts, since launches ``passed``.
    """

    def __init__(self, log: Log, columns: Columns, passed: PassedLaunches) -> None:
        self.log = log
        self.columns = columns
        self.rows: WorkNumbers = np.flatnonzero(columns.kind < len(_ENGINE_OF_KIND)).astype(np.int32)
        self.engine: NDArray[np.int8] = _ENGINE_OF_KIND[columns.kind[self.rows]]
        self.about: WorkNumbers = columns.what[self.rows]
        self._find_tiles()
        self.launch: WorkNumbers = columns.copy(LAUNCH, np.int32)[self.rows]
        self.weights = passed.weights(self.launch, for_folded=False)
        self._by_launch = np.argsort(self.launch, kind="stable").astype(np.int32)

    def _find_tiles(self) -> None:
        """Find the commands that tiles carry out, and look up the work of tile stages in the rows of tiles' issues."""
        columns = self.columns
        parents, tiles = columns.copy(PARENT), columns.copy(TILE, np.int32)  # not stored: few readers need them
        issued = np.flatnonzero(columns.kind == Kind.TILE_ISSUE)
        tiled = np.zeros(len(columns.kind), np.bool_)
        tiled[parents[issued]] = True
        self.engine[tiled[self.rows]] = ENGINES.index(PLAN)
        stages = np.isin(columns.kind[self.rows], _STAGES) & (tiles[self.rows] >= 0)
        staged = np.flatnonzero(stages & (parents[self.rows] >= 0)).astype(np.int32)

        def keys_of(rows: NDArray[np.signedinteger[Any]]) -> Times:
            """Return a key per tile that differs between composites with equal tile indices."""
            keys: Times = parents[rows] * (len(self.log.tiles) + 1) + tiles[rows]
            return keys

        keys, wanted = keys_of(issued), keys_of(self.rows[staged])
        order = np.argsort(keys)
        self.about[staged] = columns.what[issued[order[np.searchsorted(keys, wanted, sorter=order)]]]

    def done_by(self, engine: str) -> NDArray[np.bool_]:
        """Return a mask of the works of an engine."""
        done: NDArray[np.bool_] = self.engine == ENGINES.index(engine)
        return done

    def of_launch(self, launch_id: int) -> WorkNumbers:
        """Return the indices of a launch's works, in order."""
        low, high = np.searchsorted(self.launch, (launch_id, launch_id + 1), sorter=self._by_launch)
        return self._by_launch[low:high]

    def blocks_of(self, launch_id: int) -> dict[int, tuple[str, ...]]:
        """Return the blocks of a launch's products, as m×k×n, by line of its kernel."""
        sizes_by_line: dict[int, dict[str, None]] = {}
        numbers = self.of_launch(launch_id)
        for at in numbers[self.done_by(PLAN)[numbers]].tolist():
            _, by_blocks, sizes = name_of(self.log.whats[self.about[at]]).partition(BY_BLOCKS)
            if by_blocks:
                sizes_by_line.setdefault(int(self.columns.line[self.rows[at]]), {})[sizes] = None
        return {line: tuple(blocks) for line, blocks in sizes_by_line.items()}

    def each(self, pes: list[PeCoord | None]) -> Iterator[EngineWork]:
        """Yield the works; ``pes`` has the PE of each component of the log."""
        log, rows = self.log, self.log.rows
        for number, engine in zip(self.rows.tolist(), self.engine.tolist(), strict=True):
            part, kind, work, launch, line, tile, _, start, _, _, end = rows[number * WIDTH : number * WIDTH + 11]
            pe, name = pes[part], name_of(log.whats[work])
            assert pe is not None
            if ENGINES[engine] == PLAN:
                name = "dot" if name == "dot" else f"gemm {name}" if kind == Kind.GEMM else f"{name} composite"
            elif name == "stage":
                name = "tile"
            yield EngineWork(
                number * WIDTH,
                ENGINES[engine],
                name,
                log.parts[part],
                pe,
                start,
                NEVER if end < 0 else end,
                log.kernels.get(launch, ""),
                launch,
                line,
                None if tile < 0 else log.tiles[tile],
            )


def distinct(numbers: NDArray[np.signedinteger[Any]], count: int) -> list[int]:
    """Return the numbers that occur, in order; all are below ``count``."""
    present = np.zeros(count, np.bool_)
    present[numbers] = True
    in_order: list[int] = np.flatnonzero(present).tolist()
    return in_order
