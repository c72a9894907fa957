"""Derived columns of sweeps: what is refused, their cells, their file, and sweeps that resume with other columns."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kernbench.common.errors import ConfigError, InputError
from kernbench.evaluation.compare_inputs import take_table
from kernbench.evaluation.compare_results import compare_results
from kernbench.evaluation.compare_sentences import verdict
from kernbench.evaluation.sweep_journal import Journal, begin_journal, resume_journal
from kernbench.evaluation.sweep_loading import plan_sweep
from kernbench.evaluation.sweep_plan import SweepPlan
from kernbench.evaluation.sweep_point import PointOutcome
from kernbench.evaluation.sweep_results import write_results
from kernbench.evaluation.sweep_table import read_sweep_table, sweep_table, write_sweep_table
from kernbench.runtime_api.run_request import RunRequest

GRID = """\
bench: matmul-composite
set: { bench.k: 64, cube.hbm.bytes_per_slice: 1GiB }
grid: { bench.m: [32, 64], cube.hbm.slices: [8, 4] }
plots: []
"""


def plan(folder: Path, text: str) -> SweepPlan:
    path = folder / "grid.yaml"
    path.write_text(text)
    return plan_sweep(path, RunRequest.of(topology="default"))


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        plan(folder, text)
    return [f"{each.line}:{each.column} {each.path}: {each.message}" for each in caught.value.problems]


def outcomes(sim_ns: float = 1000.0) -> dict[int, PointOutcome]:
    """Finished points; the last one is invalid, the third has no numbers of its launch."""
    row: dict[str, Any] = {"status": "ok", "sim_ns": sim_ns, "launch.ns": 500.0, "machine": "x", "params": params(32)}
    row |= {"changed": '{"cube.hbm.bytes_per_slice": 1073741824}', "run.bound": "HBM"}
    rows = [row, row | {"sim_ns": 2 * sim_ns}, row | {"launch.ns": None, "params": params(64)}]
    invalid = {"status": "invalid", "error": "no"}
    return {at: PointOutcome(at, cells, 0.1) for at, cells in enumerate([*rows, invalid])}


def params(m: int) -> str:
    return json.dumps({"m": m, "k": 64, "n": 128, "dtype": "f16"})


def derived(folder: Path, **columns: str) -> list[list[Any]]:
    """The cells of some derived columns, by column."""
    lines = "".join(f"  {name}: {text!r}\n" for name, text in columns.items())
    table = sweep_table(plan(folder, f"{GRID}columns:\n{lines}"), outcomes())
    return [[row[name] for row in table.rows] for name in columns]


def test_what_expressions_may_use(tmp_path: Path) -> None:
    """A column, an axis, a fixed value, a default of the bench, keys of the machine, a front end, another column."""
    assert derived(
        tmp_path,
        per_ns="bench.m / sim_ns",
        work="bench.m * bench.k * bench.n",
        ratio="launch.ns / sim_ns",
        chip="system.sips.count * cube.hbm.slices",
        size="cube.hbm.bytes_per_slice / 2 ** 30",
        bound="1 if run.bound == 'HBM' else 0",
        cubes="torch.cubes + point",
        above="ratio * 100",
    ) == [
        [0.032, 0.016, 0.064, None],
        [32 * 64 * 128.0, 32 * 64 * 128.0, 64 * 64 * 128.0, None],
        [0.5, 0.25, None, None],
        [16.0, 8.0, 16.0, None],
        [1.0, 1.0, 1.0, None],
        [1.0, 1.0, 1.0, None],
        [1.0, 2.0, 3.0, None],
        [50.0, 25.0, None, None],
    ]


def test_they_follow_the_measured_columns_in_the_file(tmp_path: Path) -> None:
    table = sweep_table(
        plan(tmp_path, f"{GRID}columns: {{ b_s: 1e9 / sim_ns, a: bench.m, none: 1 / 0 }}\n"), outcomes()
    )
    path = tmp_path / "sweep.parquet"
    write_sweep_table(table, path)
    schema = pq.read_schema(path)
    assert schema.names[-2:] == ["b_s", "a"]
    assert {str(schema.field(name).type) for name in ("b_s", "a")} == {"double"}
    loaded = read_sweep_table(path)
    assert loaded.derived == {"b_s": "1e9 / sim_ns", "a": "bench.m", "none": "1 / 0"}
    assert loaded.numbers("b_s") == table.numbers("b_s")


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"columns": {"a": 3}}, "its metadata have a mapping as columns, must be a mapping of names to texts"),
        ({"columns": ["a"]}, r"its metadata have \['a'\] as columns"),
        ({"columns": {"run.bound": "1"}}, "'run.bound' is of type string, must be double"),
        ({"work": ["bench.k"]}, r"its metadata have \['bench.k'\] as work, must be names of axes"),
        ({"work": "bench.m"}, "its metadata have 'bench.m' as work"),
        ({"machines": [3]}, r"its metadata have \[3\] as machines"),
    ],
)
def test_hostile_metadata(tmp_path: Path, about: dict[str, object], message: str) -> None:
    path = tmp_path / "sweep.parquet"
    table = sweep_table(plan(tmp_path, GRID), outcomes())
    write_sweep_table(table, path)
    metadata = {b"kernbench.sweep": json.dumps({**table.about, "axes": table.axes, **about}).encode()}
    pq.write_table(pq.read_table(path).replace_schema_metadata(metadata), path)
    with pytest.raises(InputError, match=message):
        read_sweep_table(path)


def test_every_error_before_anything_runs(tmp_path: Path) -> None:
    text = """\
