"""A memory at ``cube.extra`` or ``pe.extra``, as host programs and kernels use it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernbench.common.errors import AddressFaultError, UnknownNameError, UnsupportedError
from kernbench.engine.engine import GraphEngine
from kernbench.messages.requests import MemoryReadMsg, MemoryWriteMsg
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.component import Memory, MemoryAccess
from kernbench.topology.builder import resolve_topology


class Plain(Memory):
    """Any access takes 10 ns."""

    def serve(self, access: MemoryAccess) -> float:
        return 10.0


SCRATCH, PAD = "sip0.cube0.scratch", "sip0.cube0.pe1.pad"
MACHINE = resolve_topology(
    "default",
    (
        "system.sips={count: 1, topology: ring_1d}",
        "sip.cube_mesh={w: 1, h: 1}",
        "cube.extra.scratch={impl: test_extra_memories.Plain, bytes: 1MiB, links: [{to: sram, bw_gbs: 64}]}",
        "pe.extra.pad={impl: test_extra_memories.Plain, bytes: 64KiB, links: [{to: pe_dma, bw_gbs: 64}]}",
        "pe.extra.other={impl: kernbench.sim_engine.component.Component, links: [{to: pe_dma, bw_gbs: 64}]}",
    ),
)


def through(x_ptr: int, ptr: int, *, tl: Any) -> None:
    """Adds one, by way of ``ptr``."""
    tl.store(ptr, tl.load(x_ptr, 16, "f32") + 1.0)
    tl.store(x_ptr, tl.load(ptr, 16, "f32"))


def beyond(ptr: int, *, tl: Any) -> None:
    """Reads one element too many."""
    tl.load(ptr, (64 << 10) // 4 + 1, "f32")


@pytest.mark.parametrize("part", [SCRATCH, PAD])
def test_kernels_use_it_by_address(part: str) -> None:
    with RuntimeContext(GraphEngine(MACHINE)) as torch:
        x = torch.zeros(16)
        ptr = torch.map_memory(part)
        torch.launch("through", through, x, ptr)
        assert torch.map_memory(part) == ptr  # it is mapped once
        assert np.array_equal(x.numpy(), np.ones(16))
        pa, _ = torch.engine.addresses_of(part)
        assert np.array_equal(torch.engine.read_memory(pa, 64).view(np.float32), np.ones(16))


@pytest.mark.parametrize("part", [SCRATCH, PAD])
def test_the_host_copies_to_and_from_it(part: str) -> None:
    engine = GraphEngine(MACHINE)
    pa, nbytes = engine.addresses_of(part)
    data = np.arange(4096, dtype=np.uint8)
    engine.wait(engine.submit(MemoryWriteMsg(pa=pa + nbytes - 4096, nbytes=4096, data=data)))
    assert np.array_equal(engine.read_memory(pa + nbytes - 4096, 4096), data)
    before = engine.now
    engine.wait(engine.submit(MemoryReadMsg(pa=pa, nbytes=4096)))
    assert engine.now > before


def test_what_ends_at_its_end_is_told_so() -> None:
    engine = GraphEngine(MACHINE)
    with RuntimeContext(engine) as torch:
        ptr = torch.map_memory(PAD)
        x = torch.zeros(1)
        with pytest.raises(AddressFaultError, match=rf"runs 4 bytes past the end of tensor '{PAD}'"):
            torch.launch("beyond", lambda x, ptr, *, tl: beyond(ptr, tl=tl), x, ptr)


def test_the_end_of_the_program_takes_it_off() -> None:
    engine = GraphEngine(MACHINE)
    found = set()
    for _ in range(2):
        with RuntimeContext(engine) as torch:
            found.add(torch.map_memory(SCRATCH))
    assert len(found) == 1  # its virtual addresses were free again


def maps_and_fails(engine: GraphEngine) -> None:
    with RuntimeContext(engine) as torch:
        raise ValueError(torch.map_memory(SCRATCH))


def test_an_error_of_the_program_takes_it_off_too() -> None:
    engine = GraphEngine(MACHINE)
    with pytest.raises(ValueError) as caught:
        maps_and_fails(engine)
    with RuntimeContext(engine) as torch:
        assert torch.map_memory(SCRATCH) == caught.value.args[0]


def test_only_extra_memories_are_asked_for_so() -> None:
    with RuntimeContext(GraphEngine(MACHINE)) as torch:
        for part in ("sip0.cube0.sram", "sip0.cube0.pe0.other"):
            with pytest.raises(UnsupportedError, match="it is no extra part with bytes"):
                torch.map_memory(part)
        with pytest.raises(UnknownNameError, match="unknown part of the machine"):
            torch.map_memory("scratch")
