"""A timeline as a picture: the engines of a PE and a memory during a kernel, drawn from a trace file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from kernbench.common.errors import InputError
from kernbench.common.values import value

# Okabe-Ito palette, light enough for black text. The colour of a tile shows its path from row to row.
TILE_COLOURS = ("#56B4E9", "#E69F00", "#35B58A", "#CC79A7", "#F0E442", "#D55E00", "#6C8EBF")
PLAIN = "#B0B0B0"
MOST_LANES = 4
"""Maximum number of lanes of an engine. With more, it has a single row, in which work overlaps."""
LETTER = 0.0088
"""Width of a character as a share of the picture's width"""
_TILE = re.compile(r"(.*) (\d+(?:,\d+)+)")


@value
class Bar:
    """A bar in a row of the picture; times in ns. ``tile`` is empty for work without a tile."""

    process: str
    row: str
    name: str
    start_ns: float
    ns: float
    tile: str


@value
class FigureRow:
    """A row with its bars."""

    label: str
    bars: tuple[Bar, ...]
    overlap: bool = False


def read_bars(path: Path) -> tuple[Bar, ...]:
    """Read the spans of a trace file. Raises InputError for other files."""
    try:
        return tuple(_bars(json.loads(path.read_text(encoding="utf-8"))["traceEvents"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a trace file: {error}") from error


def _bars(events: list[dict[str, Any]]) -> Iterator[Bar]:
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    threads = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    for event in events:
        if event["ph"] == "X":
            match = _TILE.fullmatch(event["name"])
            label, tile = match.groups() if match else (event["name"], "")
            times_ns = event["ts"] * 1000, event["dur"] * 1000
            yield Bar(processes[event["pid"]], threads[event["tid"]], label, *times_ns, tile)


def draw_timeline(bars: Iterable[Bar], pe: str, memory: str, path: Path) -> None:
    """Write ``timeline_figure`` to the image ``path``."""
    timeline_figure(bars, pe, memory).savefig(path, dpi=160)


def timeline_figure(bars: Iterable[Bar], pe: str, memory: str) -> Figure:
    """Draw the rows of process ``pe`` and the row of ``memory`` during the PE's kernels.

    Raises InputError if the PE ran no kernel.
    """
    spans = tuple(bars)
    kernels = [bar for bar in spans if bar.process == pe and bar.row == "cpu"]
    if not kernels:
        raise InputError(f"{pe} ran no kernel in this trace")
    begin, end = kernels[0].start_ns, max(bar.start_ns + bar.ns for bar in kernels)
    rows = timeline_rows([bar for bar in spans if begin <= bar.start_ns < end], pe, memory)
    figure = Figure(figsize=(10, 0.62 + 0.31 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    colours = _colours(rows)
    for at, row in enumerate(rows):
        for bar in row.bars:
            if row.overlap:
                _draw_overlapping(axes, bar, at, begin)
            else:
                _draw(axes, bar, at, begin, colours.get(bar.tile, PLAIN), LETTER * (end - begin))
    _style(axes, rows, end - begin)
    _legend(axes, colours)
    return figure


def timeline_rows(bars: Sequence[Bar], pe: str, memory: str) -> list[FigureRow]:
    """Return the rows of process ``pe`` in trace order, then the row of ``memory`` if it served accesses."""
    engines: dict[str, list[Bar]] = {}
    for bar in sorted((bar for bar in bars if bar.process == pe), key=lambda bar: _row_order(bar.row)):
        engines.setdefault(bar.row.partition(" #")[0], []).append(bar)
    rows = [row for engine, engine_bars in engines.items() for row in _rows_of(engine, engine_bars)]
    served = tuple(bar for bar in bars if bar.process == "memories" and bar.row == memory)
    return [*rows, FigureRow(memory, served)] if served else rows


def _rows_of(engine: str, bars: Sequence[Bar]) -> Iterator[FigureRow]:
    lanes = list(dict.fromkeys(bar.row for bar in bars))
    if len(lanes) > MOST_LANES:
        yield FigureRow(f"{engine} ({len(lanes)} at once)", tuple(bars), overlap=True)
    else:
        yield from (FigureRow(lane, tuple(bar for bar in bars if bar.row == lane)) for lane in lanes)


def _row_order(label: str) -> tuple[int, int]:
    engine, _, lane = label.partition(" #")
    engines = ("cpu", "scheduler", "DMA in", "fetch", "GEMM", "MATH", "store", "DMA out")
    return engines.index(engine) if engine in engines else len(engines), int(lane or 0)


def _colours(rows: Iterable[FigureRow]) -> dict[str, str]:
    tiles = sorted({bar.tile for row in rows for bar in row.bars if bar.tile})
    return {tile: TILE_COLOURS[at % len(TILE_COLOURS)] for at, tile in enumerate(tiles)}


def _draw(axes: Axes, bar: Bar, at: int, begin: float, colour: str, letter_ns: float) -> None:
    left = bar.start_ns - begin
    axes.broken_barh([(left, bar.ns)], (at - 0.4, 0.8), facecolor=colour, edgecolor="white", linewidth=0.6)
    label = bar.name if bar.name != "tile" else bar.tile
    if bar.ns >= letter_ns * len(label):
        axes.text(left + bar.ns / 2, at, label, ha="center", va="center", fontsize=7, color="black", clip_on=True)


def _draw_overlapping(axes: Axes, bar: Bar, at: int, begin: float) -> None:
    where = [(bar.start_ns - begin, bar.ns)]
    axes.broken_barh(where, (at - 0.4, 0.8), facecolor=PLAIN, edgecolor="white", linewidth=0.6, alpha=0.35)


def _style(axes: Axes, rows: Sequence[FigureRow], length_ns: float) -> None:
    axes.set_yticks(range(len(rows)), [row.label for row in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, length_ns)
    axes.set_xlabel("ns since the start of the kernel", fontsize=9)
    axes.tick_params(axis="x", labelsize=8)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=True, axis="x", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _legend(axes: Axes, colours: dict[str, str]) -> None:
    if not 0 < len(colours) <= len(TILE_COLOURS):
        return
    for tile, colour in colours.items():
        axes.broken_barh([(-1, 0)], (0, 0), facecolor=colour, label=f"tile {tile}")
    axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1.0), ncols=len(colours), frameon=False, fontsize=8, handlelength=1.2
    )