bench: matmul-composite
grid: { bench.m: [32], cube.hbm.slices: [8, 4] }
columns:
  tokens_s: bench.mm / sim_ns * 1e9
  sim_ns: "2"
  bench.m: "1"
  bench.k: "1"
  a b: bench.m
  min: bench.m
  late: early + 1
  early: launch.verdict + 1
  text: run.bound
  sum: sim_ns +* 3
  list: cube.pe_layout.corners * 2
  number: 3
  slices: cube.hbm.slice / bench.m + simns
"""
    found = problems(tmp_path, text)
    assert [each.split(";")[0].split(", expected")[0] for each in found] == [
        "4:13 columns.tokens_s: character 1 of 'bench.mm / sim_ns * 1e9': 'bench.mm' is no column and no path",
        "5:3 columns.sim_ns: 'sim_ns' is a column already",
        "6:3 columns.bench.m: 'bench.m' is an axis of the grid",
        "7:3 columns.bench.k: 'bench.k' is a path already",
        "8:3 columns.a b: 'a b' is no name of a column",
        "9:3 columns.min: 'min' is a word of expressions",
        "10:9 columns.late: character 1 of 'early + 1': 'early' is not above this column",
        "11:10 columns.early: character 1 of 'launch.verdict + 1': 'launch.verdict' is a text",
        "12:9 columns.text: character 1 of 'run.bound': the result is a text, must be a number",
        "13:8 columns.sum: character 9 of 'sim_ns +* 3': found '*'",
        "14:9 columns.list: character 1 of 'cube.pe_layout.corners * 2': 'cube.pe_layout.corners' is a list, "
        "must be a number or a text",
        "15:11 columns.number: found 3, must be text",
        "16:11 columns.slices: character 1 of 'cube.hbm.slice / bench.m + simns': 'cube.hbm.slice' is no column and "
        "no path",
        "16:11 columns.slices: character 28 of 'cube.hbm.slice / bench.m + simns': 'simns' is no column and no path",
    ]
    assert "did you mean 'bench.m'? there are the axes bench.m, cube.hbm.slices; the columns sim_ns," in found[0]
    assert "launch.*, run.*" in found[0]
    assert "the parameters bench.m, bench.k, bench.n," in found[0]
    assert "did you mean 'cube.hbm.slices'?" in found[-2]
    assert "did you mean 'sim_ns'?" in found[-1]


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("bench: nothing\ngrid: { cube.hbm.slices: [8] }\ncolumns: { a: bench.q + sim }\n", "'sim'"),
        (
            "bench: matmul-composite\ntopology: none.yaml\ngrid: { bench.m: [8] }\ncolumns: { a: cube.q + sim }\n",
            "'sim'",
        ),
    ],
)
def test_what_cannot_be_loaded_is_not_guessed(tmp_path: Path, text: str, known: str) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        plan_sweep(path)
    (error,) = [each.message for each in caught.value.problems if each.path == "columns.a"]
    assert f"{known} is no column" in error


def test_plots_of_derived_columns(tmp_path: Path) -> None:
    plots = "plots: [{ kind: lines, value: rate_s }, { kind: pareto, cost: price, value: rate_s, largest: true }]\n"
    text = GRID.replace("plots: []\n", plots)
    spec = plan(tmp_path, f"{text}columns: {{ rate_s: 1 / sim_ns, price: cube.hbm.slices * 3 }}\n").spec
    assert spec.plots is not None
    assert spec.plots[1].largest
    (error,) = problems(tmp_path, f"{text}columns: {{ rates_s: 1 / sim_ns, price: cube.hbm.slices * 3 }}\n")[:1]
    assert "'rate_s' is no numeric column; did you mean 'rates_s'?" in error


def finished(plan: SweepPlan, path: Path) -> Journal:
    with begin_journal(path, plan.identity(), plan.n_points) as journal:
        journal.append(outcomes().values())
    return journal


def test_other_columns_keep_the_finished_points(tmp_path: Path) -> None:
    """The journal does not depend on them; results that are written again have them."""
    before = plan(tmp_path, f"{GRID}columns: {{ a: 1 / sim_ns }}\n")
    finished(before, tmp_path / "journal.jsonl")
    after = plan(tmp_path, f"{GRID}columns: {{ b_s: 1e9 / sim_ns }}\nwork: [bench.m]\n")
    with resume_journal(tmp_path / "journal.jsonl", after.identity(), after.n_points) as journal:
        assert len(journal.finished) == 4
        table, _ = write_results(tmp_path, after, journal)
    assert (table.derived, table.work) == ({"b_s": "1e9 / sim_ns"}, ("bench.m",))
    assert read_sweep_table(tmp_path / "sweep.parquet").about == table.about
    assert before.about() != after.about()
    assert "columns" not in plan(tmp_path, GRID).about()


def test_two_sweeps_compared(tmp_path: Path) -> None:
    columns = "columns: { rate_s: 1e9 / sim_ns, size: bench.m, other: 3 * bench.m }\n"
    a = sweep_table(plan(tmp_path, GRID + columns), outcomes())
    b = sweep_table(plan(tmp_path, GRID + columns.replace("3 *", "4 *")), outcomes(800.0))
    compared = compare_results(take_table("a", a), take_table("b", b))
    sentences = verdict(compared)
    assert "columns: rate_s +25.0%; size as before" in sentences
    assert "column other is 3 * bench.m in A and 4 * bench.m in B: not compared" in sentences
    first = compared.pairs[0].columns
    assert [(pair.name, pair.a, pair.b) for pair in first] == [("rate_s", 1e6, 1.25e6), ("size", 32.0, 32.0)]
    one = replace(take_table("a", a), axes=(), results=take_table("a", a).results[:1])
    other = replace(take_table("b", b), axes=(), results=take_table("b", b).results[:1])
    assert "columns: rate_s 1,000,000 → 1,250,000 (+25.0%); size 32 → 32 (as before)" in verdict(
        compare_results(one, other)
    )
