"""The time of a slice by cause: turnarounds and refresh, by hand and beside a machine without refresh."""

from __future__ import annotations

import pytest

from engine_support import hbm, machine
from kernbench.engine.engine import GraphEngine
from kernbench.messages.requests import PeDmaMsg
from kernbench.observe.slices import SliceTime
from kernbench.observe.trace_log import TraceLog
from kernbench.runtime_api.run_explanation import explain_run
from kernbench.topology.hbm_refresh import refresh_clock
from path_support import SMALL

KIB = 1 << 10


def slice_of(refresh: str, moves: list[tuple[int, str]], start_ns: float = 0.0) -> tuple[SliceTime, GraphEngine]:
    """Return the use of slice 0 from ``start_ns`` on, in which a PE moves bytes by one descriptor after the other."""
    log = TraceLog()
    engine = GraphEngine(machine(*SMALL, f"cube.hbm.refresh={refresh}"), enable_data=False, observers=[log])
    engine.run_until(start_ns)
    for at, (nbytes, op) in enumerate(moves):
        message = PeDmaMsg(pe=(0, 0, 0), pa=hbm(0, 0, 0, at << 20), nbytes=nbytes, op=op)  # type: ignore[arg-type]
        engine.wait(engine.submit(message))
    (slice_time,) = explain_run(log, engine.handles, start_ns, engine.now).slices
    return slice_time, engine


MOVES = [(64 * KIB, "write"), (16 * KIB, "read")] * 6


def test_spread_refresh_is_a_share_of_all_work() -> None:
    (plain, _), (spread, engine) = (slice_of(refresh, MOVES) for refresh in ("none", "spread"))
    share = engine.machine.spec.cube.hbm.banks.refresh_share  # type: ignore[union-attr]
    assert 0.05 < share < 0.15
    assert plain.refresh_ps == 0
    assert plain.turnarounds_ps > 0
    assert (spread.bursts, spread.data_ps) == (plain.bursts, plain.data_ps)
    assert spread.turnarounds_ps == pytest.approx(plain.turnarounds_ps, rel=0.05)
    lengthened = spread.data_ps + spread.turnarounds_ps
    assert spread.refresh_ps == pytest.approx(lengthened * share / (1 - share), rel=0.02)


@pytest.mark.parametrize("outages", [0, 1])
def test_a_refresh_of_all_banks_counts_if_it_begins_during_a_grant(outages: int) -> None:
    """A read of 64 KiB takes 320 ns. It begins behind the first refresh, or 200 ns before it."""
    clock = refresh_clock(machine(*SMALL).spec.cube.hbm.banks)  # type: ignore[arg-type]
    start_ps = clock.period_ps + 2 * clock.outage_ps if not outages else clock.period_ps - 200_000
    slice_time, _ = slice_of("all-bank", [(64 * KIB, "read")], start_ps / 1000)
    assert slice_time.refresh_ps == outages * clock.outage_ps
