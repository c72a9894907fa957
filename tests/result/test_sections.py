"""Sections of an outcome: one that is added appears in every form of a run, without another edit."""

from __future__ import annotations

import base64
import json
import pickle
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import kernbench as kb
from kernbench.cli.main import main
from kernbench.common.errors import InputError
from kernbench.common.figures import figure
from kernbench.common.values import value
from kernbench.result.sections import Absence, RunOutcome, Section, Unread, register, registered, sections

MACHINE = ("--topology", "one-cube")


@value
class Toggles:
    """Two figures that a test adds to every run."""

    link_bytes: int = figure("bytes on the busiest link")
    idle_share: float = figure("share of the time without an event")
    note: str = figure(column=False, default="kept out of sweeps")


@pytest.fixture
def toggles() -> Iterator[Section[Toggles]]:
    section = Section(
        name="toggles",
        form=Toggles,
        compute=lambda run: Toggles(run.report.traffic.busiest[0].nbytes, run.sim_ns / 1e6),
    )
    with registered(section):
        yield section


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_new_section_is_in_the_terminal_and_in_json(
    toggles: Section[Toggles], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--bench", "hello-send", *MACHINE, "-v"]) == 0
    shown = capsys.readouterr().out
    assert "toggles.link_bytes" in shown
    assert "bytes on the busiest link" in shown
    assert "toggles.note" not in shown
    assert main(["run", "--bench", "hello-send", *MACHINE, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["toggles"].keys() == {"link_bytes", "idle_share", "note"}
    assert list(document)[-1] == "configuration"


def test_a_new_section_is_in_loaded_and_pickled_runs(toggles: Section[Toggles], tmp_path: Path) -> None:
    run = kb.run("hello-send", "one-cube")
    (tmp_path / "run.json").write_text(json.dumps(run.to_dict()))
    for again in (kb.load("run.json"), pickle.loads(pickle.dumps(run))):
        assert isinstance(again, kb.Run)
        assert again.outcome[toggles].link_bytes == run.outcome[toggles].link_bytes > 0
        assert again.to_dict() == run.to_dict()


def test_a_new_section_is_in_sweeps_and_comparisons(
    toggles: Section[Toggles], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = {"bench.m": [16, 32]}
    sweep = kb.sweep("matmul-composite", "one-cube", grid=grid, workers=1, folder=tmp_path / "out")
    table = pq.read_table(tmp_path / "out" / "sweep.parquet")
    assert table.column_names[-2:] == ["toggles.link_bytes", "toggles.idle_share"]
    assert table.schema.field("toggles.link_bytes").type == "int64"
    first, second = table.column("toggles.link_bytes").to_pylist()
    assert (sweep.best("toggles.link_bytes")["toggles.link_bytes"], first < second) == (first, True)
    points = [f"{tmp_path}/out/sweep.parquet:{at}" for at in range(2)]
    figures = {change.name: change for change in kb.compare(*points).comparison.figures}
    assert (figures["toggles.link_bytes"].a_ns, figures["toggles.link_bytes"].b_ns) == (first, second)
    assert main(["compare", *points, "-v"]) == 0
    assert "toggles.link_bytes" in capsys.readouterr().out


def test_a_new_section_is_on_the_page(toggles: Section[Toggles]) -> None:
    kb.run("hello-send", "one-cube").page("page.html")
    packed = re.search(r'id="data">([^<]*)</script>', Path("page.html").read_text())
    assert packed is not None
    content = zlib.decompress(base64.b64decode(packed[1]))
    head = json.loads(content[4 : 4 + int.from_bytes(content[:4], "little")])
    figures = {name: about for name, _, about in head["run"]["figures"]}
    assert figures["toggles.link_bytes"] == "bytes on the busiest link"


def test_sections_are_computed_when_they_are_asked_for() -> None:
    computed = []

    def compute(run: Any) -> Toggles:
        computed.append(run)
        return Toggles(1, 0.5)

    with registered(Section(name="late", form=Toggles, compute=compute)) as late:
        run = kb.run("hello-send", "one-cube")
        assert not computed
        assert run.outcome[late] is run.outcome[late]
        assert len(computed) == 1


def test_an_absent_section_has_its_reason() -> None:
    section = Section[Toggles](name="absent", form=Toggles, compute=lambda _: Absence("nothing toggled"))
    with registered(section):
        run = kb.run("hello-send", "one-cube")
        assert "absent" not in run.to_dict()
        with pytest.raises(InputError, match="this run has no absent, since nothing toggled"):
            run.outcome[section]


def test_a_fault_of_a_section_costs_no_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("KERNBENCH_STRICT")
    section = Section[Toggles](name="faulty", form=Toggles, compute=lambda _: Toggles())
    with registered(section):
        monkeypatch.setattr("kernbench.observe.guard.program_line", lambda _: None)
        run = kb.run("hello-send", "one-cube")
        assert run.to_dict()["faulty_failed"].startswith("faulty failed: TypeError")
        assert main(["run", "--bench", "hello-send", *MACHINE, "-v"]) == 0
        assert "OK  hello-send" in capsys.readouterr().out


def test_a_section_of_a_later_version_stays_a_mapping(tmp_path: Path) -> None:
    document = kb.run("hello-send", "one-cube").to_dict()
    content = {"link_bytes": [1, 2], "unit": "flits"}
    document |= {"toggles": content, "section_versions": {"toggles": 2}, "unknown": {"a": 1}}
    (tmp_path / "run.json").write_text(json.dumps(document))
    with registered(Section[Toggles](name="toggles", form=Toggles, compute=lambda _: Absence("loaded"))) as section:
        run = kb.load("run.json")
        assert isinstance(run, kb.Run)
        assert isinstance(run.outcome.find(section), Unread)
        again = run.to_dict()
        assert (again["toggles"], again["unknown"]) == (content, {"a": 1})
        assert again["section_versions"] == {"toggles": 2}
        with pytest.raises(InputError, match=r"a later version of kernbench wrote it \(version 2\)"):
            run.outcome[section]


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ValueError, match="'time' exists already"):
        register(Section[Toggles](name="time", form=Toggles, compute=lambda _: Absence("")))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sim_ns": "5"}, "sim_ns: found '5', must be a plain number, in ns"),
        ({"launches": 3}, "launches: found 3, must be a list"),
        ({"traffic": {}}, "traffic: missing key 'hbm_in'"),
        ({"engines": [{"engine": 5}]}, r"engines\[0\]\.engine: found 5, must be"),
        ({"params": None}, "params: found nothing, must be a mapping"),
    ],
)
def test_a_document_of_another_form(tmp_path: Path, change: Mapping[str, Any], message: str) -> None:
    document = kb.run("hello-send", "one-cube").to_dict() | change
    (tmp_path / "run.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match=f"run.json: not an output of kernbench run --json: {message}"):
        kb.load("run.json")


def test_columns_do_not_collide() -> None:
    names = [name for section in sections() for name in section.all_columns]
    assert len(names) == len(set(names))
    assert isinstance(RunOutcome().document, dict)


def test_the_same_section_may_be_registered_again_and_another_may_not(toggles: Section[Toggles]) -> None:
    again = Section[Toggles](name="toggles", form=Toggles, compute=toggles.compute)
    assert register(again) is again

    @value
    class Other:
        """Another type of the same name."""

        status: str

    for section in (
        Section[Other](name="toggles", form=Other, compute=lambda _: Absence("")),
        Section[Other](name="status", form=Other, compute=lambda _: Absence("")),
        Section[Other](name="others", form=Other, compute=lambda _: Absence(""), inline=True),
        Section[Other](name="section_versions", form=Other, compute=lambda _: Absence("")),
    ):
        with pytest.raises(ValueError, match="exists already, or the document has the key"):
            register(section)


def test_a_section_whose_figures_are_of_another_type_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNBENCH_STRICT")
    section = Section[Toggles](name="odd", form=Toggles, compute=lambda _: Toggles(2.5, 0.5))  # type: ignore[arg-type]
    with registered(section):
        document = kb.run("hello-send", "one-cube").to_dict()
        assert document["odd_failed"].startswith("odd failed: FormError: link_bytes: found 2.5, must be a whole number")
        assert "odd" not in document


def test_workers_import_the_modules_that_add_sections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hops_of_runs.py").write_text(
        "from kernbench.common.values import value\n"
        "from kernbench.result.sections import Section, register\n\n\n"
        "@value\nclass Hops:\n    transfers: int\n\n\n"
        "register(Section(name='hops', form=Hops, compute=lambda run: Hops(run.report.transfers)))\n"
    )
    script = (
        "import sys; import kernbench as kb; import hops_of_runs\n"
        "sweep = kb.sweep('hello-send', 'one-cube', grid={'cube.hbm.num_pcs': [4, 8]}, workers=2)\n"
        "sys.exit(None in sweep.table.column('hops.transfers'))\n"
    )
    (tmp_path / "study.py").write_text(script)
    done = subprocess.run([sys.executable, "study.py"], check=False, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_loaded_run_has_its_advice(tmp_path: Path) -> None:
    document = kb.run("hello-send", "one-cube", advise=True).to_dict()
    (tmp_path / "run.json").write_text(json.dumps(document))
    run = kb.load("run.json")
    assert isinstance(run, kb.Run)
    assert run.to_dict()["advice"] == run.advised == document["advice"]
    assert pickle.loads(pickle.dumps(run)).advised == document["advice"]
