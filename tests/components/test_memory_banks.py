"""Banks of SRAM and TCM, by hand: packets of 1 KiB take 10 ps, turns are of two packets."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_support import two_cubes
from kernbench.components.memory_server import BankedServer, Job
from kernbench.core.clock import Clock
from kernbench.engine.engine import GraphEngine
from kernbench.messages.fabric import Access
from kernbench.messages.requests import PeDmaMsg
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.topology.fields import BankedSpec
from kernbench.transport import Pace

PACKET, EACH = 1024, 10


class Probe(Job):
    """When each of its packets was served; what was promised may be cut."""

    __slots__ = ("starts",)

    def __init__(self, packets: int) -> None:
        super().__init__(packets, Pace(EACH, EACH))
        self.starts: list[int] = []

    def begin(self, first: int, count: int, start: int) -> None:
        assert first == len(self.starts)
        self.starts += [start + n * EACH for n in range(count)]

    def cut(self, count: int) -> None:
        del self.starts[count:]


def serve(banks: int, bank_kib: int, *arrivals: tuple[int, int, int]) -> list[list[int]]:
    """When the packets begin of accesses given as (arrival, address in KiB, KiB)."""
    clock = Clock()
    memory = BankedServer(clock, 2, PACKET, BankedSpec(banks=banks, bank_bytes=bank_kib * PACKET))
    jobs = [Probe(kib) for _, _, kib in arrivals]
    for (when, at, kib), job in zip(arrivals, jobs, strict=True):
        clock.call_at(when, memory.banks_of(Access(at * PACKET, kib * PACKET)).submit, job)
    clock.advance()
    return [job.starts for job in jobs]


@pytest.mark.parametrize(
    ("arrivals", "starts"),
    [
        # Alone over both banks: one packet after the other.
        ([(0, 0, 8)], [[0, 10, 20, 30, 40, 50, 60, 70]]),
        # One bank: in turn, by two packets.
        ([(0, 0, 4), (0, 8, 4)], [[0, 10, 40, 50], [20, 30, 60, 70]]),
        # Different banks: side by side.
        ([(0, 0, 4), (0, 4, 4)], [[0, 10, 20, 30], [0, 10, 20, 30]]),
        # The second begins behind the first, which leaves the bank at 40 for the other one.
        ([(0, 0, 8), (30, 0, 4)], [[0, 10, 20, 30, 40, 50, 60, 70], [40, 50, 60, 70]]),
        # The first comes to the second bank at 40, where the other one's turn ends at 45.
        ([(0, 0, 8), (25, 4, 4)], [[0, 10, 20, 30, 45, 55, 85, 95], [25, 35, 65, 75]]),
    ],
)
def test_two_banks_of_4_kib(arrivals: list[tuple[int, int, int]], starts: list[list[int]]) -> None:
    assert serve(2, 4, *arrivals) == starts


def test_rows_lie_where_they_begin() -> None:
    """Two rows of 1 KiB, 8 KiB apart, are in one bank of two; 4 KiB apart in both."""
    memory = BankedServer(Clock(), 2, PACKET, BankedSpec(banks=2, bank_bytes=4 * PACKET))
    one = memory.banks_of(Access(0, PACKET))
    assert memory.banks_of(Access(0, PACKET, 2, 8 * PACKET)) is one
    assert memory.banks_of(Access(0, PACKET, 2, 4 * PACKET)) is not one


@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 20), st.integers(1, 9)), min_size=1, max_size=8),
)
def test_no_bank_serves_two_packets_at_once(banks: int, bank_kib: int, arrivals: list[tuple[int, int, int]]) -> None:
    """So no memory is faster than its banks together, and no access faster than the bandwidth; all are served."""
    of_bank: dict[int, list[int]] = {}
    for (when, at, kib), starts in zip(arrivals, serve(banks, bank_kib, *arrivals), strict=True):
        assert len(starts) == kib
        assert starts[0] >= when
        assert all(b - a >= EACH for a, b in pairwise(starts))
        for n, start in enumerate(starts):
            of_bank.setdefault((at + n) // bank_kib % banks, []).append(start)
    for starts in of_bank.values():
        assert all(b - a >= EACH for a, b in pairwise(sorted(starts)))


def ends(offsets: tuple[int, int], op: str, space: str, *overrides: str) -> list[int]:
    """When 8 KiB each at two offsets of a memory have been moved by two PEs, begun at once."""
    engine = GraphEngine(two_cubes(*overrides), enable_data=False)
    at = PhysAddr.cube_sram_addr if space == "sram" else lambda *where: PhysAddr.pe_tcm_addr(*where[:3], 5, where[3])
    handles = [
        engine.submit(PeDmaMsg(pe=(0, 0, pe), pa=at(0, 0, 0, offset).encode(), nbytes=8192, op=op))  # type: ignore[arg-type]
        for pe, offset in zip((0, 1), offsets, strict=True)
    ]
    engine.drain()
    return [handle.ended_ps - handle.submitted_ps for handle in handles]


@pytest.mark.parametrize("op", ["read", "write"])
@pytest.mark.parametrize(
    ("space", "slow", "banked"),
    [
        ("sram", "cube.components.sram.attrs.bw_gbs=32", "cube.sram={bytes: 32MiB, banks: 2, bank_bytes: 8KiB}"),
        ("tcm", "pe.tcm={bytes: 16MiB, scheduler_reserved_bytes: 4MiB, read_bw_gbs: 32, write_bw_gbs: 32}", ""),
    ],
)
def test_two_pes_at_one_memory(op: str, space: str, slow: str, banked: str) -> None:
    """8 KiB take 256 ns at 32 GB/s, links of 256 GB/s 32 ns: in two banks nobody waits, in one bank they take turns."""
    two = (slow, banked) if banked else (slow.replace("}", ", banks: 2, bank_bytes: 8KiB}"),)
    apart, together = ends((0, 8192), op, space, *two), ends((0, 16384), op, space, *two)
    assert together == ends((0, 16384), op, space, slow) == ends((0, 8192), op, space, slow)
    assert max(together) - min(apart) > 200_000
    assert max(apart) - min(apart) < 50_000


def test_an_access_alone_takes_as_long_with_any_number_of_banks() -> None:
    def alone(op: str, *overrides: str) -> int:
        engine = GraphEngine(two_cubes("cube.components.sram.attrs.bw_gbs=32", *overrides), enable_data=False)
        pa = PhysAddr.cube_sram_addr(0, 0, 0, 512).encode()
        handle = engine.submit(PeDmaMsg(pe=(0, 0, 0), pa=pa, nbytes=20_000, op=op))  # type: ignore[arg-type]
        engine.wait(handle)
        return handle.ended_ps

    for op in ("read", "write"):
        assert alone(op, "cube.sram={bytes: 32MiB, banks: 4, bank_bytes: 2KiB}") == alone(op)
