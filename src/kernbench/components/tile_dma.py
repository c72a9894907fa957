"""Streaming tiles between memory and TCM for the scheduler: the DMA as a stage of the pipeline."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kernbench.common.ids import pe_part
from kernbench.common.values import state
from kernbench.components.access_plan import extent, plan
from kernbench.components.pe_dma import PeDma
from kernbench.components.pe_mmu import PeMmuPart
from kernbench.components.stage import Token
from kernbench.core.log import LAUNCH, LINE, Cause, Row
from kernbench.engine.machine import Machine
from kernbench.engine.record_content import TileMoved
from kernbench.engine.recorder import OpStarted
from kernbench.messages.requests import PeCoord
from kernbench.triton_emu.tile_plans import OperandWindow, Tile


@state
class TileWork:
    """What a token of the scheduler carries: the scheduler's plan, the tile, and its number in the log."""

    plan: Any
    tile: Tile
    number: int


class TileDma:
    """Reads and writes the windows of tiles; addresses go through the PE's MMU."""

    def __init__(self, machine: Machine, coord: PeCoord, dma: PeDma) -> None:
        self._machine = machine
        self._coord = coord
        self._dma = dma
        self._mmu = machine.part(pe_part(*coord, "pe_mmu"), PeMmuPart)

    def read(self, token: Token, done: Callable[[Row], None]) -> None:
        """Stream in what the tile reads; ``done(row)`` when the last of it is in TCM."""
        work = token.work
        missing = len(work.tile.reads)

        def one(row: Row) -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                done(row)

        for window in work.tile.reads:
            self._move(work, window, True, one, token.cause)

    def write(self, token: Token, done: Callable[[Row], None]) -> None:
        """Stream out the output tile; ``done(row)`` when it is acknowledged."""
        work = token.work
        self._move(work, work.tile.write, False, done, token.cause)

    def _move(
        self, work: TileWork, window: OperandWindow, reading: bool, done: Callable[[Row], None], cause: Cause
    ) -> None:
        machine = self._machine
        low, span = extent(window.shape, window.itemsize, window.strides)
        found = self._mmu.table.segments(window.va + low, span)
        segments = tuple((pa.encode(), nbytes) for pa, nbytes in found)
        targets = plan(machine.addresses, segments, window.shape, window.itemsize, window.strides)
        op = machine.next_op()
        begun = partial(self._begun, op, work, window, reading, len(targets))
        descriptor = op, reading, targets, begun, partial(self._ended, op, done)
        pages = self._mmu.pages(window.va, window.shape, window.itemsize, window.strides)
        if pages:
            whole, rows = work.plan.row, machine.log.rows
            launch, line = rows[whole + LAUNCH], rows[whole + LINE]
            self._mmu.walk(pages, launch, line, cause, partial(self._dma.start, *descriptor))
        else:
            self._dma.start(*descriptor, cause)

    def _begun(
        self, op: int, work: TileWork, window: OperandWindow, reading: bool, accesses: int, start_ps: int, cause: Cause
    ) -> Row:
        what = TileMoved(work.plan.op, window.name, work.tile.index, reading)
        reads, writes = (accesses, 0) if reading else (0, accesses)
        started = OpStarted(op, self._dma.node.id, what, start_ps, reads, writes, -1)
        return self._machine.begin_op(started, cause)

    def _ended(self, op: int, done: Callable[[Row], None], _: Row) -> None:
        done(self._machine.end_op(op))
