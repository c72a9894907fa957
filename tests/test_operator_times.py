"""The times of PyTorch's operators: calls of the census, figures that repeat, files, and their comparison."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from extras import need

need("torch")

from kernbench.common.imports import import_file  # noqa: E402
from kernbench.topology.builder import packaged_machines  # noqa: E402

ROOT = Path(__file__).parents[1]
TIMES = import_file(ROOT / "scripts" / "operator_times.py", "the times", once=True)
FROZEN = ROOT / "tests" / "frozen" / "operator_times.json"


def make_row(operator: str, ns: float | None = 100.0, machine: str = "edge", **fields: Any) -> Any:
    fields = {"launches": 1, "events": 10, **fields}
    return TIMES.Row(machine, operator, TIMES.EXAMPLE, 1, "float32 [4]", ns, **fields)


# --- calls ------------------------------------------------------------------------------------------------------------


def test_every_operator_of_the_census_has_an_example() -> None:
    census = import_file(ROOT / "scripts" / "census_torch.py", "the census").take_census()
    examples = {call.operator for call in TIMES.list_calls().values() if call.shape == TIMES.EXAMPLE}
    assert examples == {TIMES.operator_name(operator) for operator in census}


def test_calls_of_a_decoder_layer() -> None:
    calls = TIMES.list_calls()
    assert calls["silu", TIMES.ONE_TOKEN].arguments == "bfloat16 [1, 14336]"
    assert calls["gelu_backward", TIMES.MANY_TOKENS].arguments.startswith(
        "bfloat16 [512, 14336], bfloat16 [512, 14336]"
    )
    product = calls["mm", f"{TIMES.MANY_TOKENS}, 4096 to 4096"]
    assert product.arguments == "bfloat16 [512, 4096], bfloat16 [4096, 4096] strides [1, 4096]"
    assert product.cubes == TIMES.LAYER_CUBES
    operators = {operator for operator, shape in calls if shape.startswith(TIMES.ONE_TOKEN)}
    assert {"bmm", "addmm", "rms_norm", "native_layer_norm", "_softmax", "scaled_dot_product_attention"} <= operators
    assert "embedding" not in operators


def test_forms_keep_layouts_and_shared_storages() -> None:
    torch = TIMES.torch
    base = torch.empty(4, 6, dtype=torch.bfloat16, device="meta")
    left, right, number = TIMES.with_forms([base[:, :3], base[:, 3:].t(), 2])
    assert (left.storage, right.storage, number) == (0, 0, 2)
    assert (right.shape, right.strides, right.offset, right.storage_elements) == ((3, 4), (1, 6), 3, 24)
    assert [str(left), str(right)] == ["bfloat16 [4, 3] strides [6, 1]", "bfloat16 [3, 4] strides [1, 6]"]


def test_cheap_shapes_come_first() -> None:
    tasks = TIMES.list_tasks(["edge", "default"], "mm*", "*")
    assert [task.shape.partition(",")[0] for task in tasks if task.machine == "edge"] == [
        TIMES.EXAMPLE,
        *[TIMES.ONE_TOKEN] * 4,
        TIMES.MANY_TOKENS,
    ]
    assert [task.machine for task in tasks[:2]] == ["edge", "default"]
    assert TIMES.list_tasks(["edge"], "no such operator", "*") == []


# --- figures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", ["add.Tensor", "mm"])
def test_figures_repeat_and_leave_mapping_out(operator: str) -> None:
    task = TIMES.Task("edge", operator, TIMES.EXAMPLE)
    row, _ = TIMES.measure_call(task)
    TIMES.measure_call(TIMES.Task("edge", "gelu", TIMES.EXAMPLE))
    assert TIMES.measure_call(task)[0] == row
    assert row.error is None
    assert (row.launches, row.cubes) == (1, 1)
    assert 200 < row.ns < 3000
    assert row.events > 0


def test_a_view_takes_no_time_and_an_error_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    row, _ = TIMES.measure_call(TIMES.Task("edge", "t", TIMES.EXAMPLE))
    assert (row.ns, row.launches) == (0.0, 0)

    def refuse(*_: Any) -> None:
        raise RuntimeError("no such shape\nand more")

    call = replace(TIMES.list_calls()["t", TIMES.EXAMPLE], function=refuse)
    monkeypatch.setattr(TIMES, "list_calls", lambda: {call.key: call})
    row, _ = TIMES.measure_call(TIMES.Task("edge", "t", TIMES.EXAMPLE))
    assert row.error == "RuntimeError: no such shape"
    assert "ns" not in row.document


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_writes_sorted_rows_and_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "times.json"
    selection = ["--machines", "edge", "--shapes", "example", "--out", str(out)]
    assert TIMES.main(["--operators", "relu", *selection]) == 0
    assert TIMES.main(["--operators", "n*g", "--resume", *selection]) == 0
    rows = TIMES.read_rows(out)
    assert [row.operator for row in rows] == ["neg", "relu"]
    assert rows == sorted(rows, key=lambda row: row.key)
    capsys.readouterr()
    assert TIMES.main(["--operators", "relu", "--resume", *selection]) == 0
    assert capsys.readouterr().err == ""
    TIMES.write_rows(out, [replace(row, arguments="other") for row in rows])
    assert TIMES.main(["--operators", "relu", "--resume", *selection]) == 0
    assert TIMES.read_rows(out) == [rows[1]]
    with pytest.raises(SystemExit, match="no call matches"):
        TIMES.main(["--operators", "nothing", *selection])


@pytest.mark.slow
def test_processes_measure_the_same(tmp_path: Path) -> None:
    out = tmp_path / "times.json"
    command = [sys.executable, str(ROOT / "scripts" / "operator_times.py"), "--jobs", "2", "--out", str(out)]
    subprocess.run([*command, "--machines", "edge,one-cube", "--operators", "relu", "--shapes", "example"], check=True)
    rows = TIMES.read_rows(out)
    assert [row.machine for row in rows] == ["edge", "one-cube"]
    assert rows == [TIMES.measure_call(row.key)[0] for row in rows]


def test_a_comparison_counts_what_became_slower(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = tmp_path / "a.json", tmp_path / "b.json"
    TIMES.write_rows(before, [make_row("mm"), make_row("add"), make_row("t", 0.0), make_row("gone")])
    TIMES.write_rows(after, [make_row("mm", 104.0), make_row("add", 50.0, launches=2), make_row("t", 0.0)])
    assert TIMES.main(["compare", str(before), str(after)]) == 1
    report = capsys.readouterr().out
    assert "3 calls compared, 1 slower by more than 3 %\n  edge | mm | example: 100.0 to 104.0 ns, x 1.040" in report
    assert "edge: 0.7211" in report
    assert "edge | add | example: 1 to 2" in report
    assert "edge | gone | example: in one file only" in report
    assert TIMES.main(["compare", str(before), str(after), "--limit", "5"]) == 0


def test_a_comparison_of_calls_that_fail_or_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed = make_row("mm", None, launches=None, events=None, error="InputError: no")
    assert TIMES.Comparison.of([failed], [failed]).failing == []
    comparison = TIMES.Comparison.of([make_row("mm")], [failed])
    assert (comparison.changes, comparison.failing) == ([], [failed])
    other = replace(make_row("mm", 900.0), arguments="float32 [8]")
    assert TIMES.Comparison.of([make_row("mm")], [other]).changes == []
    (change,) = TIMES.Comparison.of([make_row("mm", 0.0)], [make_row("mm", 5.0)]).slower_than(3)
    assert change.ratio == float("inf")
    TIMES.write_rows(tmp_path / "a.json", [make_row("mm")])
    TIMES.write_rows(tmp_path / "b.json", [failed])
    assert TIMES.main(["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 1
    assert "1 calls fail only now\n  edge | mm | example: InputError: no" in capsys.readouterr().out


def test_the_frozen_measurement_is_sorted_and_current() -> None:
    rows = TIMES.read_rows(FROZEN)
    assert rows == sorted(rows, key=lambda row: row.key)
    assert {row.machine for row in rows} <= set(packaged_machines())
    assert [row.key for row in rows if row.error is not None] == []
    assert [row.key for row in rows if not TIMES.is_current(row)] == []
