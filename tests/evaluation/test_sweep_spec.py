"""Sweep files: grids, ranges, and everything that can be wrong with one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.common.complaints import Rejected
from kernbench.common.errors import ConfigError, InputError
from kernbench.evaluation.sweep_loading import plan_sweep
from kernbench.evaluation.sweep_plan import SweepPlan
from kernbench.evaluation.sweep_spec import ValueRange, as_values
from kernbench.runtime_api.run_request import RunRequest

GOOD = """\
bench: matmul_composite
set: { bench.k: 64, cube.hbm.num_pcs: 16 }
grid:
  cube.hbm.slices: [8, 4]
  bench.m: { start: 32, stop: 128, factor: 2 }
"""


def plan(folder: Path, text: str, *overrides: str) -> SweepPlan:
    path = folder / "grid.yaml"
    path.write_text(text)
    return plan_sweep(path, RunRequest.of(topology="default", overrides=overrides))


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        plan(folder, text)
    return [f"{each.line}:{each.column} {each.path}: {each.message}" for each in caught.value.problems]


def test_points_in_the_order_of_the_grid(tmp_path: Path) -> None:
    found = plan(tmp_path, GOOD)
    points = list(found.points())
    assert (found.name, found.bench.name, found.n_points) == ("grid", "matmul-composite", 6)
    assert [tuple(value for _, value in point.values) for point in points] == [
        (slices, m) for slices in (8, 4) for m in (32, 64, 128)
    ]
    changes = found.changes(points[3])
    assert changes.machine == ("cube.hbm.num_pcs=16", "cube.hbm.slices=4")
    assert changes.bench == ("bench.k=64", "bench.m=32")


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ({"start": 1, "stop": 5, "step": 2}, (1, 3, 5)),
        ({"start": 0.1, "stop": 0.5, "step": 0.1}, (0.1, 0.2, 0.3, 0.4, 0.5)),
        ({"start": 3, "stop": 30, "factor": 3}, (3, 9, 27)),
        ({"start": 1, "stop": 2, "factor": 1.5}, (1.0, 1.5)),
        ({"start": 7, "stop": 7, "step": 1}, (7,)),
        ({"start": 1.0e30, "stop": 1.0e30, "step": 1}, (1.0e30,)),  # more digits than a decimal has
    ],
)
def test_ranges(given: dict[str, float], values: tuple[float, ...]) -> None:
    found = ValueRange(**given).values()
    assert found == values
    assert [type(each) for each in found] == [type(each) for each in values]


@given(st.integers(-50, 50), st.integers(0, 100), st.integers(1, 9))
def test_a_range_by_step_is_pythons_with_its_end(start: int, length: int, step: int) -> None:
    assert ValueRange(start=start, stop=start + length, step=step).values() == tuple(
        range(start, start + length + 1, step)
    )


@given(st.integers(-50, 50), st.integers(0, 100), st.sampled_from((1, 2, 7, 0.1, 0.3, 2.5)))
def test_values_are_counted_without_making_them(start: int, length: int, step: float) -> None:
    found = ValueRange(start=start, stop=start + length, step=step)
    assert found.count == len(found.values())


STEPS = "{{ start: 1, stop: {stop}, step: 1 }}".format
TOO_MANY = {
    f"bench.m: {STEPS(stop=100_000_000)}": "100,000,000 points",
    f"bench.m: {STEPS(stop=10_000)}, bench.n: {STEPS(stop=10_000)}": "100,000,000 points",
    f"bench.m: {STEPS(stop=1_000_000)}, bench.n: {STEPS(stop=50)}, bench.k: [16, 32]": "100,000,000 points",
    f"bench.m: {STEPS(stop=100_001)}": "100,001 points",
    "bench.m: { start: 0, stop: 1.0e+300, step: 1.0e-300 }": r"about 1.0e+600 points",
    "bench.m: { start: 1, stop: 1.0e+30, factor: 1.0000001 }": "690,775,563 points",
    # What else is wrong with their values is not looked for.
    f"bench.q: {STEPS(stop=10_000)}, cube.hbm.slicez: {STEPS(stop=10_000)}": "100,000,000 points",
}


@pytest.mark.parametrize("axes", TOO_MANY)
def test_a_grid_of_too_many_points_is_refused_with_their_number(tmp_path: Path, axes: str) -> None:
    (found,) = problems(tmp_path, f"bench: matmul-composite\ngrid: {{ {axes} }}\n")
    advice = "must be at most 100,000: give fewer values, or make several sweeps of it"
    assert found == f"2:1 grid: the grid has {TOO_MANY[axes]}, {advice}"


def test_values_that_are_too_many_are_never_made() -> None:
    found = ValueRange(start=1, stop=10**8, step=1)
    assert (found.count, found.values()) == (10**8, ())


def test_other_slips_beside_too_many_points(tmp_path: Path) -> None:
    axes = f"bench.m: {STEPS(stop=10**8)}, bench.n: {{ start: 5, stop: 1, step: 1 }}"
    found = problems(tmp_path, f"bench: matmul-composit\ngrid: {{ {axes} }}\nset: {{ bench.z: 1 }}\n")
    assert [each.split(": ")[0] for each in found] == ["1:8 bench", "2:1 grid", "2:85 grid.bench.n.stop"]
    assert "did you mean 'matmul-composite'?" in found[0]


def test_a_list_of_many_values_is_checked_at_once() -> None:
    """Each against those before it would be 2 × 10⁹ comparisons."""
    values = list(range(60_000))
    assert as_values(values) == tuple(values)
    with pytest.raises(Rejected) as caught:
        as_values([*values, 7, 7])
    assert [each.path for each in caught.value.complaints] == [(60_000,), (60_001,)]


def test_every_slip_of_structure_at_once(tmp_path: Path) -> None:
    text = """\
