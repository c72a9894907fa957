"""A picture of a trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernbench.common.errors import InputError
from kernbench.evaluation.timeline_figure import Bar, draw_timeline, read_bars, timeline_rows


def trace_file(folder: Path) -> Path:
    events = [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "PE"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "cpu"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 3, "args": {"name": "GEMM"}},
        {"ph": "X", "name": "work", "pid": 1, "tid": 2, "ts": 0.1, "dur": 0.2},
        {"ph": "X", "name": "tile 0,1,2", "pid": 1, "tid": 3, "ts": 0.15, "dur": 0.016},
    ]
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def test_bars_of_a_file(tmp_path: Path) -> None:
    kernel, tile = read_bars(trace_file(tmp_path))
    assert (kernel.process, kernel.row, kernel.name, kernel.tile) == ("PE", "cpu", "work", "")
    assert (tile.row, tile.name, tile.tile, tile.ns) == ("GEMM", "tile", "0,1,2", 16.0)


def test_a_picture(tmp_path: Path) -> None:
    draw_timeline(read_bars(trace_file(tmp_path)), "PE", "none", tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InputError, match="ran no kernel"):
        draw_timeline(read_bars(trace_file(tmp_path)), "another PE", "none", tmp_path / "figure.png")


def test_an_engine_with_many_lanes_has_one_row() -> None:
    def lane(number: int) -> Bar:
        return Bar("PE", "DMA in" if number == 1 else f"DMA in #{number}", "load", 10.0 * number, 50.0, "")

    few, many = (timeline_rows([lane(each) for each in range(1, 1 + lanes)], "PE", "none") for lanes in (4, 5))
    assert [row.label for row in few] == ["DMA in", "DMA in #2", "DMA in #3", "DMA in #4"]
    (row,) = many
    assert (row.label, len(row.bars), row.overlap) == ("DMA in (5 at once)", 5, True)


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"traceEvents": 1}'])
def test_no_trace_file(tmp_path: Path, content: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(content)
    with pytest.raises(InputError, match="not a trace file"):
        read_bars(path)
