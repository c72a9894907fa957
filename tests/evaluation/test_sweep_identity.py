"""What is said of a sweep that cannot be resumed, since it is another one."""

from __future__ import annotations

from typing import Any

import pytest

from kernbench.evaluation.sweep_journal import differences

WAS: dict[str, Any] = {
    "verify": True,
    "machine": "a digest",
    "ccl": {"algorithm": "ring", "algorithms": {"ring": {"n_slots": 4}}},
    "set": {"bench.k": 64},
    "grid": {"bench.m": [32, 64], "cube.hbm.slices": [8, 4]},
    "configuration": {"cube.hbm.slices": 8},
}


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ({"bench.m": [32, 64, 96], "cube.hbm.slices": [8, 4]}, ["axis bench.m has other values: 96 added"]),
        ({"bench.m": [64], "cube.hbm.slices": [8, 4]}, ["axis bench.m has other values: 32 removed"]),
        ({"bench.m": [32, 65], "cube.hbm.slices": [8, 4]}, ["axis bench.m has other values: 65 added, 64 removed"]),
        ({"bench.m": [32, 64]}, ["axis cube.hbm.slices is gone, it had 8, 4"]),
        (
            {"bench.m": [32, 64], "cube.hbm.slices": [8, 4], "bench.dtype": ["f16"]},
            ['axis bench.dtype is new: "f16"'],
        ),
        (
            {"bench.n": [32, 64], "cube.hbm.slices": [8, 4]},
            ["axis bench.m is gone, it had 32, 64", "axis bench.n is new: 32, 64"],
        ),
        (
            {"bench.m": [64, 32], "cube.hbm.slices": [8, 4]},
            ["axis bench.m has other values: the same in another order: it had 32, 64, has 64, 32"],
        ),
        (
            {"cube.hbm.slices": [8, 4], "bench.m": [32, 64]},
            ["the axes were in the order bench.m, cube.hbm.slices, are cube.hbm.slices, bench.m"],
        ),
        (
            {"bench.m": [32.0, 64], "cube.hbm.slices": [8, 4]},
            ["axis bench.m has other values: 32.0 added, 32 removed"],
        ),
        (WAS["grid"], []),
    ],
)
def test_axes(grid: dict[str, Any], said: list[str]) -> None:
    assert differences(WAS, WAS | {"grid": grid}) == said


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("verify", False, ["verify was true, is false"]),
        ("machine", "another digest", []),  # said by parameter
        ("configuration", {"cube.hbm.slices": 16}, ["cube.hbm.slices was 8, is 16"]),
        ("set", {"bench.n": 64}, ["set bench.k is gone, it was 64", "set bench.n is new: 64"]),
        (
            "ccl",
            {"algorithm": "ring", "algorithms": {"ring": {"n_slots": 8}}},
            ["ccl.algorithms.ring.n_slots was 4, is 8"],
        ),
        ("ccl", "x", ['ccl was {"algorithm": "ring", "algorithms": {"ring": {"n_slots": 4}}}, is "x"']),
        ("other", 3, ["other is new: 3"]),
    ],
)
def test_other_parameters(key: str, value: object, said: list[str]) -> None:
    assert differences(WAS, WAS | {key: value}) == said


def test_many_values_are_cut() -> None:
    grid = WAS["grid"] | {"bench.m": list(range(1000))}
    said = differences(WAS, WAS | {"grid": grid})
    assert said == ["axis bench.m has other values: 0, 1, 2, 3, 4, 5, 6, …, 999 added"]
