"""What a verified run keeps of the data that its program copies in: what the machine holds, once."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np

from engine_support import machine
from kernbench.engine.engine import GraphEngine
from kernbench.messages.requests import MemoryWriteMsg
from kernbench.runtime_api.bench_runner import run_bench

COUNT, ELEMENTS = 16, 1 << 20
TENSORS_BYTES = COUNT * ELEMENTS * 2


def copies(torch: Any) -> None:
    """Tensors of 2 MiB; the program keeps none of the arrays that it copies in."""
    made = [torch.empty(ELEMENTS, dtype="f16").copy_(np.full(ELEMENTS, n, np.float16)) for n in range(COUNT)]
    assert [tensor[-1].item() for tensor in made] == list(range(COUNT))


def test_what_is_copied_in_is_there_once() -> None:
    """Arrays wait in the log until the replay puts them in memory, one after the other: never all of them in both."""
    topology = machine("sip.cube_mesh={w: 1, h: 1}", "system.sips.count=1")
    tracemalloc.start()
    try:
        result = run_bench(topology=topology, bench_fn=copies)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    result.raise_for_status()
    assert TENSORS_BYTES < peak < 1.25 * TENSORS_BYTES


def test_the_engine_lets_go_of_an_array_that_is_written() -> None:
    engine = GraphEngine(machine())
    raw = np.arange(64, dtype=np.uint8)
    handle = engine.submit(MemoryWriteMsg(pa=4096, nbytes=64, data=raw))
    engine.wait(handle)
    (record,) = engine.op_log.records
    assert record.data is raw
    assert np.array_equal(engine.read_memory(4096, 64), raw)
    assert record.data is None
    assert engine.machine.contents.host_arrays == {}
