"""Benchmarks of host programs: ``triton.testing.do_bench`` and ``perf_report``, in simulated time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import field
from functools import wraps
from typing import TYPE_CHECKING, TypeAlias

from triton.testing import Benchmark, Mark

from kernbench.common.values import state
from kernbench.frontends.triton.launch import context_of
from kernbench.runtime_api.context import AnyContext

if TYPE_CHECKING:
    import pandas as pd

ReportValue: TypeAlias = float | tuple[float, ...]
"""A result of a measured function, which may add the least and the greatest"""

_OF_TABLES = frozenset(("diff_col", "save_precision"))
"""Keyword arguments that a report uses for its table. It passes all others to the measured function."""


@state
class Measurements:
    """The operators that the host computed in each ``do_bench`` call; an empty set for a call that launched kernels."""

    copies: list[frozenset[str]] = field(default_factory=list)


def _measurements(context: AnyContext) -> Measurements:
    measurements = context.rank_local.get(Measurements)
    if measurements is None:
        context.rank_local.put(measurements := Measurements())
    return measurements


def do_bench(
    fn: Callable[[], object],
    warmup: float = 0,  # noqa: ARG001 - for repeats, as are rep and grad_to_none
    rep: float = 0,  # noqa: ARG001
    grad_to_none: object = None,  # noqa: ARG001
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
) -> float | list[float]:
    """Return the simulated milliseconds of one call of ``fn``; a repeated call would take as long.

    Replaces Triton's ``do_bench``.
    """
    context = context_of("do_bench")
    context.queue.wait()
    start, launches, unmodelled = context.engine.now, _launches(context), context.unmodelled.copy()
    fn()
    context.queue.wait()
    ms = (context.engine.now - start) * 1e-6
    computed = frozenset(context.unmodelled - unmodelled) if _launches(context) == launches else frozenset()
    _measurements(context).copies.append(computed)
    if computed:
        print(
            f"do_bench: {ms:.6f} ms is the time of copies only, since the host computed {', '.join(sorted(computed))}"
        )
    if quantiles is None:
        return [ms] if return_mode == "all" else ms
    return ms if len(quantiles) == 1 else [ms] * len(quantiles)


def _launches(context: AnyContext) -> int:
    return sum(trace.phase == "launch" for trace in context.traces)


def report_of(draw: Callable[..., pd.DataFrame]) -> Callable[..., pd.DataFrame]:
    """Return the replacement of ``Mark._run``; ``draw`` is the original.

    If the run's settings limit the number of values of x, the report measures only the first ones, and says so. If a
    measurement fails, it prints the results so far. A line that measured only copies to and from the host is ``n/a``
    in the table, and is not drawn.
    """

    @wraps(draw)
    def run(
        mark: Mark, bench: Benchmark, save_path: str, show_plots: bool, print_data: bool, **kwargs: object
    ) -> pd.DataFrame:
        bench = _first_points(bench)
        fixed = {**bench.args, **{name: option for name, option in kwargs.items() if name not in _OF_TABLES}}
        figures, computed = _measure_all(mark.fn, bench, fixed)
        modelled = [line for line in range(len(bench.line_vals)) if line not in computed]
        drawn, shown = copy(mark), iter([row[line] for row in figures for line in modelled])
        drawn.fn = lambda **_: next(shown)
        table = draw(drawn, _select_lines(bench, modelled), save_path, show_plots, False, **kwargs)
        for line in computed:
            table.insert(len(bench.x_names) + line, f"{bench.line_names[line]} ({bench.ylabel})", "n/a")
        if print_data:
            print(f"{bench.plot_name}:", table.to_string(), sep="\n")
            for line, names in computed.items():
                print(f"n/a: {bench.line_names[line]} is of copies only: the host computed {', '.join(sorted(names))}")
        return table

    return run


def _first_points(bench: Benchmark) -> Benchmark:
    points, total = context_of("perf_report").frontends.triton.points, len(bench.x_vals)
    if points is None or points >= total:
        return bench
    print(f"{bench.plot_name}: the first {points} of {total} values of {', '.join(bench.x_names)}")
    few = copy(bench)
    few.x_vals = list(bench.x_vals)[:points]
    return few


def _select_lines(bench: Benchmark, lines: Sequence[int]) -> Benchmark:
    """Return the benchmark with some of its lines."""
    part = copy(bench)
    part.line_vals, part.line_names = [bench.line_vals[i] for i in lines], [bench.line_names[i] for i in lines]
    part.styles = [bench.styles[i] for i in lines] if bench.styles else bench.styles
    return part


def _measure_all(
    measure: Callable[..., ReportValue], bench: Benchmark, fixed: Mapping[str, object]
) -> tuple[list[list[ReportValue]], dict[int, frozenset[str]]]:
    """Return the figures of all lines for each x, and the operators of lines for which the host computed everything."""
    figures: list[list[ReportValue]] = []
    computed: list[list[frozenset[str]]] = [[] for _ in bench.line_vals]
    finished: list[str] = []
    try:
        for point in _points_of(bench):
            figures.append([])
            for line, provider in enumerate(bench.line_vals):
                copies = _measurements(context_of("perf_report")).copies
                copies.clear()
                figure = measure(**point, **{bench.line_arg: provider}, **fixed)
                names = frozenset().union(*copies) if copies and all(copies) else frozenset[str]()
                computed[line].append(names)
                figures[-1].append(figure)
                values = ", ".join(f"{name}={x}" for name, x in {**point, bench.line_arg: provider}.items())
                finished.append(f"  {values}: {'n/a' if names else figure}")
    except BaseException:
        if finished:
            print(f"{bench.plot_name} ({bench.ylabel}), incomplete:", *finished, sep="\n")
        raise
    return figures, {i: frozenset().union(*names) for i, names in enumerate(computed) if names and all(names)}


def _points_of(bench: Benchmark) -> Iterator[dict[str, object]]:
    for x in bench.x_vals:
        yield dict(zip(bench.x_names, x if isinstance(x, list | tuple) else [x] * len(bench.x_names), strict=True))
