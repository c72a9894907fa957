"""The bandwidth of DDR5, LPDDR5 and HBM4 beside a cycle-accurate simulator's, in points of peak."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean

import pytest

from kernbench.probe.memory_case import saturate, slices_of
from kernbench.topology.hbm_spec import HbmSpec

Row = tuple[str, str, str, str, float]
"""Timing, mapping, refresh, pattern, percent of peak"""
ROWS: list[Row] = [
    tuple(row) for row in json.loads((Path(__file__).parents[1] / "data" / "memory_rows.json").read_text())["rows"]
]
WRITES_OF_A_GROUP: dict[tuple[str, str], float] = {
    ("RoBaRaCoCh", "seq_write"): 1.0,
    ("RoBaRaCoCh", "random_1KB_0099"): 5.0,
    ("interleave", "random_256B_5050"): 5.0,
    ("interleave", "streams_2_64B_16MB_1write"): 5.0,
}
"""Patterns of DDR5 that tCCD_L_WR decides, and how close they are in points"""
ROWS_ON_THE_BUS: dict[str, float] = {"random_64B": 2.0, "random_1KB_5050": 2.0, "random_512B_5050": 5.0}
"""Patterns of LPDDR5 that the bus of all commands slows, and how close they are in points"""


def error_of(row: Row) -> float:
    timing, mapping, refresh, pattern, percent = row
    keys = {"slices": 8, "bytes_per_slice": 6 << 30, "num_pcs": 2, "quantum_bytes": 2048}
    hbm = HbmSpec.model_validate(keys | {"timing": timing, "mapping": mapping, "refresh": refresh})
    return saturate(slices_of(hbm)[0], pattern, 1, 4000).figures.efficiency_pct - percent


@pytest.mark.parametrize("case", WRITES_OF_A_GROUP, ids=" ".join)
def test_writes_of_a_group_of_ddr5(case: tuple[str, str]) -> None:
    (row,) = [row for row in ROWS if row[0] == "ddr5" and (row[1], row[3]) == case]
    assert abs(error_of(row)) <= WRITES_OF_A_GROUP[case]


@pytest.mark.parametrize("pattern", ROWS_ON_THE_BUS)
def test_commands_of_lpddr5_share_a_bus(pattern: str) -> None:
    (row,) = [row for row in ROWS if row[0] == "lpddr5" and row[3] == pattern]
    assert abs(error_of(row)) <= ROWS_ON_THE_BUS[pattern]


@pytest.mark.slow
@pytest.mark.parametrize(("timing", "most", "in_mean"), [("hbm4", 7, 2.5), ("lpddr5", 12, 3.0), ("ddr5", 15, 4.5)])
def test_all_rows(timing: str, most: float, in_mean: float) -> None:
    errors = {row[1:4]: error_of(row) for row in ROWS if row[0] == timing}
    assert mean(map(abs, errors.values())) <= in_mean
    assert {case: error for case, error in errors.items() if abs(error) > most} == {}
