"""Memory order where messages are the accesses: the source of a send, the destination of a receive."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from queue_support import held, install, launch, ring_of, share

from kernbench.engine.engine import GraphEngine
from kernbench.topology.builder import Topology

A, B = (0, 0, 0), (0, 0, 1)


@pytest.fixture
def engine(topology: Topology) -> GraphEngine:
    return GraphEngine(topology)


def run(engine: GraphEngine, kernel: Any, *, kind: Any = "tcm") -> list[float]:
    """What both PEs of a ring of two hold in the first element, which was 1 on A and 2 on B."""
    install(engine, ring_of(A, B), kind=kind)
    data = share(engine, {A: np.full(64, 1, np.float32), B: np.full(64, 2, np.float32)})
    launch(engine, kernel, data, pes=(A, B))
    return [float(held(engine, data, pe)[0]) for pe in (A, B)]


def test_a_send_from_memory_reads_what_was_stored_before(engine: GraphEngine) -> None:
    def kernel(ptr: int, tl: Any) -> None:
        tl.store(ptr, tl.exp(tl.full((64,), 0.0, "f32")) + 10.0 + tl.program_id(0))
        tl.send("E", src_addr=ptr, shape=(64,), dtype="f32", space="hbm")
        tl.store(ptr, tl.recv("W", (64,), "f32"))

    assert run(engine, kernel) == [12.0, 11.0]


def test_a_store_waits_for_a_send_to_have_read(engine: GraphEngine) -> None:
    def kernel(ptr: int, tl: Any) -> None:
        mine = tl.full((64,), 7.0, "f32")
        for _ in range(20):
            tl.load(ptr, (64,), "f32")  # the DMA has much to do before it reads what is sent
        tl.send("E", tl.ref(ptr, (64,), "f32"))
        tl.store(ptr, mine)
        got = tl.recv("W", (64,), "f32")
        tl.barrier()
        tl.store(ptr, got)

    assert run(engine, kernel) == [2.0, 1.0]


@pytest.mark.parametrize("kind", ["tcm", "hbm", "sram"])
def test_what_was_received_to_memory_is_loaded_from_there(engine: GraphEngine, kind: Any) -> None:
    def kernel(ptr: int, tl: Any) -> None:
        tl.send("E", tl.full((64,), 5.0 + tl.program_id(0), "f32"))
        tl.recv("W", (64,), "f32", dst_addr=ptr, dst_space="hbm")
        tl.store(ptr, tl.load(ptr, (64,), "f32") + 10.0)

    assert run(engine, kernel, kind=kind) == [16.0, 15.0]


def test_a_receive_waits_until_what_it_overwrites_was_read(engine: GraphEngine) -> None:
    def kernel(ptr: int, tl: Any) -> None:
        tl.send("E", tl.full((64,), 5.0, "f32"))
        tl.barrier()
        tl.barrier()  # the message is there
        for _ in range(20):
            old = tl.load(ptr, (64,), "f32")
        tl.recv("W", (64,), "f32", dst_addr=ptr, dst_space="hbm")
        tl.store(ptr, old)

    assert run(engine, kernel) == [1.0, 2.0]


def test_an_address_in_the_tcm_is_sent_once_it_is_written(engine: GraphEngine) -> None:
    """``src_addr=`` knows nothing of the load that fills those bytes."""

    def kernel(ptr: int, tl: Any) -> None:
        mine = tl.load(ptr, (64,), "f32")
        tl.send("E", src_addr=mine.addr, shape=(64,), dtype="f32", space="tcm")
        tl.store(ptr, tl.recv("W", (64,), "f32"))

    assert run(engine, kernel) == [2.0, 1.0]


def test_a_receive_over_a_handle_comes_between_its_uses(engine: GraphEngine) -> None:
    """``dst_addr=`` names the bytes of ``mine``: commands before see the old ones, commands after the new ones."""

    def kernel(ptr: int, tl: Any) -> None:
        tl.send("E", tl.full((64,), 100.0, "f32"))
        tl.barrier()
        tl.barrier()
        mine = tl.load(ptr, (64,), "f32")
        doubled = mine * 2.0
        got = tl.recv("W", (64,), "f32", dst_addr=mine.addr, dst_space="tcm")
        tl.store(ptr, doubled + mine)
        del got

    assert run(engine, kernel) == [102.0, 104.0]
    copied = next(r for r in engine.op_log if r.kind == "math" and r.name == "cast")
    assert copied.order == "bytes"


def test_a_copy_keeps_what_a_receive_overwrites(engine: GraphEngine) -> None:
    """Of two copies of the same bytes, one comes before the receive that names them and one after."""

    def kernel(ptr: int, tl: Any) -> None:
        tl.send("E", tl.full((64,), 100.0, "f32"))
        mine = tl.load(ptr, (64,), "f32")
        before = tl.copy(mine)
        got = tl.recv("W", (64,), "f32", dst_addr=mine.addr, dst_space="tcm")
        after = tl.copy(mine)
        tl.store(ptr, before + after + tl.copy(got))

    assert run(engine, kernel) == [201.0, 202.0]