bench: matmul-composite
verify: maybe
grid:
  cube.hbm.slices: [8, 4, 8]
  bench.m: { start: 5, stop: 3, step: 0 }
  bench.k: { start: 1, stop: 3 }
  bench.n: []
"""
    assert problems(tmp_path, text) == [
        "2:9 verify: found 'maybe', must be true or false",
        "4:27 grid.cube.hbm.slices[2]: 8 is in the list twice",
        "5:30 grid.bench.m.stop: found 3, must be at least start, 5",
        "5:39 grid.bench.m.step: found 0, must be greater than 0",
        "6:12 grid.bench.k: a range has either a step or a factor",
        "7:12 grid.bench.n: found an empty list, must have at least one value",
    ]


def test_what_no_point_could_use(tmp_path: Path) -> None:
    text = """\
bench: matmul-composite
device: gpu
set: { bench.kk: 64, cube.hbm.slicez: 3 }
grid:
  cube.hbm.slices: [eight]
  bench.m: [0, -1]
  cubes.hbm: [1]
plots:
  - { kind: lines, value: launch.nss }
  - { kind: pareto, cost: sim_nss }
"""
    found = problems(tmp_path, text)
    assert [each.split(": ")[0] for each in found] == [
        "2:9 device",
        "3:18 set.bench.kk",
        "3:39 set.cube.hbm.slicez",
        "5:20 grid.cube.hbm.slices",
        "6:12 grid.bench.m",
        "7:14 grid.cubes.hbm",
        "9:27 plots[0].value",
        "10:27 plots[1].cost",
    ]
    assert "did you mean 'slices'?" in found[2]
    assert "did you mean 'launch.ns'?" in found[6]


def test_slips_of_every_kind_at_once(tmp_path: Path) -> None:
    """Of structure, of names, of the machine and of the bench: none waits until another is mended."""
    text = """\
bench: matmul
device: gpu
verify: maybe
colour: red
ccl: none.yaml
set: { cube.hbm.slicez: 3, bench.k: 64, 'a b': 1 }
grid:
  cube.hbm.slices: [8, 4, 8]
  cube.hbm.slices: [8, 4]
  bench.k: [1]
  cubes.hbm: [1]
  pe.gemm.tile_m: thirty
plots:
  - { kind: lines, x: bench.q }
  - { kind: pie }
  - { kind: lines, value: launch.nss }
"""
    assert [each.split(": ")[0] for each in problems(tmp_path, text)] == [
        "1:8 bench",
        "2:9 device",
        "3:9 verify",
        "4:1 colour",
        "5:6 ccl",
        "6:25 set.cube.hbm.slicez",
        "6:28 set.bench.k",
        "6:41 set.a b",
        "8:27 grid.cube.hbm.slices[2]",
        "9:3 grid.cube.hbm.slices",
        "11:14 grid.cubes.hbm",
        "12:19 grid.pe.gemm.tile_m",
        "14:23 plots[0].x",
        "15:13 plots[1].kind",
        "16:27 plots[2].value",
    ]


def test_slips_here_and_elsewhere_at_once(tmp_path: Path) -> None:
    """The sweep file's first, then those of the command line and of the files that it names."""
    (tmp_path / "machine.yaml").write_text("system: 3\n")
    (tmp_path / "ccl.yaml").write_text("algorithms: {}\n")
    path = tmp_path / "grid.yaml"
    path.write_text(
        "topology: machine.yaml\nccl: ccl.yaml\nbench: matmul-composite\ngrid: { bench.m: [0], bench.q: [1] }\n"
    )
    with pytest.raises(ConfigError) as caught:
        plan_sweep(path, RunRequest.of(overrides=["bench.m=3", "bench.z=1", "bench.k"]))
    found = [(Path(each.source).name, each.path) for each in caught.value.problems]
    assert found[:3] == [
        ("grid.yaml", "grid.bench.m"),
        ("grid.yaml", "grid.bench.q"),
        ("--set bench.z=1", "set.bench.z"),
    ]
    assert {source for source, _ in found[3:]} == {"--set bench.m=3", "--set bench.k", "machine.yaml", "ccl.yaml"}


@pytest.mark.parametrize("text", ["grid: { cube.hbm.slicez: [1] }\n", "bench: 3\ngrid: { cube.hbm.slicez: [1] }\n"])
def test_without_a_bench_the_machine_is_checked(tmp_path: Path, text: str) -> None:
    found = problems(tmp_path, text)
    assert "bench" in found[0]
    assert "unknown key 'slicez'" in found[1]


