"""What a verdict promises, an experiment gives: a resource made 10 % faster, and the program simulated again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compiled import compiled
from interventions import Experiment, broken_promises, spread
from kernbench.observe.critical_path_model import CriticalPath, KernelPlace, PathHop, PathPart, PathStep
from kernbench.observe.path_resources import PathDivider
from kernbench.observe.verdict import Busy, Spending, Verdict, VerdictKind, judge_run, say_waits
from kernbench.runtime_api.bench_registry import load_bench
from random_programs import random_experiment

QUICK = ("hello-send", "matmul-composite", "qkv-gemm", "attention", "ipcq-allreduce")
SLOW = ("gemm-single-pe", "qkv-gemm-multi-pe", "tp-block", "tp-mlp", "ccl-allreduce", "va-offset-verify")
MISSED = {
    "qkv-gemm-multi-pe": pytest.param(
        "qkv-gemm-multi-pe",
        marks=pytest.mark.xfail(
            reason="HBM gives 79 % of what its bound promises, 80 are asked: rows and turns stay as slow", strict=True
        ),
    )
}
VARIANTS = ("ref_ref", "load_ref", "load_load")
SLIGHTLY = 1.005
SEEDS = 200
EXCEPTIONS = {
    "in a slice's queue others come first, and its buses turn more or less often": (
        40,
        44,
        64,
        93,
        157,
        165,
        170,
        173,
        183,
    ),
    "packets of other PEs come first at a link": (13, 18, 25, 32, 47, 92, 154),
    "the next bound, of HBM, leaves out its turns of direction and refreshes": (80,),
    "a link and a slice set the pace of a stream in turn": (185,),
}
"""Programs that do not keep all promises, by the reason: most of them keep them of a change of 0.5 %."""


def of_bench(name: str, *params: str, machine: str = "default") -> Experiment:
    return Experiment(load_bench(name), spread(machine), params)


@pytest.mark.parametrize("name", QUICK)
def test_a_bench_keeps_the_promises_of_its_verdict(name: str) -> None:
    experiment = of_bench(name)
    assert [*broken_promises(experiment, experiment.foremost)] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [*(name for name in (*QUICK, *SLOW) if name not in MISSED), *MISSED.values()])
def test_a_bench_keeps_them_of_every_resource(name: str) -> None:
    assert [*broken_promises(of_bench(name))] == []


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_of_a_product_keeps_them(variant: str) -> None:
    assert [*broken_promises(of_bench("matmul-composite", f"bench.variant={variant}"))] == []


@pytest.mark.parametrize(
    ("seed", "names"),
    [(44, ("HBM access", "HBM")), (92, ("UCIe overhead", "router overhead")), (145, ("router overhead", "MATH"))],
)
def test_a_small_change_gives_the_share_of_the_path(seed: int, names: tuple[str, ...]) -> None:
    """So small that nothing comes in another order."""
    experiment = random_experiment(seed)
    for name in names:
        gained = experiment.gain(name, factor=SLIGHTLY)
        assert gained is not None
        promised = experiment.path_shares[name] * experiment.time_ps * (1 - 1 / SLIGHTLY)
        assert gained == pytest.approx(promised, rel=0.03), name


def test_a_kind_is_not_named_whose_place_another_takes() -> None:
    """Fetch has most of the path, and GEMM takes as long for a tile: alone it gives nothing."""
    experiment = random_experiment(56)
    verdict, gains = experiment.launch.verdict, experiment.launch.gains_ps
    assert (verdict.kind, verdict.resources) == (VerdictKind.SPREAD, ("fetch",))
    for name in ("fetch", "HBM"):
        assert experiment.gain(name) == pytest.approx(gains[name], abs=0.003 * experiment.time_ps), name


@pytest.mark.slow
def test_random_programs_on_random_machines_keep_them() -> None:
    """All do but the exceptions."""
    broken = {seed: found for seed in range(SEEDS) if (found := [*broken_promises(random_experiment(seed))])}
    known = {seed for seeds in EXCEPTIONS.values() for seed in seeds}
    assert broken.keys() <= known, "\n".join(f"{seed}: {'; '.join(broken[seed])}" for seed in broken.keys() - known)


@pytest.mark.parametrize(
    ("kind", "share", "says"),
    [
        (VerdictKind.BOUND, 0.006, "bound by HBM at sip0: busy 90% of 1 µs; next: NoC 1%"),
        (VerdictKind.BOUND, 0.005, "bound by HBM at sip0: busy 90% of 1 µs"),
        (VerdictKind.TIE, 0.004, "bound by a tie: HBM, each busy 90% of 1 µs; alone none gains"),
        (
            VerdictKind.LATENCY,
            0.004,
            "bound by latency: HBM is 90% of the critical path; no resource is busy more than 1%",
        ),
    ],
)
def test_a_share_of_0_percent_is_not_told(kind: VerdictKind, share: float, says: str) -> None:
    found = Verdict(kind=kind, time_ps=1_000_000, resources=("HBM",), share=0.9, where="sip0", next=Busy("NoC", share))
    assert found.sentence == says


@pytest.mark.parametrize(
    ("cpus", "set_up", "issue", "why"),
    [
        (500, 300, 200, (Busy("control path CPUs", 0.5),)),
        (499, 301, 200, ()),  # less than half of it
        (400, 350, 250, ()),
        (250, 250, 500, (Busy("command issue", 0.5),)),
        (0, 1000, 0, (Busy("DMA set-up", 1.0),)),
    ],
)
def test_why_a_time_of_a_run_is_as_long_is_what_has_half_of_it(
    cpus: int, set_up: int, issue: int, why: tuple[Busy, ...]
) -> None:
    """Beside as much time of kernels, of which the resource that has half of the copies has no part."""
    kinds = (PathPart.CONTROL_CPU, cpus), (PathPart.DMA_SETUP, set_up), (PathPart.ISSUE, issue)
    copies = [(part, ps, 7) for part, ps in kinds]
    steps, at = list[PathStep](), 0
    for part, ps, request in [*copies, (PathPart.MATH, 1000, 8)]:
        steps.append(PathStep(part, at, at + ps, request_id=request))
        at += ps
    path = CriticalPath(0, at, tuple(steps))
    found = judge_run(path, PathDivider(compiled().topology_obj), {8: "kernel"}, {}, copies={7})
    halved = tuple(Busy(each.resource, each.share / 2) for each in why)  # of the whole run
    assert found.spent == (Spending("copies", 0.5, halved), Spending("kernels", 0.5))


@pytest.mark.parametrize(
    ("share", "sentence"),
    [(0.6, "; next: HBM 60%"), (0.64, "; next: HBM 64%"), (0.67, "; HBM 67%, off the critical path")],
)
def test_a_resource_that_is_busier_than_the_bottleneck_is_off_the_path(share: float, sentence: str) -> None:
    verdict = Verdict(
        kind=VerdictKind.BOUND, time_ps=1000, resources=("GEMM",), share=0.64, where="pe", next=Busy("HBM", share)
    )
    assert verdict.sentence.endswith(f"busy 64% of 1 ns{sentence}")


def _hop(waiting: KernelPlace, cause: KernelPlace, start_ps: int, end_ps: int) -> PathHop:
    return PathHop(waiting=waiting, cause=cause, waited_for="message", direction="E", start_ps=start_ps, end_ps=end_ps)


def test_a_wait_for_a_rank_divides_the_steps_of_the_rank() -> None:
    """Rank 1 waits from 300 to 700 ps, while rank 0 copies until 500 ps, and then computes what rank 1 waits for."""
    waiting, cause = KernelPlace(pe=(1, 0, 0), launch_id=9, line=3), KernelPlace(pe=(0, 0, 0), launch_id=8, line=2)
    steps = (
        PathStep(PathPart.SERVICE, 0, 500, request_id=7),
        PathStep(PathPart.MATH, 500, 800, request_id=8),
        PathStep(PathPart.MATH, 800, 1000, request_id=9),
    )
    hops = (_hop(waiting, cause, 300, 700),)
    path = CriticalPath(0, 1000, steps, hops=hops)
    verdict = judge_run(path, PathDivider(compiled().topology_obj), {8: "sum", 9: "sum"}, {}, copies={7})
    assert {spending.what: spending.share for spending in verdict.spent} == {
        "kernels": 0.5,
        "copies": 0.3,
        "waits for rank 0": 0.2,
    }
    inner = _hop(waiting, cause, 100, 300)
    verdict = judge_run(replace(path, hops=(inner,)), PathDivider(compiled().topology_obj), {8: "a", 9: "b"}, {}, {7})
    assert {spending.what: spending.share for spending in verdict.spent} == {
        "kernels": 0.5,
        "copies": 0.3,
        "waits for rank 0": 0.2,
    }
    assert list(say_waits(path, {8: "sum", 9: "sum"})) == []  # below a quarter
    assert list(say_waits(replace(path, hops=(replace(hops[0], start_ps=250),)), {8: "sum", 9: "sum"})) == [
        "25% of the time waits for rank 0"
    ]
