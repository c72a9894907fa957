"""The Triton examples: right numbers, known times, the same with data as without, nothing for the sanitizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from extras import need
from kernbench.engine.engine import GraphEngine
from kernbench.observe.sanitizer import Sanitizer
from kernbench.runtime_api.bench_registry import load_bench
from kernbench.runtime_api.bench_runner import BenchResult, run_bench
from kernbench.runtime_api.frontends import FrontendSettings, TritonSettings
from kernbench.topology.builder import resolve_topology

need("triton")

EXAMPLES = Path(__file__).parents[2] / "examples" / "triton"
MACHINE = resolve_topology("default", ["system.sips.count=1", "sip.cube_mesh.w=2", "sip.cube_mesh.h=1"])
# In ns, of the whole program on a machine of two cubes.
TIMES = {
    "attention": 7206.842,
    "dropout": 1899.484,
    "gather": 2387.373,
    "layer_norm": 3909.495,
    "layer_norm_backward": 5434.806,
    "matmul": 3813.737,
    "matmul_descriptors": 2921.092,
    "softmax": 3731.105,
    "split_k": 5876.843,
    "vector_add": 7858.626,
}
READS_VALUES = {"gather", "layer_norm_backward"}


def run(name: str, *, data: bool = True, settings: FrontendSettings | None = None) -> BenchResult:
    return run_bench(
        topology=MACHINE,
        bench_fn=load_bench(str(EXAMPLES / f"{name}.py")),
        engine_factory=lambda machine, _: GraphEngine(machine, data, observers=[Sanitizer()] if data else []),
        frontends=settings,
    )


def test_every_example_has_a_time() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(TIMES)


@pytest.mark.parametrize("name", TIMES)
def test_numbers_and_time(name: str) -> None:
    result = run(name)
    result.raise_for_status()
    assert result.verified
    (sanitizer,) = (each for each in result.engine.observers if isinstance(each, Sanitizer))
    assert not sanitizer.findings(result.engine)
    assert result.sim_ns == TIMES[name]


@pytest.mark.parametrize("name", [name for name in TIMES if name not in READS_VALUES])
def test_the_time_does_not_depend_on_data(name: str) -> None:
    result = run(name, data=False)
    result.raise_for_status()
    assert result.sim_ns == TIMES[name]


def test_what_reads_values_needs_data() -> None:
    result = run("gather", data=False)
    assert "this run keeps no data" in str(result.error)


def test_a_search_takes_the_configuration_of_the_shortest_launch(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNBENCH_CACHE", str(tmp_path))
    result = run("matmul", settings=FrontendSettings(triton=TritonSettings(autotune="search")))
    result.raise_for_status()
    # Each of the three configurations once, then the best one, whose memory may refresh at another moment.
    *tried, _ = [each.total_ns for each in result.traces if each.phase == "launch"]
    assert len(tried) == 3
    configurations = ["BLOCK_M: 64, BLOCK_N: 64", "BLOCK_M: 128, BLOCK_N: 64", "BLOCK_M: 32, BLOCK_N: 32"]
    (taken,) = (line for line in capsys.readouterr().out.splitlines() if line.endswith("<- taken"))
    assert configurations[tried.index(min(tried))] in taken
    # It is remembered, for this machine.
    again = run("matmul", settings=FrontendSettings(triton=TritonSettings(autotune="search")))
    assert len([each for each in again.traces if each.phase == "launch"]) == 1
    printed = capsys.readouterr().out
    assert f"cached in {tmp_path}" in printed
    assert taken in printed
    (found,) = (tmp_path / "autotune").iterdir()
    found.write_text("{")
    run("matmul", settings=FrontendSettings(triton=TritonSettings(autotune="search")))
    assert "searched:" in capsys.readouterr().out


def test_the_first_configuration_is_said_to_be_taken(capsys: pytest.CaptureFixture[str]) -> None:
    run("matmul", data=False).raise_for_status()
    assert "the first of 3 configurations, BLOCK_M: 64, BLOCK_N: 64" in capsys.readouterr().out


def test_the_order_of_programs_is_a_setting() -> None:
    result = run("vector_add", settings=FrontendSettings(triton=TritonSettings(order="blocked")))
    result.raise_for_status()
    assert result.sim_ns != TIMES["vector_add"]
