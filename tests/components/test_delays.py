"""Delays go on: what is late by d makes what needs it later by d, or by what its margin leaves of that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from queue_support import install, line_of

from causes import accessed
from engine_support import machine, place
from ideal_memory import IDEAL
from kernbench.core.log import END, KIND, PART, START, WHAT, WIDTH, By, Kind, Row
from kernbench.messages.requests import KernelLaunchMsg, KernelRef
from needs import NeedsEngine, check_needs
from path_support import SMALL

LENGTHS = (64, 400, 800, 4000, 60_000)
"""Elements of what is made before the producer: each takes longer."""
Find = Callable[[NeedsEngine], Row]


def longer(n: int, tl: Any) -> Any:
    """A tile that is there the later, the larger ``n``; how large it is is the same."""
    return tl.sum(tl.full(n, 1, "f32"), 0, keepdims=True)


def of_kind(kind: Kind, part: str, at: int = -1, what: str = "") -> Find:
    """The row number ``at`` of its kind on a part."""

    def find(engine: NeedsEngine) -> Row:
        log, rows = engine.machine.log, engine.machine.log.rows
        found = [row for row in range(0, len(rows), WIDTH) if rows[row + KIND] == kind]
        found = [row for row in found if log.parts[rows[row + PART]].endswith(part)]
        return [row for row in found if not what or log.whats[rows[row + WHAT]] == what][at]

    return find


def run(kernel: Callable[..., object], n: int) -> NeedsEngine:
    """On two PEs, joined by a queue, nobody else in the way."""
    engine = NeedsEngine(machine(*IDEAL, *SMALL))
    pes = ((0, 0, 0), (0, 0, 1))
    with engine.observed():
        install(engine, line_of(*pes), n_slots=4, slot_size=1024)
        x = place(engine, np.zeros(4096, np.float32))
        ref = KernelRef(name="k", function=kernel)
        engine.wait(engine.submit(KernelLaunchMsg(kernel=ref, args=(x.arg, n), targets=pes)))
    return engine


def operand(x: int, n: int, *, tl: Any) -> None:
    """Of two operands one takes longer."""
    if tl.program_id(0) == 0:
        tl.store(x, longer(n, tl) + tl.load(x, (1,), "f32"))


def operand_alone(x: int, n: int, *, tl: Any) -> None:
    if tl.program_id(0) == 0:
        tl.store(x, longer(n, tl))


def message(x: int, n: int, *, tl: Any) -> None:
    """A kernel waits for a message."""
    if tl.program_id(0) == 0:
        tl.send("E", longer(n, tl))
    else:
        tl.abs(tl.recv("W", (1,), "f32"))


def message_posted(x: int, n: int, *, tl: Any) -> None:
    """A command needs it and what is read from memory."""
    if tl.program_id(0) == 0:
        tl.send("E", longer(n, tl))
    else:
        got = tl.recv_async("W", (1,), "f32")
        tl.store(x, got + tl.load(x, (1,), "f32"))


def same_bytes(x: int, n: int, *, tl: Any) -> None:
    """A load of what is stored before."""
    if tl.program_id(0) == 0:
        tl.store(x, longer(n, tl))
        tl.load(x, (1,), "f32")


def barrier(x: int, n: int, *, tl: Any) -> None:
    """The first of two PEs comes early, or late."""
    if tl.program_id(0) == 0:
        tl.wait(longer(n, tl))
    else:
        tl.wait(tl.load(x, (1,), "f32"))
    tl.barrier()


ADD = of_kind(Kind.MATH, "pe0.pe_math")
ARRIVAL = of_kind(Kind.CONTROL, "pe0.pe_cpu", what="BarrierArrival")


@pytest.mark.parametrize(
    ("kernel", "producer", "consumer", "has_margin"),
    [
        (operand, of_kind(Kind.MATH, "pe0.pe_math", -2), ADD, True),
        (operand_alone, ADD, of_kind(Kind.DMA_WRITE, "pe0.pe_dma"), False),
        (message, of_kind(Kind.IPCQ_COPY, "pe0.pe_ipcq"), of_kind(Kind.ISSUE, "pe1.pe_cpu"), False),
        (message_posted, of_kind(Kind.IPCQ_COPY, "pe0.pe_ipcq"), of_kind(Kind.MATH, "pe1.pe_math"), True),
        (same_bytes, of_kind(Kind.DMA_WRITE, "pe0.pe_dma"), of_kind(Kind.DMA_READ, "pe0.pe_dma"), False),
        (barrier, ARRIVAL, of_kind(Kind.CONTROL, "m_cpu", what="BarrierRelease"), True),
    ],
)
def test_a_late_producer(kernel: Callable[..., object], producer: Find, consumer: Find, has_margin: bool) -> None:
    check_delays([run(kernel, n) for n in LENGTHS], producer, consumer, has_margin)


@pytest.mark.parametrize("waits", [False, True])
def test_a_late_order(waits: bool) -> None:
    """A launch is submitted later, to a PE that is busy with another one until then, or is not."""

    def played(late_ns: int) -> NeedsEngine:
        engine = NeedsEngine(machine(*IDEAL, *SMALL))
        with engine.observed():
            x = place(engine, np.zeros(4096, np.float32))
            ref = KernelRef(name="k", function=lambda x, n, *, tl: tl.wait(longer(n, tl)))
            launches = [
                KernelLaunchMsg(kernel=ref, args=(x.arg, n), targets=((0, 0, 0),))
                for n in ((60_000, 64) if waits else (64,))
            ]
            handles = [engine.submit(each) for each in launches[:-1]]
            engine.run_until(engine.now + late_ns)
            for handle in [*handles, engine.submit(launches[-1])]:
                engine.wait(handle)
        return engine

    order = of_kind(Kind.CONTROL, "m_cpu", what="PeOrder")
    check_delays([played(late) for late in (0, 7, 200, 700, 5000)], order, of_kind(Kind.LAUNCH, "pe0.pe_cpu"), waits)


def check_delays(engines: list[NeedsEngine], producer: Find, consumer: Find, has_margin: bool) -> None:
    """The first run says what margin there is, the others by how much the producer is late."""
    first, *others = engines
    needs = check_needs(first)
    need = max(each for each in needs[consumer(first)] if each.row == producer(first))
    start = first.machine.log.rows[consumer(first) + START]
    margin = start - need.at
    assert (margin > 0) is has_margin
    used_up = []
    for engine in others:
        check_needs(engine)
        rows = engine.machine.log.rows
        row = producer(engine)
        late = (accessed(rows, row) if need.by is By.MEMORY else rows[row + END]) - need.at
        assert rows[consumer(engine) + START] - start == max(0, late - margin)
        used_up.append(late > margin)
    assert any(used_up)
    assert not has_margin or not all(used_up)