@pytest.mark.parametrize(
    "text", ["bench: matmul-composite\n", "bench: matmul-composite\ngrid: {}\n", "grid: [1]\nset: 3\n"]
)
def test_without_a_grid(tmp_path: Path, text: str) -> None:
    assert any("grid" in each for each in problems(tmp_path, text))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("set: { bench.m: 3 }", "the grid varies it"),
        ("set: { 'a b': 3 }", "is not a path"),
        ("plots: [{ kind: lines, x: bench.n }]", "'bench.n' is no axis; did you mean 'bench.m'? the grid has bench.m"),
        ("plots: [{ kind: lines, cost: bench.m }]", "lines does not use it; it takes x, by, value"),
        ("plots: [{ kind: lines, x: bench.m, by: bench.m }]", "an axis can be drawn once"),
        ("plots: [{ kind: pareto }]", "pareto needs cost"),
        ("plots: [{ kind: heat-map }]", "needs two axes"),
        ("plots: [{ kind: lines, value: launch.bound }]", "'launch.bound' is no numeric column"),
        ("plots: [{ kind: pie }]", "must be one of: lines, heat-map, pareto"),
        ("grids: {}", "unknown key 'grids'; did you mean 'grid'?"),
        ("topology: nothing.yaml", "topology: .*nothing.yaml: no such file"),
        ("ccl: nothing.yaml", "ccl: .*nothing.yaml: no such file"),
        ("ccl: [1]", "ccl: found [1], must be text".replace("[", r"\[").replace("]", r"\]")),
    ],
)
def test_a_slip(tmp_path: Path, more: str, message: str) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text(f"bench: matmul-composite\ngrid: {{ bench.m: [32, 64] }}\n{more}\n")
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        plan_sweep(path)


def test_an_unknown_bench_is_shown_at_its_line(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, "bench: matmul\ngrid: { bench.m: [1] }\n")
    assert found.startswith("1:8 bench: unknown bench 'matmul'; there are:")


def test_values_that_no_result_could_hold(tmp_path: Path) -> None:
    text = """\
bench: matmul-composite
set: { bench.dtype: [.nan], bench.n: -9223372036854775809 }
grid:
  cube.hbm.slices: [8, .inf, { a: .nan }]
  bench.k: { start: 9223372036854775808, stop: 9223372036854775808, step: 1 }
"""
    assert problems(tmp_path, text) == [
        "2:21 set.bench.dtype: found nan, must be a finite number",
        "2:38 set.bench.n: found -9223372036854775809, must fit into 64 bits",
        "4:24 grid.cube.hbm.slices[1]: found inf, must be a finite number",
        "4:30 grid.cube.hbm.slices[2]: found nan, must be a finite number",
        "5:12 grid.bench.k: found 9223372036854775808, must fit into 64 bits",
    ]


def test_what_fails_at_some_points_only_is_no_slip(tmp_path: Path) -> None:
    text = "bench: matmul-composite\ngrid: { cube.hbm.slices: [7, 8, eight], bench.m: [0, 32] }\n"
    assert plan(tmp_path, text).n_points == 6


def test_attributes_of_a_part_that_the_grid_chooses(tmp_path: Path) -> None:
    text = """\
bench: matmul-composite
grid:
  cube.components.noc_router.impl: [builtin.noc_router, examples.slow_routers.SlowRouter]
  cube.components.noc_router.attrs.factor: [2.0, 3.0]
"""
    assert plan(tmp_path, text).n_points == 4


def test_files_are_looked_for_beside_the_sweep(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def run(torch):\n    torch.zeros(4)\n")
    found = plan(tmp_path, "bench: mine.py\ngrid: { cube.hbm.slices: [8] }\n")
    assert found.request.program.bench == str(tmp_path / "mine.py")


def test_set_on_the_command_line(tmp_path: Path) -> None:
    found = plan(tmp_path, GOOD, "bench.k=128", "cube.pe_layout.corners[0]=NW")
    assert found.spec.fixed == {"bench.k": 128, "cube.hbm.num_pcs": 16, "cube.pe_layout.corners[0]": "NW"}
    for text, why in (
        ("bench.m=3", "the grid varies bench.m"),
        ("=3", "not a path"),
        ("bench.k", "--set bench.k: no '='"),
        ("bench.k=[1", r"--set bench.k=\[1: '\[1' is not YAML"),
        ("bench.k=.nan", "must be a finite number"),
    ):
        with pytest.raises(InputError, match=why):
            plan(tmp_path, GOOD, text)


def test_too_many_points(tmp_path: Path) -> None:
    axes = ", ".join(f"bench.{name}: {{ start: 1, stop: 400, step: 1 }}" for name in "mk")
    (found,) = problems(tmp_path, f"bench: matmul-composite\ngrid: {{ {axes} }}\n")
    assert "160,000 points" in found


def test_a_bench_that_builds_its_own_engines(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, "bench: milestone-1h-gemm\ngrid: { cube.hbm.slices: [8] }\n")
    assert "builds its own engines" in found
