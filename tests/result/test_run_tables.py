"""Tables of a run: their columns as data, and their lines on the terminal."""

from __future__ import annotations

from kernbench.observe.statistics import EngineUsage, LinkTraffic, QueueTraffic, QueueUse, TimeShare
from kernbench.probe.report import LinkLoad
from kernbench.result import run_tables as tables
from kernbench.runtime_api.arrays import Tolerance
from kernbench.runtime_api.bench_runner import PhaseSummary
from kernbench.runtime_api.launch_report import LaunchSplit
from kernbench.runtime_api.operators import OperatorUse
from kernbench.runtime_api.testing import Comparison

LAUNCH = LaunchSplit(
    name="k",
    title="k (ring)",
    algorithm="ring",
    launches=3,
    pe_count=2,
    late_pes=1,
    total_ns=100.0,
    before_ns=10.0,
    kernel_ns=80.0,
    after_ns=10.0,
    slowest=(0, 1, 2),
    slowest_ns=50.0,
    shares=(TimeShare("MATH", 49.9), TimeShare("GEMM", 0.1)),
    blocks=("8×8×8",),
)


def cells(table: tables.Table[object]) -> list[tuple[str, ...]]:
    return [line.cells for line in table.lines()]


def test_phases() -> None:
    phase = PhaseSummary(phase="launch", requests=1200, nbytes=0, busy_ns=50.0, longest_ns=1.5)
    table = tables.phases_table([phase], 100.0)
    assert table.to_dicts() == [{"phase": "launch", "requests": 1200, "nbytes": 0, "busy_ns": 50.0, "longest_ns": 1.5}]
    assert cells(table) == [("launch: kernels", "1,200", "", "50.000", "50.0%", "1.500", "█" * 12)]
    assert cells(tables.phases_table([phase], 0.0))[0][4] == "0.0%"


def test_launches() -> None:
    assert tables.launches_table([LAUNCH]).to_dicts() == [
        {
            "name": "k",
            "algorithm": "ring",
            "launches": 3,
            "pes": 2,
            "total_ns": 100.0,
            "before_ns": 10.0,
            "kernel_ns": 80.0,
            "after_ns": 10.0,
            "slowest_pe": "sip0.cube1.pe2",
            "slowest_ns": 50.0,
            "late_pes": 1,
        }
    ]
    table = tables.launch_table(LAUNCH)
    assert table.title == "Launch 'k (ring)' on 2 PEs, the longest of 3"
    assert [row.label.strip() for row in table][2:] == [
        "the longest, sip0.cube1.pe2",
        "MATH",
        "anything else",
        "control path: PEs to host",
        "launch",
        "products by blocks of 8×8×8",
        "PEs that got the order after the common start: 1",
    ]
    assert cells(table)[1] == ("kernels: first start to last end", "80.000", "80.0%", "███████████████████▎")
    assert cells(table)[-1][1:] == ("", "", "")


def test_engines() -> None:
    table = tables.engines_table(
        [EngineUsage(engine="GEMM", pes=2, records=1000, busy_ns=300.0, window_ns=400.0, occupancy=0.375)]
    )
    assert table.to_dicts() == [{"engine": "GEMM", "pes": 2, "operations": 1000, "busy_ns": 300.0, "occupancy": 0.375}]
    assert cells(table) == [("GEMM", "2", "1,000", "150.000", "37.5%", "█" * 9)]


def test_links_of_runs_and_probes() -> None:
    links = [LinkTraffic("a", f"b{at}", 2048, 5.0, 0.5, 64.0, 1024) for at in range(10)]
    table = tables.links_table(links)
    assert list(table.columns) == ["src", "dst", "bw_gbs", "nbytes", "busy_ns", "utilisation", "peak_fifo_bytes"]
    assert (len(table), len(cells(table))) == (10, tables.MOST_LINKS)
    assert cells(table)[0] == ("a", "b0", "64", "2 KiB", "50.0%", "1 KiB", "█" * 12)
    load = tables.links_table(
        [LinkLoad(src="a", dst="b", nbytes=2048, bw_gbs=64.0, utilisation=0.5)], "stream", LinkLoad, None
    )
    assert cells(load) == [("a", "b", "64", "2 KiB", "50.0%", "█" * 12)]


def test_queues() -> None:
    rows = [QueueTraffic((0, 0, at), (QueueUse("E", 2, 64 * at), QueueUse("W", 1, 0)), 1.5) for at in range(10)]
    table = tables.queues_table(rows)
    assert (len(table), len(cells(table))) == (10, tables.MOST_QUEUES)
    assert cells(table)[0] == ("sip0.cube0.pe9", "3", "576 B", "1.500", "E 2 (576 B), W 1 (0 B)")


def test_operators() -> None:
    table = tables.operators_table([OperatorUse("mm", 2, 4, 75.0), OperatorUse("sort", 1, 0, 25.0, False)], 1)
    assert table.title == "Operators: 100 ns in all  (the longest of 2)"
    assert cells(table) == [("mm", "2", "4", "75", "75.0%", "█" * 18)]
    ranks = tables.operators_table([OperatorUse("mm", 2, 4, 75.0, rank_ns=(40.0, 35.0))])
    assert ranks.title == "Operators: 75 ns in all, over 2 ranks, with their waits for collectives"
    everything = tables.operators_table(table.rows)
    assert [(line.cells[0], line.style) for line in everything.lines()] == [
        ("mm", ""),
        ("sort (unmodelled)", "bold red"),
    ]


def test_comparisons() -> None:
    table = tables.comparisons_table([Comparison(name="c", elements=8, wrong=1, tolerance=Tolerance(1e-3, 1e-5))])
    (row,) = table.to_dicts()
    assert list(row) == [
        *("name", "passed", "elements", "wrong", "max_abs_error", "max_rel_error", "rtol", "atol", "reason")
    ]
    assert (row["passed"], row["rtol"], row["atol"]) == (False, 1e-3, 1e-5)
