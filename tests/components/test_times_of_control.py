"""How long launches, barriers and fills take on the skewed machine: messages from CPU to CPU, each handled in turn."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from queue_support import launch

from kernbench.common.units import ps_to_ns
from kernbench.engine.engine import GraphEngine
from kernbench.messages.requests import MemoryWriteMsg, PeCoord
from kernbench.policy.address.phyaddr import PhysAddr
from skewed import skewed, way

HEADER = 24
IO_CPU_NS, M_CPU_NS, PE_CPU_NS = 11.9, 5.3, 0.9
LAUNCH_NS = 6.7
SLACK_NS = 0.1
"""Rounding, of some tens of links"""


def header_ns(src: str, dst: str) -> float:
    return way(skewed(), src, dst).ns(HEADER)


def nothing(*, tl: Any) -> None:
    """No command."""


def meet(*, tl: Any) -> None:
    tl.barrier()


@pytest.mark.parametrize("pe", [(0, 0, 0), (0, 4, 2), (2, 2, 3)])
def test_a_launch_goes_from_cpu_to_cpu_and_back(pe: PeCoord) -> None:
    sip, cube = f"sip{pe[0]}", f"sip{pe[0]}.cube{pe[1]}"
    io_cpu, m_cpu, pe_cpu = f"{sip}.io_cpu", f"{cube}.m_cpu", f"{cube}.pe{pe[2]}.pe_cpu"
    down = header_ns("host", io_cpu) + IO_CPU_NS + header_ns(io_cpu, m_cpu) + M_CPU_NS + header_ns(m_cpu, pe_cpu)
    up = header_ns(pe_cpu, m_cpu) + M_CPU_NS + header_ns(m_cpu, io_cpu) + IO_CPU_NS + header_ns(io_cpu, "host")
    (trace,) = launch(GraphEngine(skewed(), enable_data=False), nothing, pes=[pe])
    assert trace.pe_exec_ns == {pe: pytest.approx(LAUNCH_NS, abs=0.001)}
    assert trace.total_ns == pytest.approx(down + PE_CPU_NS + LAUNCH_NS + up, abs=SLACK_NS)


def handled_at(arrivals: Iterable[float], each_ns: float) -> float:
    """When a CPU has handled the last of some messages, one after another."""
    free = 0.0
    for came in sorted(arrivals):
        free = max(free, came) + each_ns
    return free


def test_all_pes_of_a_sip_start_when_the_last_can() -> None:
    """Orders leave an IO_CPU and an M_CPU one behind the other; reports are handled one after another, on both."""
    pes = [(1, cube, pe) for cube in range(6) for pe in range(4)]
    starts: list[float] = []
    reports: list[float] = []
    for i in range(6):
        cpus = [f"sip1.cube{i}.pe{j}.pe_cpu" for j in range(4)]
        m_cpu = f"sip1.cube{i}.m_cpu"
        there = way(skewed(), "sip1.io_cpu", m_cpu)
        for j, cpu in enumerate(cpus):
            on = way(skewed(), m_cpu, cpu)
            behind = i * HEADER / there.narrowest_gbs + j * HEADER / on.narrowest_gbs
            starts.append(there.ns(HEADER) + M_CPU_NS + on.ns(HEADER) + PE_CPU_NS + behind)
        reports.append(handled_at((header_ns(cpu, m_cpu) for cpu in cpus), M_CPU_NS) + header_ns(m_cpu, "sip1.io_cpu"))
    down = header_ns("host", "sip1.io_cpu") + IO_CPU_NS + max(starts)
    up = handled_at(reports, IO_CPU_NS) + header_ns("sip1.io_cpu", "host")
    (trace,) = launch(GraphEngine(skewed(), enable_data=False), nothing, pes=pes)
    assert trace.late_pes == ()
    # Reports that come at once wait for each other on the last link.
    assert trace.total_ns == pytest.approx(down + LAUNCH_NS + up, abs=3 * HEADER / 211)


def test_a_barrier_of_one_is_the_way_to_the_m_cpu_and_back() -> None:
    pe, m_cpu, pe_cpu = (0, 3, 2), "sip0.cube3.m_cpu", "sip0.cube3.pe2.pe_cpu"
    wanted = LAUNCH_NS + header_ns(pe_cpu, m_cpu) + M_CPU_NS + header_ns(m_cpu, pe_cpu) + PE_CPU_NS
    (trace,) = launch(GraphEngine(skewed(), enable_data=False), meet, pes=[pe])
    assert trace.pe_exec_ns[pe] == pytest.approx(wanted, abs=SLACK_NS)


def test_the_m_cpu_handles_those_who_meet_in_turn() -> None:
    pes = [(0, 3, pe) for pe in range(4)]
    cpus = [f"sip0.cube3.pe{pe}.pe_cpu" for pe in range(4)]
    m_cpu = "sip0.cube3.m_cpu"
    free = handled_at((header_ns(cpu, m_cpu) for cpu in cpus), M_CPU_NS)
    wanted = LAUNCH_NS + free + max(header_ns(m_cpu, cpu) for cpu in cpus) + PE_CPU_NS
    (trace,) = launch(GraphEngine(skewed(), enable_data=False), meet, pes=pes)
    # Releases leave one behind the other: at most three headers on one link.
    assert wanted - SLACK_NS <= max(trace.pe_exec_ns.values()) <= wanted + 3 * HEADER / 211 + SLACK_NS


def fills_end_at(slices: list[int]) -> list[float]:
    """When 80-byte fills of slices of one cube end, submitted at once."""
    engine = GraphEngine(skewed(), enable_data=False)
    handles = []
    for index in slices:
        start = PhysAddr.pe_hbm_addr(0, 0, 4, index, 0, 5 << 30).encode()
        pa = start + -start % 80
        handles.append(engine.submit(MemoryWriteMsg(pa=pa, nbytes=80, pattern=b"\x01")))
    for handle in handles:
        engine.wait(handle)
    return [ps_to_ns(handle.ended_ps - handle.submitted_ps) for handle in handles]


M_CPU, IO_CPU = "sip0.cube4.m_cpu", "sip0.io_cpu"


def fill_ns(index: int) -> float:
    """A fill by the DMA of the M_CPU: the bytes there, all on one channel, the access, an acknowledgement."""
    hbm = f"sip0.cube4.hbm{index}"
    there, back = way(skewed(), M_CPU, hbm), way(skewed(), hbm, M_CPU)
    own = 80 / (281 / 16 * 0.83)
    return there.head_ns + max(own, 80 / there.narrowest_gbs) + 33.1 + back.ns(HEADER)


def test_a_fill_is_done_in_the_cube() -> None:
    (found,) = fills_end_at([7])
    down = header_ns("host", IO_CPU) + IO_CPU_NS + header_ns(IO_CPU, M_CPU) + M_CPU_NS
    up = header_ns(M_CPU, IO_CPU) + IO_CPU_NS + header_ns(IO_CPU, "host")
    assert found == pytest.approx(down + fill_ns(7) + up, abs=SLACK_NS)


def test_an_m_cpu_has_four_channels_for_fills() -> None:
    """Orders come from the IO_CPU every 11.9 ns: four fills begin as they come, the fifth when the first is over."""
    slices = [8, 7, 6, 5, 4]
    assert fill_ns(8) > 4 * IO_CPU_NS  # else the fifth would find a channel
    found = fills_end_at(slices)
    alone = [fills_end_at([index])[0] for index in slices]
    ends = [alone[i] + i * IO_CPU_NS for i in range(4)]
    ends.append(alone[0] + fill_ns(4) + HEADER / 211)  # behind the report of the first
    assert found == pytest.approx(ends, abs=SLACK_NS)


def test_a_value_takes_its_time() -> None:
    """Three of a handle that is there: so many times 2.6 ns."""

    def look(reads: int, *, tl: Any) -> None:
        x = tl.wait(tl.zeros(4, "f32"))
        for _ in range(reads):
            tl.value(x)

    spent = []
    for reads in (0, 3):
        (trace,) = launch(GraphEngine(skewed()), look, reads, pes=[(0, 0, 0)])
        spent.append(trace.pe_exec_ns[0, 0, 0])
    assert spent[1] - spent[0] == pytest.approx(3 * 2.6, abs=0.001)
