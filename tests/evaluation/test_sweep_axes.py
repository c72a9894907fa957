"""Axes of the pictures of a sweep."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text

from kernbench.evaluation.sweep_axes import axis_text, mark_x, scale_y
from kernbench.evaluation.sweep_loading import plan_sweep
from kernbench.evaluation.sweep_results import draw_plots
from kernbench.evaluation.sweep_table import SweepTable
from kernbench.result.figure_style import PALETTE
from kernbench.runtime_api.run_request import RunRequest


def panel_over(values: list[float]) -> Axes:
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.add_subplot()
    panel.plot(values, values)
    return panel


def shown(panel: Axes) -> list[Text]:
    """The labels along x that are within the picture."""
    panel.figure.canvas.draw()
    low, high = panel.get_xlim()
    return [each for each in panel.get_xticklabels() if low <= each.get_position()[0] <= high]


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ([32, 64, 128, 256], "log"),
        ([32, 64, 1000], "log"),
        ([1000, 64, 32], "log"),
        ([0, 1, 1000], "linear"),
        ([1, 2, 3, 4, 6, 8, 12, 16], "log"),
        ([0.1, 0.2, 0.3, 0.4, 0.5], "linear"),
        ([65536, 65537, 1048576], "linear"),
        ([256], "linear"),
        (list(range(40)), "linear"),
    ],
)
def test_labels_along_x_do_not_overlap(values: list[float], scale: str) -> None:
    panel = panel_over(values)
    mark_x(panel, tuple(values))
    assert panel.get_xscale() == scale
    boxes = [each.get_window_extent() for each in shown(panel)]
    assert boxes
    assert all(left.x1 < right.x0 for left, right in pairwise(sorted(boxes, key=lambda box: box.x0)))


@pytest.mark.parametrize("values", [[1054.0, 1342.0], [0.0, 0.0], [5.0], [-3.0, 4.0]])
def test_the_largest_value_has_room_above_it(values: list[float]) -> None:
    panel = panel_over(values)
    scale_y(panel, values)
    low, high = panel.get_ylim()
    assert low == min(0.0, *values)
    assert high - max(values) >= 0.05 * high


def test_values_are_written_as_in_the_file() -> None:
    assert [axis_text(value) for value in (True, False, 1.0, 32, "f16")] == ["true", "false", "1", "32", "f16"]


def test_a_heat_map_of_what_binds(tmp_path: Path) -> None:
    """A colour for each verdict; a point without one has none."""
    (tmp_path / "grid.yaml").write_text(
        "bench: matmul-composite\ngrid: { bench.m: [32, 64], bench.n: [32, 64] }\n"
        "plots: [{ kind: heat-map, value: launch.bound }]\n"
    )
    plan = plan_sweep(tmp_path / "grid.yaml", RunRequest.of(topology="default"))
    bounds = ("HBM", "a tie of GEMM and fetch", "HBM", None)
    points = [(m, n) for m in (32, 64) for n in (32, 64)]
    rows = tuple(
        {"point": at, "bench.m": m, "bench.n": n, "status": "ok", "launch.bound": bound}
        for at, ((m, n), bound) in enumerate(zip(points, bounds, strict=True))
    )
    (path,) = draw_plots(tmp_path, plan, SweepTable(tuple(plan.axes), rows, {"bench": "matmul-composite"}))
    picture = imread(path)[..., :3].reshape(-1, 3).round(3)
    shares = [(abs(picture - to_rgb(colour)).max(axis=1) < 0.01).mean() for colour in PALETTE[:3]]
    assert shares[0] == pytest.approx(2 * shares[1], rel=0.1)
    assert shares[2] == 0
