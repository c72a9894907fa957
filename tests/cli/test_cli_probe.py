"""``kernbench probe``."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kernbench.library import probes
from kernbench.probe.cases import CASES

Run = Callable[..., Any]
SMALL = ("--set", "sip.cube_mesh.w=2", "--set", "sip.cube_mesh.h=1", "--set", "system.sips.count=1")
FOUR_PES = ("--set", "cube.pe_layout.pe_per_corner=1", "--set", "cube.hbm.slices=4")


def test_a_case_alone_shows_its_hops_however_many_they_are(kernbench):
    """Beside what there is room for without them."""
    ran = kernbench("probe", "--case", "pe-far-cube-hbm")
    lines = ran.out.splitlines()
    (title,) = [at for at, line in enumerate(lines) if line.startswith("pe-far-cube-hbm: hop by hop")]
    hops = lines[title + 3 : lines.index("", title)]
    assert len(hops) > 80
    assert (hops[0].split()[:2], hops[-1].split()[0]) == (["request", "sip0.cube0.pe0.pe_dma"], "sip0.cube0.pe0.pe_dma")
    assert "Bandwidth in GB/s" in "\n".join(lines[:title])
    for text in ("pe-far-cube-hbm: one transaction by size", "Where the latency of 4 KiB goes"):
        assert text in "\n".join(lines[title:-1])
    several = kernbench("probe", "--case", "pe-far-cube-hbm", "--case", "pe-sram").out
    assert "pe-far-cube-hbm: hop by hop" in several.splitlines()[-1].partition("not shown")[2]


def test_all_cases_in_a_table(kernbench: Run) -> None:
    ran = kernbench("probe", *SMALL, *FOUR_PES)
    assert ran.code == 0
    for case in CASES:
        assert case.name in ran.out
    assert "Not on this machine" in ran.out
    assert "the machine has one SIP only" in ran.out
    assert "hop by hop" not in ran.out
    assert ran.err.startswith("[1/12] h2d-local\n")
    assert "…" not in ran.out
    assert max(map(len, ran.out.splitlines())) <= 120


def test_one_case_in_detail(kernbench: Run) -> None:
    ran = kernbench("probe", "--case", "pe-local-hbm")
    assert ran.code == 0
    for text in ("67.203", "182.9", "1 MiB", "hop by hop", "DMA set up", "access until the first byte", "busiest"):
        assert text in ran.out


def test_several_initiators_in_detail(kernbench: Run) -> None:
    ran = kernbench("probe", "--case", "pe-hotspot", "-v", *SMALL, *FOUR_PES)
    assert "fairness" in ran.out
    assert "sip0.cube0.pe3.pe_dma" in ran.out


def test_json_is_one_document_and_the_same_again(kernbench: Run) -> None:
    arguments = ("probe", "--case", "h2d-local", "--case", "pe-cross-sip-hbm", "--json", *SMALL)
    ran = kernbench(*arguments)
    document = json.loads(ran.out)
    assert document["complete"] is True
    found, absent = document["cases"]
    assert absent["on_this_machine"] is False
    single = found["transaction"]
    assert sum(single["breakdown"].values()) == pytest.approx(single["latency_ns"], abs=1e-9)
    assert [step["nbytes"] for step in found["sweep"]] == [4096 << power for power in range(9)]
    assert found["hops"][-1]["last_byte_ns"] == single["latency_ns"]
    assert kernbench(*arguments).out == ran.out


@pytest.mark.parametrize(("size", "nbytes"), [("64", 64), ("4KiB", 4096), ("1.5 KiB", 1536), ("1kb", 1000)])
def test_sizes(kernbench: Run, size: str, nbytes: int) -> None:
    ran = kernbench("probe", "--case", "pe-sram", "--size", size, "--json", *SMALL, *FOUR_PES)
    assert json.loads(ran.out)["cases"][0]["transaction"]["nbytes"] == nbytes


def test_the_machine_can_be_changed(kernbench: Run) -> None:
    def latency_ns(access_ns: float) -> float:
        slow = ("--set", f"cube.components.hbm_ctrl.attrs.access_ns={access_ns}")
        ran = kernbench("probe", "--case", "pe-local-hbm", "--json", *slow, *SMALL, *FOUR_PES)
        return float(json.loads(ran.out)["cases"][0]["transaction"]["latency_ns"])

    assert latency_ns(130) == pytest.approx(latency_ns(2.5) - 2.5 + 130)


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_interrupted_with_what_is_finished(
    kernbench: Run, monkeypatch: pytest.MonkeyPatch, as_json: tuple[str, ...]
) -> None:
    whole = probes.measure_case

    def stop_at_reads(machine: Any, case: Any, *rest: Any, **more: Any) -> Any:
        if case.name == "d2h-local":
            raise KeyboardInterrupt
        return whole(machine, case, *rest, **more)

    monkeypatch.setattr(probes, "measure_case", stop_at_reads)
    ran = kernbench("probe", *SMALL, *as_json)
    assert ran.code == 130
    assert "h2d-far" in ran.out
    assert "d2h-local" not in ran.out
    if as_json:
        assert json.loads(ran.out)["complete"] is False
