"""``kernbench compare``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
EFFICIENCY = "cube.components.hbm_ctrl.attrs.efficiency"
SMALL = ("--set", "sip.cube_mesh.w=1", "--set", "sip.cube_mesh.h=1", "--set", "system.sips.count=1")
SIZES = tuple(text for name in "mkn" for text in ("--set", f"bench.{name}=64"))


@pytest.fixture
def runs(kernbench: Run, tmp_path: Path) -> tuple[str, str]:
    """A run with HBM at 40 % of its rate and one at 80 %."""
    for name, efficiency in (("slow", 0.4), ("fast", 0.8)):
        change = ("--set", "cube.hbm.timing=ideal", "--set", f"{EFFICIENCY}={efficiency}")
        ran = kernbench("run", "--bench", "gemm-single-pe", "--json", "--explain", *SMALL, *SIZES, *change)
        (tmp_path / f"{name}.json").write_text(ran.out)
    return "slow.json", "fast.json"


def test_two_runs(kernbench: Run, runs: tuple[str, str]) -> None:
    ran = kernbench("compare", *runs)
    assert ran.code == 0
    assert f"what differs: {EFFICIENCY} 0.4 → 0.8" in ran.out
    first, *lines = ran.out.splitlines()
    assert first.startswith("B takes ")
    assert "bound by latency: HBM in both; HBM −" in first
    assert [line.partition(":")[0] for line in lines[:4]] == ["what differs", "latency", "verdict", "stages, in ns"]
    assert "…" not in ran.out


def test_what_was_used_of_the_machine(kernbench: Run) -> None:
    ran = kernbench("run", "--bench", "gemm-single-pe", "--json", *SIZES)
    used = json.loads(ran.out)["used"]
    parts = used.pop("parts")
    assert used == {"sips": 1, "cubes": 1, "pes": 1, "slices": 1, "within": "sip0.cube0"}
    assert {"pe_gemm", "f16", "hbm_ctrl", "noc"} <= set(parts)
    assert not {"pe_math", "cube_to_cube", "sip_to_sip", "sram", "f32"} & set(parts)


def test_two_runs_as_json(kernbench: Run, runs: tuple[str, str]) -> None:
    ran = kernbench("compare", *runs, "--json")
    document = json.loads(ran.out)
    assert document["differing"] == [{"path": EFFICIENCY, "a": [0.4], "b": [0.8], "unused": ""}]
    assert document["stages"][0]["name"] == document["moves"][0]["stages"][0]["name"] == "HBM"
    assert document["pairs"][0]["bounds"] == ["latency: HBM", "latency: HBM"]
    assert document["verdict"][0].startswith("B takes ")
    assert kernbench("compare", *runs, "--json").out == ran.out


def test_runs_that_nobody_explained(kernbench: Run, tmp_path: Path) -> None:
    for name in ("a", "b"):
        ran = kernbench(
            "run",
            "--bench",
            "gemm-single-pe",
            "--json",
            "--no-observe",
            *SMALL,
            *SIZES,
            "--set",
            f"bench.m={64 + ord(name)}",
        )
        (tmp_path / f"{name}.json").write_text(ran.out)
    ran = kernbench("compare", "a.json", "b.json")
    assert ran.code == 0
    assert "phase launch" in ran.out
    assert "what differs: bench.m 161 → 162" in ran.out


def test_bad_input(kernbench: Run, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    for arguments, message in (
        (("none", "x.json"), "none: no such file"),
        (("x.json", "x.json"), "not an output of kernbench"),
    ):
        ran = kernbench("compare", *arguments)
        assert (ran.code, ran.out) == (2, "")
        assert message in ran.err
        assert "Traceback" not in ran.err
