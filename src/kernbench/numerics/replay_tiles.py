"""A composite replayed tile by tile: what each tile reads when it reads it, each output tile when it is written."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

from kernbench.common.dtypes import DType
from kernbench.common.operators import EpilogueStep
from kernbench.common.values import value
from kernbench.core.op_log import OpRecord
from kernbench.messages.operands import Operand
from kernbench.numerics.replay_events import commit_event, read_event
from kernbench.numerics.replay_operands import OperandMemory, window
from kernbench.numerics.replay_ops import combine

Array: TypeAlias = np.ndarray[Any, Any]
Tile: TypeAlias = tuple[int, ...]
"""(row, column, step along K)"""
_M, _K, _N = 0, 1, 2
_PLACE = (0, 2, 1)  # where a tile's index of m, k, n stands in (row, column, step)


@value
class Part:
    """An operand of a composite, by the name that the records of its tiles give it.

    ``axes``: along which of m, k, n each of its axes lies.
    ``at_end``: only tiles of the last step along K use it.
    """

    name: str
    operand: Operand
    axes: tuple[int, ...]
    at_end: bool = False

    def window(self, tile: Tile, sizes: tuple[int, int, int]) -> Operand:
        """What ``tile`` uses of it, where tiles are of ``sizes`` (m, k, n)."""
        first = tuple([tile[_PLACE[a]] * sizes[a] for a in self.axes])
        counts = zip(self.axes, first, self.operand.shape, strict=True)
        shape = tuple([min(sizes[a], n - at) for a, at, n in counts])
        return window(self.operand, first, shape)


def parts_of(record: OpRecord) -> tuple[Part, ...]:
    """The operands of a composite: the inputs, those of the epilogue, and ``out``, the last."""
    assert record.output is not None
    names, axes = (("a", "b"), ((_M, _K), (_K, _N))) if record.kind == "gemm" else (None, ())
    found: list[Part] = []
    for n, x in enumerate(record.inputs):
        if isinstance(x, Operand):
            found.append(Part(names[n] if names else f"x{n}", x, axes[n] if axes else (_M, _N)))
    for n, step in enumerate(record.params.epilogue):
        if isinstance(step.operand, Operand):
            along = (_M, _N)[-len(step.operand.shape) :]  # a bias is a vector along the columns
            found.append(Part(f"epilogue{n}", step.operand, along, at_end=True))
    return (*found, Part("out", record.output, (_M, _N)))


class TiledReplay:
    """Brings the effects of a composite about, event by event of its tiles; ``begun`` once one has been carried out."""

    __slots__ = (
        "_acc",
        "_events",
        "_inputs",
        "_last",
        "_next",
        "_out",
        "_samples",
        "_sizes",
        "_staged",
        "_uncommitted",
        "begun",
    )

    def __init__(self, record: OpRecord, parts: tuple[Part, ...], acc: DType) -> None:
        sizes = record.params.tile_sizes
        assert sizes is not None
        self._acc = acc
        self._sizes = sizes
        self._inputs = {part.name: part for part in parts[:-1]}
        self._out = parts[-1]
        # Arrays in TCM have no reads of their own: they are read when the tile is fetched.
        self._staged = tuple(part for part in parts[:-1] if part.operand.space == "tcm")
        steps = -(-parts[0].operand.shape[1] // sizes[_K]) if record.kind == "gemm" else 1
        self._last = steps - 1
        self._samples: dict[tuple[str, Tile], Array] = {}
        self._events: list[tuple[int, OpRecord]] = []
        self._next = 0
        self._uncommitted: list[OpRecord] = []
        self.begun = False

    def learn(self, fresh: list[OpRecord]) -> None:
        """Take in records of tiles that the log has got since, and times that were not known before."""
        waiting, self._uncommitted = self._uncommitted, []
        for record in (*waiting, *fresh):
            if record.kind == "dma_write" and record.t_commit_ps < 0:
                self._uncommitted.append(record)
            elif record.kind == "dma_write":
                self._events.append((commit_event(record), record))
            elif record.kind == "dma_read" or self._staged:
                self._events.append((read_event(record), record))
        del self._events[: self._next]
        self._next = 0
        self._events.sort(key=_first)

    def due(self, limit: int) -> list[tuple[int, OpRecord]]:
        """Take the events before ``limit``, in order."""
        begin, self._next = self._next, bisect_left(self._events, limit, self._next, key=_first)
        return self._events[begin : self._next]

    def step(self, record: OpRecord, tile_record: OpRecord, memory: OperandMemory) -> None:
        """Carry out one event of a tile of composite ``record``."""
        self.begun = True
        tile = tile_record.tile
        assert tile is not None
        if tile_record.kind == "dma_write":
            memory.deposit(self._out.window(tile, self._sizes), self._result(record, tile))
        elif tile_record.kind == "dma_read":
            self._sample(self._inputs[tile_record.name], tile, memory)
        else:
            self._fetch(tile, memory)

    def _sample(self, part: Part, tile: Tile, memory: OperandMemory) -> None:
        self._samples[part.name, tile] = memory.load(part.window(tile, self._sizes), private=True)

    def _fetch(self, tile: Tile, memory: OperandMemory) -> None:
        """Sample what lies in TCM."""
        for part in self._staged:
            needed = tile[2] == self._last or not part.at_end
            if needed and (part.name, tile) not in self._samples:
                self._sample(part, tile, memory)

    def _result(self, record: OpRecord, tile: Tile) -> Array:
        """The output tile: one operation on all that was sampled for it, its steps along K put together."""
        shape = self._out.window(tile, self._sizes).shape
        return combine(record, list(self._args(record, tile)), self._steps(record, tile), shape, self._acc)

    def _args(self, record: OpRecord, tile: Tile) -> Iterator[Array | float]:
        if record.kind == "gemm":
            for name, axis in (("a", 1), ("b", 0)):
                pieces = [self._samples.pop((name, (tile[0], tile[1], s))) for s in range(self._last + 1)]
                yield pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis)
            return
        for n, x in enumerate(record.inputs):
            yield self._samples.pop((f"x{n}", tile)) if isinstance(x, Operand) else x

    def _steps(self, record: OpRecord, tile: Tile) -> list[EpilogueStep]:
        steps: list[EpilogueStep] = []
        for n, step in enumerate(record.params.epilogue):
            if step.operand is None:
                steps.append((step.name,))
            elif isinstance(step.operand, Operand):
                steps.append((step.name, self._samples.pop((f"epilogue{n}", tile))))
            else:
                steps.append((step.name, step.operand))
        return steps


def _first(event: tuple[int, OpRecord]) -> int:
    return event[0]
