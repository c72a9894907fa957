"""Points of equal work: groups, the best of each, and one Pareto front for each."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.common.errors import ConfigError
from kernbench.evaluation.sweep_loading import plan_sweep
from kernbench.evaluation.sweep_measure import PointRow
from kernbench.evaluation.sweep_results import draw_plot, pareto_front
from kernbench.evaluation.sweep_spec import Plot
from kernbench.evaluation.sweep_table import SweepTable, best_rows, group_by_work

TIMES = {(1, 2): 10.0, (1, 4): 8.0, (16, 2): 100.0, (16, 4): 120.0}
ROWS: tuple[PointRow, ...] = tuple(
    {"point": at, "bench.batch": batch, "cube.hbm.slices": slices, "status": "ok", "sim_ns": ns}
    for at, ((batch, slices), ns) in enumerate(TIMES.items())
)
AXES = ("bench.batch", "cube.hbm.slices")


def table(work: tuple[str, ...]) -> SweepTable:
    return SweepTable(AXES, ROWS, {"bench": "b", "work": list(work)})


def test_groups_in_the_order_of_rows() -> None:
    groups = group_by_work(ROWS, ["bench.batch"])
    assert {work: [row["point"] for row in rows] for work, rows in groups.items()} == {(1,): [0, 1], (16,): [2, 3]}
    assert list(group_by_work(ROWS, [])) == [()]


def test_the_best_of_each_work() -> None:
    def points(*work: str, largest: bool = False) -> list[object]:
        return [row["point"] for row in best_rows(ROWS, work, "sim_ns", largest=largest)]

    assert points() == [1]
    assert points(largest=True) == [3]
    assert points("bench.batch") == [1, 2]
    assert points("bench.batch", largest=True) == [0, 3]
    assert points("bench.batch", "cube.hbm.slices") == [0, 1, 2, 3]


def test_failed_points_and_texts_are_not_compared() -> None:
    rows: list[PointRow] = [*ROWS[1:], ROWS[0] | {"status": "failed"}, ROWS[2] | {"sim_ns": None, "verdict": "x"}]
    assert [row["point"] for row in best_rows(rows, ["bench.batch"], "sim_ns")] == [1, 2]
    assert best_rows(rows, [], "verdict") == []


def test_a_front_for_each_work() -> None:
    """Without axes of work, batch 1 beats all points of batch 16."""
    plot = Plot(kind="pareto", cost="cube.hbm.slices", value="sim_ns")

    def fronts(table: SweepTable) -> dict[str, list[float]]:
        lines = draw_plot(table, plot).axes[0].get_lines()
        return {str(line.get_label()): [float(cost) for cost in line.get_xdata()] for line in lines}

    assert fronts(table(())) == {"not beaten by any": [2.0, 4.0]}
    assert fronts(table(("bench.batch",))) == {"not beaten at batch 1": [2.0, 4.0], "not beaten at batch 16": [2.0]}


POINTS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=20)


@given(POINTS, st.booleans())
def test_no_point_dominates_a_front(points: list[tuple[int, int]], largest: bool) -> None:
    front = pareto_front([(float(cost), float(value)) for cost, value in points], largest=largest)
    losses = [(cost, -value if largest else value) for cost, value in points]
    for cost, value in (losses[at] for at in front):
        assert not any(other != (cost, value) and other[0] <= cost and other[1] <= value for other in losses)
    for cost, value in losses:
        assert any(losses[at][0] <= cost and losses[at][1] <= value for at in front)


def test_work_that_is_no_axis(tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text("bench: matmul-composite\ngrid: { bench.m: [32] }\nwork: [bench.n, bench.m, bench.m, 3]\n")
    with pytest.raises(ConfigError) as caught:
        plan_sweep(path)
    found = [f"{each.line}:{each.column} {each.path}: {each.message}" for each in caught.value.problems]
    assert found == ["3:35 work[3]: found 3, must be text"]
    path.write_text("bench: matmul-composite\ngrid: { bench.m: [32] }\nwork: [bench.n, bench.m, bench.m]\n")
    with pytest.raises(ConfigError) as caught:
        plan_sweep(path)
    found = [f"{each.line}:{each.column} {each.path}: {each.message}" for each in caught.value.problems]
    assert found == [
        "3:8 work[0]: 'bench.n' is no axis; did you mean 'bench.m'? the grid has bench.m",
        "3:26 work[2]: 'bench.m' is in the list twice",
    ]
