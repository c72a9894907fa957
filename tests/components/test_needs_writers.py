"""Every writer of causes is needed: where one writes nothing, the needs of some row say so."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import needs_programs as do
import pytest

from kernbench.components.dispatch import Dispatcher
from kernbench.components.pe_dma import DmaChannel, _RawTraffic
from kernbench.components.pe_scheduler import PeScheduler, TileDma
from kernbench.components.queue import Queue
from kernbench.components.scoreboard import Scoreboard
from kernbench.components.sequencer import Sequencer
from kernbench.components.stage import OverlappingStage, StageUnit
from kernbench.core.log import BY, CAUSE, NONE, ROOT, By, Log, Row
from kernbench.engine.engine import GraphEngine
from kernbench.engine.machine import Machine
from needs import check_needs

POLL = {"backpressure": "poll", "poll_ns": 17}
SINGLE = "pe.components.pe_scheduler.attrs.tiles_in_flight=1"
NARROW = "pe.components.pe_scheduler.attrs.stage_slots=1"


def causes_of(owner: type, method: str, by: By) -> Any:
    """``method`` gets no cause where it would get one by ``by``."""
    inner = getattr(owner, method)

    def without(self: Any, *given: Any, **more: Any) -> Any:
        kept = [ROOT if isinstance(each, tuple) and len(each) == 2 and each[1] is by else each for each in given]
        return inner(self, *kept, **more)

    return patch.object(owner, method, without)


def going_on(by: By) -> Any:
    """A kernel goes on, after it has waited, without a cause."""
    inner = Sequencer.resume_program

    def resume_program(self: Sequencer, answer: object = None) -> None:
        if self.cause[1] is by:
            self.cause = ROOT
        inner(self, answer)

    return patch.object(Sequencer, "resume_program", resume_program)


def set_ups(by: By) -> Any:
    """The descriptors of messages."""
    inner = DmaChannel.post

    def post(self: Any, message: Row, *given: Any) -> tuple[int, Row]:
        ready_ps, row = inner(self, message, *given)
        if self._rows[row + BY] == by:
            self._rows[row + CAUSE], self._rows[row + BY] = ROOT
        return ready_ps, row

    return patch.object(DmaChannel, "post", post)


def argument(owner: type, method: str, at: int, value: object) -> Any:
    """``method`` gets ``value`` for its argument number ``at``."""
    inner = getattr(owner, method)

    def changed(self: Any, *given: Any) -> Any:
        return inner(self, *given[:at], value, *given[at + 1 :])

    return patch.object(owner, method, changed)


def submissions() -> Any:
    """The engine does not know what the host has waited for."""
    inner = GraphEngine.submit

    def submit(self: GraphEngine, msg: Any) -> Any:
        with patch.object(self, "_waited", NONE):
            return inner(self, msg)

    return patch.object(GraphEngine, "submit", submit)


PIPELINED = [(do.streamed, 0), (do.streamed, 4), (do.products, 0), (do.math, 2)]
MESSAGES = [(do.fill_slots, 7)]
WRITERS: dict[str, tuple[Any, list[do.Op], dict[str, Any]]] = {
    "issue": (causes_of(Dispatcher, "issue", By.ISSUE), [(do.load_and_store, 0)], {}),
    "issue of a message": (causes_of(Dispatcher, "issue_send", By.ISSUE), [(do.forward, 0)], {}),
    "after an issue": (going_on(By.ISSUE), [(do.load_and_store, 0)], {}),
    "kernel entered": (going_on(By.KERNEL), [], {}),
    "operand": (causes_of(Scoreboard, "_start_ready", By.OPERAND), [(do.math, 2)], {}),
    "operand waited for": (going_on(By.OPERAND), [(do.math, 2), (do.wait, 0), (do.math, 1)], {}),
    "memory order": (causes_of(Scoreboard, "release", By.MEMORY), [(do.overlapping, 3)], {}),
    "memory order by range": (causes_of(Scoreboard, "release", By.MEMORY_RANGE), [(do.by_range, 1)], {}),
    "memory order in TCM": (causes_of(Scoreboard, "release", By.MEMORY_END), [(do.window, 1), (do.math, 2)], {}),
    "space": (going_on(By.SPACE), [(do.large, 0)], {}),
    "engine of a command": (
        causes_of(StageUnit, "_begin", By.ENGINE),
        [(do.show, 0), (do.elementwise, 0), (do.math, 7), (do.wait, 0)],
        {},
    ),
    "engine of tiles": (causes_of(StageUnit, "_begin", By.ENGINE), PIPELINED, {}),
    "slot of a stage": (causes_of(StageUnit, "_begin", By.SLOT), PIPELINED, {"changes": (NARROW,)}),
    "operand of a tile": (causes_of(StageUnit, "_begin", By.OPERAND), PIPELINED, {}),
    "operand of a tile's DMA": (causes_of(OverlappingStage, "try_start", By.OPERAND), PIPELINED, {}),
    "slot of the pipeline": (causes_of(PeScheduler, "_inject", By.SLOT), PIPELINED, {"changes": (SINGLE,)}),
    "command of tiles": (causes_of(PeScheduler, "submit", By.MEMORY), [(do.streamed, 0)], {}),
    "set-up": (
        causes_of(Dispatcher, "_open_record", By.SETUP),
        [(do.load_and_store, 0)],
        {"changes": ("pe.dma.setup_ns=20",)},
    ),
    "set-up of a tile": (causes_of(TileDma, "_open_row", By.SETUP), PIPELINED, {}),
    "queue": (set_ups(By.QUEUE), MESSAGES, {}),
    "set-up of a message": (set_ups(By.SETUP), [(do.from_anyone, 0)], {"changes": ("pe.dma.setup_ns=20",)}),
    "message": (going_on(By.MESSAGE), MESSAGES, {}),
    "message posted": (argument(Dispatcher, "on_message", 2, NONE), [(do.post, 3)], {}),
    "credit": (causes_of(Dispatcher, "issue_send", By.CREDIT), MESSAGES, {"n_slots": 1}),
    "kernel after a credit": (going_on(By.CREDIT), MESSAGES, {"n_slots": 1}),
    "poll": (causes_of(Dispatcher, "issue_send", By.POLL), MESSAGES, {"n_slots": 1, **POLL}),
    "kernel after a poll": (going_on(By.POLL), MESSAGES, {"n_slots": 1, **POLL}),
    "giver of a credit": (argument(Queue, "take_credit", 2, NONE), MESSAGES, {"n_slots": 1}),
    "last credit": (causes_of(Machine, "send_control", By.CREDIT), [(do.pass_on, 0)], {}),
    "order": (causes_of(Machine, "send_control", By.ORDER), [], {}),
    "order at a PE": (causes_of(Sequencer, "begin", By.ORDER), [], {"changes": ("transport.express=false",)}),
    "report of a kernel": (causes_of(Machine, "send_control", By.OPERAND), [(do.load_and_store, 0)], {}),
    "common start": (causes_of(Sequencer, "begin", By.START), [], {}),
    "kernel behind another": (causes_of(Sequencer, "begin", By.KERNEL), [(do.load_and_store, 0)], {"launches": 2}),
    "barrier": (causes_of(Machine, "send_control", By.BARRIER), [(do.meet, 0)], {}),
    "kernel after a barrier": (going_on(By.BARRIER), [(do.meet, 0)], {}),
    "kernel after a fence": (going_on(By.FENCE), [(do.fenced, 3)], {}),
    "host": (submissions(), [], {}),
    "host's transfer, host's order": (patch.object(Log, "cause_of", lambda *_: ROOT), [], {}),
    "fill": (causes_of(Log, "open", By.ENGINE), [], {"host": "fill"}),
    "raw traffic": (causes_of(_RawTraffic, "start_next", By.SLOT), [], {"host": "traffic"}),
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_writer_is_needed(name: str) -> None:
    writer, ops, settings = WRITERS[name]
    given = {"pace": (1, 4, 2), **settings}
    with writer:
        engine, _ = do.play(ops, **given)
    with pytest.raises(AssertionError, match="by NOTHING"):
        check_needs(engine)
