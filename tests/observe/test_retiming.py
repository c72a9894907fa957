"""What a faster resource gives, estimated along the recorded causes, beside simulations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ideal_memory import IDEAL
from interventions import Experiment
from kernbench.observe.critical_path_model import PathPart, PathStep
from kernbench.observe.path_resources import PathDivider, PathShare
from kernbench.observe.roofline import Roofline, bound_of
from kernbench.observe.verdict import Busy, Verdict, VerdictKind, judge
from kernbench.policy.placement.dp import DPPolicy
from kernbench.topology import resources as of
from kernbench.topology.builder import resolve_topology
from path_support import SMALL

ONE = DPPolicy(pe="replicate", num_cubes=1, num_pes=1)
TWO = DPPolicy(pe="row_wise", num_cubes=1, num_pes=2)


def experiment(kernel: Callable[..., object], dp: DPPolicy, rows: int) -> Experiment:
    def program(torch: Any) -> None:
        torch.launch("work", kernel, torch.zeros(rows, 64, dtype="f16", dp=dp))

    return Experiment(program, resolve_topology(None, [*SMALL, *IDEAL]))


def in_a_row(x: int, *, tl: Any) -> None:
    a = tl.load(x, (64, 64), "f16")
    tl.store(x, tl.exp(tl.dot(a, a)))


def tiles(x: int, *, tl: Any) -> None:
    """More tiles than are in flight: the stages fetch and GEMM, one behind the other."""
    a = tl.load(x, (128, 128), "f16")
    tl.store(x, tl.cast(tl.dot(a, a), "f16"))


def computes_on_one_and_moves_on_the_other(x: int, *, tl: Any) -> None:
    pe = tl.program_id(0)
    a = tl.load(x + pe * 64 * 64 * 2, (64, 64), "f16")
    if pe == 0:
        for _ in range(6):
            a = tl.exp(a)
    else:
        for _ in range(4):
            a = tl.load(x + pe * 64 * 64 * 2, (64, 64), "f16") + a
    tl.store(x + pe * 64 * 64 * 2, a)


@pytest.mark.parametrize("kernel", [in_a_row, tiles])
def test_on_one_pe_it_is_what_the_simulation_gives(kernel: Callable[..., object]) -> None:
    found = experiment(kernel, ONE, 256)
    gains = found.launch.gains_ps
    for name in (of.GEMM, of.MATH, of.FETCH, of.STORE, of.DMA_SETUP, of.LAUNCH, of.ISSUE, "HBM"):
        simulated = found.gain(name)
        if name in gains and simulated is not None:
            assert gains[name] == pytest.approx(simulated, abs=0.001 * found.time_ps), name


def test_a_gain_ends_where_another_pe_comes_last() -> None:
    found = experiment(computes_on_one_and_moves_on_the_other, TWO, 128)
    gains, simulated = found.launch.gains_ps, found.gain(of.MATH)
    assert simulated is not None
    on_path = found.path_shares[of.MATH] * found.time_ps / 11
    assert gains[of.MATH] == pytest.approx(simulated, abs=0.001 * found.time_ps)
    assert gains[of.MATH] < 0.8 * on_path, "the path alone promises more"


def loads_and_stores(x: int, *, tl: Any) -> None:
    for _ in range(100):
        tl.store(x, tl.load(x, (64, 64), "f16"))


def test_rows_that_last_equally_long_are_divided_once(monkeypatch: pytest.MonkeyPatch) -> None:
    divided: list[object] = []
    divide = PathDivider.divide

    def count(divider: PathDivider, steps: Iterable[PathStep]) -> Mapping[tuple[PathPart, tuple[str, ...]], int]:
        divided.append(steps)
        return divide(divider, steps)

    experiment_of_100 = experiment(loads_and_stores, ONE, 64)
    monkeypatch.setattr(PathDivider, "divide", count)
    gains = experiment_of_100.launch.gains_ps
    assert len(divided) < 60, "of 200 rows of the DMA"
    simulated = experiment_of_100.gain("HBM")
    assert simulated is not None
    assert gains["HBM"] == pytest.approx(simulated, abs=0.001 * experiment_of_100.time_ps)


SHARES = (PathShare(PathPart.MATH, (of.MATH,), 400), PathShare(PathPart.FETCH, (of.FETCH,), 350))
ROOF = Roofline(
    measured_ps=1000, useful_macs=1.0, bounds=(bound_of(of.MATH, "pe0", 300, "bytes", 1000.0),), differences=()
)


@pytest.mark.parametrize(
    ("gains", "kind", "says"),
    [
        ({of.MATH: 15, of.FETCH: 30}, VerdictKind.LATENCY, "MATH is 40% of the critical path"),
        ({of.MATH: 14, of.FETCH: 30}, VerdictKind.SPREAD, "no single kind; the largest on the path is MATH, 40%"),
        ({}, VerdictKind.LATENCY, "MATH is 40% of the critical path"),
    ],
)
def test_a_kind_is_named_that_gains_half_of_the_largest_gain(
    gains: dict[str, int], kind: VerdictKind, says: str
) -> None:
    verdict = judge(ROOF, SHARES, lambda _: gains)
    assert verdict.kind is kind
    assert verdict.sentence.startswith(f"bound by latency: {says}")
    assert verdict.label == ("latency: MATH" if kind is VerdictKind.LATENCY else "latency: no single kind")


def test_few_resources_need_an_estimate() -> None:
    """A gain of half of 1/11 of the second longest time on the path is enough: no gain counts for more than 1/11."""
    asked: list[Sequence[str] | None] = []

    def estimate(names: Sequence[str] | None) -> dict[str, int]:
        asked.append(names)
        return {of.MATH: 16}

    assert judge(ROOF, SHARES, estimate).kind is VerdictKind.LATENCY
    assert asked == [(of.MATH,)]


def test_a_bound_that_binds_needs_no_estimate() -> None:
    def refuse(_: object) -> dict[str, int]:
        raise AssertionError

    roof = replace(ROOF, bounds=(bound_of(of.MATH, "pe0", 900, "bytes", 1000.0),))
    shares = (PathShare(PathPart.MATH, (of.MATH,), 900),)
    assert isinstance(judge(roof, shares, refuse), Verdict)


def test_the_next_resource_is_none_of_those_that_tie() -> None:
    times = ((of.FETCH, 900), (of.GEMM, 890), (of.HBM, 600))
    bounds = tuple(bound_of(name, "pe0", ps, "bytes", 1000.0) for name, ps in times)
    verdict = judge(
        replace(ROOF, bounds=bounds, ties=((of.FETCH, of.GEMM),)),
        (PathShare(PathPart.FETCH, (of.FETCH, of.GEMM), 900),),
        lambda _: {},
    )
    assert (verdict.kind, verdict.resources, verdict.share) == (VerdictKind.TIE, (of.FETCH, of.GEMM), 0.9)
    assert verdict.next == Busy(of.HBM, 0.6)
