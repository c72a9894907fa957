"""What a verified run keeps of the data that its program copies in: what the machine holds, once."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

from engine_support import machine
from ideal_memory import IDEAL
from kernbench.engine.engine import GraphEngine
from kernbench.messages.requests import MemoryWriteMsg
from kernbench.runtime_api.bench_runner import run_bench

COUNT, ELEMENTS = 16, 1 << 20
TENSORS_BYTES = COUNT * ELEMENTS * 2


def copies(torch: Any) -> None:
    """Tensors of 2 MiB; the program keeps none of the arrays that it copies in."""
    made = [torch.empty(ELEMENTS, dtype="f16").copy_(np.full(ELEMENTS, n, np.float16)) for n in range(COUNT)]
    assert [tensor[-1].item() for tensor in made] == list(range(COUNT))


def peak_of(bench: Callable[[Any], None]) -> int:
    """The most bytes of the host that were in use at once, on a machine of one cube, whose memory has no banks."""
    topology = machine("sip.cube_mesh={w: 1, h: 1}", "system.sips.count=1", *IDEAL)
    tracemalloc.start()
    try:
        result = run_bench(topology=topology, bench_fn=bench)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    result.raise_for_status()
    return peak


def test_what_is_copied_in_is_there_once() -> None:
    """Arrays wait in the log until the replay hands them to memory, which keeps them."""
    assert TENSORS_BYTES < peak_of(copies) < 1.15 * TENSORS_BYTES


def loads(torch: Any) -> None:
    """The same tensors, six of which one PE has in its TCM at once; one is compared."""
    made = [torch.empty(ELEMENTS, dtype="f16").copy_(np.full(ELEMENTS, n, np.float16)) for n in range(COUNT)]

    def kernel(*pointers: int, tl: Any) -> None:
        loaded = [tl.load(pointer, (ELEMENTS,), "f16") for pointer in pointers]
        tl.store(pointers[0], loaded[-1])

    torch.launch("loads", kernel, *made[:6])
    torch.testing.assert_close(made[0], lambda: np.full(ELEMENTS, 5, np.float16))


def test_what_is_loaded_is_there_once() -> None:
    """Six loads of 2 MiB take nothing more; the tensor that is stored to, its expected values and f64 blocks do."""
    assert TENSORS_BYTES < peak_of(loads) < 1.35 * TENSORS_BYTES


def fills(torch: Any) -> None:
    assert torch.full((COUNT * ELEMENTS,), 3, dtype="f16")[-1].item() == 3


def test_a_fill_takes_its_bytes_once_more_while_they_are_made() -> None:
    """The tensor itself, what is written to it, and a copy of that without its last repetition cut."""
    assert TENSORS_BYTES < peak_of(fills) < 3.1 * TENSORS_BYTES


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
