"""Long runs fold rows of launches that are over: what stays equal in reports, and what remains in the log."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kernbench as kb
from kernbench.cli.main import main
from kernbench.core.log import Kind
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api import launch_report
from kernbench.runtime_api.context import RuntimeContext
from kernbench.triton_emu.tl_context import TLContext as Tl

PES = DPPolicy("replicate", "row_wise", num_pes=2)
ALL, FEW = "4M", 300
APPROXIMATE = ("explanation", "energy.split", "verdict")
"""Keys whose values are those of like launches, for folded ones"""


def double(x, n, *, tl: Tl):
    """Double ``n`` elements of each PE's shard."""
    at = x + tl.program_id(0) * n * 4
    block = tl.load(at, (n,), "f32")
    tl.store(at, block + block)


def launches(torch: RuntimeContext[Any]) -> None:
    """Launch kernels of two sizes in turn, the smaller one under two names."""
    for at in range(48):
        size = 1 + at % 2
        torch.launch(f"double {at % 4}", double, torch.empty(512 * size, dp=PES), 256 * size)


def collectives(torch: RuntimeContext[Any]) -> None:
    """Sum a tensor over two ranks, again and again."""

    def worker(rank: int) -> None:
        torch.ahbm.set_device(rank)
        x = torch.empty(4096)
        for _ in range(12):
            torch.distributed.all_reduce(x)

    torch.distributed.init_process_group(backend="ahbm")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        torch.multiprocessing.spawn(worker, nprocs=2)


def run(program: Callable[..., None], rows: int | str, machine: str = "one-cube", **choices: Any) -> kb.Run:
    result = kb.run(program, machine, data=False, log_rows=rows, **choices)
    result.raise_for_status()
    return result


