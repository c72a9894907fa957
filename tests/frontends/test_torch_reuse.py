"""PyTorch programs that reuse launches: the stated error covers the true one, and all bytes are counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from extras import need

need("torch")

import torch  # noqa: E402

import kernbench as kb  # noqa: E402

FOLDER = Path(__file__).parent / "reused"
PROGRAMS = {path.stem: path for path in sorted(FOLDER.glob("*.py"))}


def run(script: Path, **options: object) -> kb.Run:
    """Run a program without data on one cube. PyTorch's defaults, which programs change, are restored."""
    dtype = torch.get_default_dtype()
    try:
        with torch.enable_grad():
            result = kb.run(script=script, as_cuda=True, machine="one-cube", data=False, **options)
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(dtype)
    result.raise_for_status()
    return result


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_stated_error_covers_the_true_one(program: str) -> None:
    simulated, reused = run(PROGRAMS[program], observe=False), run(PROGRAMS[program], reuse=True)
    report = reused.reuse
    assert report is not None
    assert report.passed > 0
    error = reused.latency_ns / simulated.latency_ns - 1
    assert abs(error) <= report.error <= max(0.02, 3 * abs(error))
    traffic, expected = reused.report.traffic, simulated.report.traffic
    assert (traffic.hbm_in, traffic.hbm_out) == (expected.hbm_in, expected.hbm_out)
    engines, all_engines = (
        {usage.engine: usage.records for usage in result.report.engines} for result in (reused, simulated)
    )
    assert engines == all_engines


@pytest.mark.slow
def test_the_roofline_of_a_run_counts_the_work_of_passed_launches() -> None:
    simulated, reused = (run(PROGRAMS["decode"], reuse=reuse) for reuse in (False, True))
    amounts = [
        {bound.resource: bound.amount for bound in result.explain().roof.bounds if bound.unit in ("MACs", "bytes")}
        for result in (simulated, reused)
    ]
    assert amounts[0].keys() == amounts[1].keys()
    for resource, amount in amounts[0].items():
        assert amounts[1][resource] == amount, resource


def count_kinds(tmp_path: Path, steps: int) -> int:
    """Return the number of kinds of launches in ``steps`` steps of AdamW."""
    script = tmp_path / "adam.py"
    script.write_text(
        "import torch\n"
        "x = torch.zeros(64, device='cuda', requires_grad=True)\n"
        "x.grad = torch.ones_like(x)\n"
        "optimizer = torch.optim.AdamW([x])\n"
        f"for _ in range({steps}):\n"
        "    optimizer.step()\n"
    )
    report = run(script, reuse=True).reuse
    assert report is not None
    return report.kinds


def test_an_optimizer_whose_scalars_change_with_steps_has_no_new_kinds(tmp_path: Path) -> None:
    assert count_kinds(tmp_path, 3) == count_kinds(tmp_path, 5)


LONG = """
import torch
xs = [torch.empty(n, device="cuda") for n in [100_000, 2_000] * 6 + [1_500_000]]
ys = [torch.empty_like(x) for x in xs]
torch.cuda.synchronize()
torch._foreach_mul_(xs, 2.0)
torch._foreach_add_(xs, ys)
"""


def test_work_that_is_left_out_of_long_launches_counts(tmp_path: Path) -> None:
    script = tmp_path / "long.py"
    script.write_text(LONG)
    one_pe = {"torch.pes": 1}
    simulated, reused = (run(script, settings=one_pe, reuse=reuse) for reuse in (False, True))
    report = reused.reuse
    assert report is not None
    assert report.passed == 0
    assert report.extended == 2
    error = reused.latency_ns / simulated.latency_ns - 1
    assert abs(error) <= min(0.03, report.error + 0.02)
    traffic, expected = reused.report.traffic, simulated.report.traffic
    assert traffic.hbm_in == pytest.approx(expected.hbm_in, rel=1e-3)
    assert traffic.hbm_out == pytest.approx(expected.hbm_out, rel=1e-3)
    assert reused.report.transfers < simulated.report.transfers / 1.5


def test_bounds_of_a_long_launch_are_those_of_all_its_work(tmp_path: Path) -> None:
    script = tmp_path / "long.py"
    script.write_text(LONG)
    simulated, reused = (run(script, settings={"torch.pes": 1}, reuse=reuse).explain() for reuse in (False, True))
    for launch, expected_launch in zip(reused.launches, simulated.launches, strict=True):
        roof, expected = launch.roof, expected_launch.roof
        assert roof.binding == expected.binding
        for bound in expected.bounds[:3]:
            [counted] = [other for other in roof.bounds if other.resource == bound.resource]
            assert counted.ps == pytest.approx(bound.ps, rel=0.03)
        assert sum(difference.ps for difference in roof.differences) == roof.measured_ps - roof.bounds[0].ps
        assert min(difference.ps for difference in roof.differences) >= -0.01 * roof.measured_ps


def test_the_path_of_a_long_launch_is_that_of_its_part(tmp_path: Path) -> None:
    script = tmp_path / "long.py"
    script.write_text(LONG + "for _ in range(3):\n    torch._foreach_mul_(xs, 2.0)\n")
    reused = run(script, settings={"torch.pes": 1}, reuse=True)
    assert reused.reuse is not None
    assert reused.reuse.passed > 0
    times = {spent.part: spent.ps for spent in reused.explain().path.parts}
    assert times.get("not traced further", 0) < sum(times.values()) / 100