def differences(a: Any, b: Any, path: str = "") -> Iterator[str]:
    """Yield the paths at which two documents differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in a.keys() | b.keys():
            yield from differences(a.get(key), b.get(key), f"{path}.{key}" if path else key)
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for at, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from differences(x, y, f"{path}[{at}]")
    elif a != b:
        yield path


def test_a_run_without_a_path_has_the_same_report():
    complete, folded = (run(launches, rows, observe=False) for rows in (ALL, FEW))
    assert complete.folded is None
    assert folded.folded is not None
    assert folded.folded.folded_rows > folded.folded.rows // 4
    assert list(differences(complete.to_dict(), folded.to_dict())) == ["folded"]


def test_a_run_of_ranks_has_the_same_report():
    complete, folded = (run(collectives, rows, "default", observe=False) for rows in (ALL, FEW))
    assert folded.folded is not None
    assert list(differences(complete.to_dict(), folded.to_dict())) == ["folded"]


@pytest.fixture(scope="module")
def complete() -> kb.Run:
    return run(launches, ALL)


@pytest.fixture(scope="module")
def folded() -> kb.Run:
    return run(launches, FEW)


def test_an_observed_run_differs_by_its_explanation_only(complete, folded):
    paths = set(differences(complete.to_dict(), folded.to_dict()))
    assert "folded" in paths
    assert not [path for path in paths - {"folded"} if not path.startswith(APPROXIMATE)]


def test_the_path_takes_as_long_in_each_part(complete, folded):
    parts, expected = (
        {spent.part: spent.ps for spent in outcome.explain().path.parts} for outcome in (folded, complete)
    )
    total = sum(expected.values())
    assert sum(parts.values()) == total
    for part, ps in expected.items():
        assert parts.get(part, 0) == pytest.approx(ps, abs=0.02 * total), part


def test_loads_of_resources_count_folded_launches(complete, folded):
    bounds, expected = (
        {bound.resource: bound.amount for bound in outcome.explain().bounds} for outcome in (folded, complete)
    )
    for resource, amount in expected.items():
        if resource not in ("HBM rows", "HBM refresh", "HBM turnarounds"):  # times, which differ between launches
            assert bounds[resource] == amount, resource


def test_folded_launches_have_the_energy_of_those_that_stand_for_them(complete, folded):
    energies, expected = (
        {launch.name: (launch.launches, launch.pj) for launch in outcome.energy.split.launches}
        for outcome in (folded, complete)
    )
    assert energies.keys() == expected.keys()
    for name, (launches, pj) in expected.items():
        assert energies[name] == (launches, pytest.approx(pj, rel=0.15)), name


def test_the_longest_launch_of_each_name_keeps_its_rows(folded):
    log = folded.engine.machine.log
    left = log.condense().columns()
    with_rows = set(left.launch[left.kind == Kind.DMA_READ].tolist())
    of_launches = {handle.request_id for handle in folded.engine.handles if handle.msg.name.startswith("double")}
    assert with_rows == of_launches - set(folded.folded.launches)
    longest: dict[str, Any] = {}
    for handle in folded.engine.handles:
        best = longest.get(handle.msg.title)
        if best is None or handle.ended_ps - handle.begun_ps > best.ended_ps - best.begun_ps:
            longest[handle.msg.title] = handle
    assert {longest[f"double {at}"].request_id for at in range(4)} <= with_rows
    assert sorted(left.launch[left.kind == Kind.PASSED].tolist()) == list(folded.folded.launches)


def test_files_and_the_report_name_the_folded_launches(folded, tmp_path):
    assert str(folded.folded).startswith(f"log: {folded.folded.folded_rows:,} of {folded.folded.rows:,} rows folded")
    folded.trace(tmp_path / "trace.json")
    names = [event["name"] for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]]
    assert len({name for name in names if name.endswith("(folded)")}) >= 2
    folded.page(tmp_path / "page.html")
    launched = {record["launch_id"] for record in folded.log.to_pylist()}
    assert launched.isdisjoint(folded.folded.launches)


def test_traces_of_ranks_find_their_messages(tmp_path):
    result = run(collectives, FEW, "default")
    assert result.folded is not None
    result.trace(tmp_path / "trace.json")
    assert any(event.get("ph") == "s" for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"])


def test_nothing_is_folded_while_values_can_be_read():
    result = kb.run(launches, "one-cube", data=True, log_rows=FEW)
    assert result.ok
    assert result.folded is None


def test_samples_of_reused_launches_keep_their_rows():
    result = run(launches, 100, reuse=True)
    samples = result.live.context.reuse.list_samples()
    assert result.reuse.passed > 0
    assert samples.isdisjoint(() if result.folded is None else result.folded.launches)


def test_a_report_in_pieces_is_the_same(monkeypatch, complete):
    monkeypatch.setattr(launch_report, "PIECE", 100)
    pieces = run(launches, ALL, observe=False).to_dict()
    whole = {key: content for key, content in complete.to_dict().items() if key in pieces}
    different = set(differences(pieces, whole))
    assert not [path for path in different if path.startswith(("engines", "launches", "used", "traffic", "queues"))]


@pytest.mark.parametrize("rows", ["0x", "-1", "4G", "", "1.5M"])
def test_a_bad_number_of_rows(rows: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--bench", "hello-send", "--log-rows", rows]) == 2
    assert f"--log-rows: found {rows}, must be a whole number" in capsys.readouterr().err


def test_a_sweep_file_limits_the_rows_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    text = "bench: hello-send\ntopology: one-cube\nlog_rows: {}\ngrid:\n  cube.hbm.num_pcs: [8]\n"
    plan.write_text(text.format("4G"))
    assert main(["sweep", str(plan), "--out", str(tmp_path / "out")]) == 2
    assert "--log-rows: found 4G" in capsys.readouterr().err
    plan.write_text(text.format("1K"))
    assert main(["sweep", str(plan), "--out", str(tmp_path / "out"), "--jobs", "1"]) == 0


def test_a_run_on_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        f"import sys\n\nsys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom test_folding import launches\n"
    )
    options = ["--topology", "one-cube", "--no-data", "--log-rows", "300", "--op-log", str(tmp_path / "log.jsonl")]
    assert main(["run", "--bench", f"{program}:launches", *options]) == 0
    output = capsys.readouterr()
    assert "rows folded (--log-rows)" in output.out
    assert "log.jsonl has no folded rows" in output.err
