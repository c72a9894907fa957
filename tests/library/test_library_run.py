"""Tests of ``kb.run``: its result as data, what outlives its engine, and what is refused."""

from __future__ import annotations

import json
import pickle
import warnings
from pathlib import Path
from typing import Any, NoReturn

import pytest

import kernbench as kb
from kernbench.runtime_api import run_explanation

PROGRAM = '''
def run(torch):
    """Copies a tensor."""
    torch.zeros(64, dtype="f16", name="x")
'''


@pytest.fixture(scope="module")
def attention() -> kb.Run:
    return kb.run("attention", "one-cube", lq=32, params={"lk": 64}, verify=True)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_run_and_its_tables(attention: kb.Run) -> None:
    assert (attention.ok, attention.verified, attention.error, attention.place) == (True, True, None, None)
    assert attention.params["lq"] == 32
    assert attention.params["lk"] == 64
    assert attention.latency_ns == attention.to_dict()["sim_ns"]
    tables = (attention.phases, attention.launches, attention.engines, attention.links, attention.memories)
    assert all(len(table) for table in (*tables, attention.comparisons))
    assert attention.launches.column("name") == ["attention"]
    assert sum(attention.memories.column("bytes_in")) == attention.report.traffic.hbm_in  # type: ignore[arg-type]


def test_a_repr_is_ten_lines_with_the_verdict_first(attention: kb.Run) -> None:
    lines = repr(attention).splitlines()
    assert lines[0] == attention.verdict.sentence
    assert "% of " in lines[0]
    assert lines[1].startswith("OK  attention: ")
    assert len(lines) <= 10
    page = attention._repr_html_()
    assert page.index("<svg") < page.index("<table>")


def test_a_document_has_what_was_found_first_and_the_configuration_last(attention: kb.Run) -> None:
    names = list(attention.to_dict())
    assert names[:4] == ["status", "verdict", "error", "place"]
    assert names[-1] == "configuration"


def test_loaded_and_unpickled_it_is_the_same(attention: kb.Run, tmp_path: Path) -> None:
    document = attention.to_dict()
    path = tmp_path / "run.json"
    path.write_text(json.dumps(document))
    stored = pickle.dumps(attention)
    for again in (kb.load(path), pickle.loads(stored)):
        assert again.to_dict() == document
        assert again.launches.to_dicts() == kb.load(path).launches.to_dicts()
        assert again.explain().critical_path.to_dicts() == attention.explain().critical_path.to_dicts()
        assert again.explain().roofline_figure().axes
        assert again.machine.digest == attention.digest
        with pytest.raises(kb.InputError, match="run again"):
            again.trace("t.json")
    assert len(stored) < 100_000


def test_what_needs_the_engine(attention: kb.Run, tmp_path: Path) -> None:
    attention.trace(tmp_path / "t.json")
    attention.page(tmp_path / "p.html")
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert "</html>" in (tmp_path / "p.html").read_text()
    assert attention.log.num_rows == attention.report.records
    assert attention.log is attention.log
    assert attention.transfers.num_rows == attention.report.transfers
    assert attention.timeline().axes
    assert attention.engine.now > 0


def test_explained_times_add_up(attention: kb.Run) -> None:
    found = attention.explain()
    for each in (found, *found.launches):
        assert sum(each.critical_path.column("ns")) == pytest.approx(each.total_ns)  # type: ignore[arg-type]
    assert found.total_ns == attention.latency_ns
    assert any("tl.dot" in str(source) for source in found.launches[0].lines.column("source"))
    assert len(repr(found).splitlines()) <= 10


def test_without_observing_times_are_the_same_and_nothing_is_explained(attention: kb.Run) -> None:
    plain = kb.run("attention", "one-cube", lq=32, lk=64, verify=True, observe=False)
    document = attention.to_dict()
    different = {name for name, said in plain.to_dict().items() if said != document[name]}
    assert different == {"verdict", "energy"}
    assert {
        name for name in document["energy"] if document["energy"].get(name) != plain.to_dict()["energy"].get(name)
    } == {"split"}
    assert plain.verdict.sentence.startswith("not observed; busiest: ")
    for ask in (plain.explain, lambda: plain.trace("t.json"), lambda: plain.page("p.html")):
        with pytest.raises(kb.InputError, match="observe=True"):
            ask()


def test_a_function_a_file_and_a_module_are_programs(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    named: Any = {}
    exec(PROGRAM, named)
    found = [kb.run(each, "one-cube") for each in ("program.py", Path("program.py"), "program.py:run", named["run"])]
    found.append(kb.run("kernbench.benches.hello_send:run", "one-cube"))
    assert [each.status for each in found] == ["OK"] * 5
    assert len({each.latency_ns for each in found[:4]}) == 1


def test_a_program_that_fails_raises_only_when_asked() -> None:
    def fails(torch: Any) -> None:
        raise ValueError("no such luck")

    found = kb.run(fails, "one-cube")
    assert (found.ok, found.status) == (False, "FAILED")
    assert str(found.error) == "ValueError: no such luck"
    assert found.place is not None
    assert found.place.line is not None
    assert found.place.line.file == __file__
    with pytest.raises(ValueError, match="no such luck"):
        found.raise_for_status()
    with pytest.raises(kb.RunError, match="ValueError: no such luck"):
        pickle.loads(pickle.dumps(found)).raise_for_status()


def test_ctrl_c_ends_the_run_and_leaves_the_next_one_as_it_is() -> None:
    def stopped(torch: Any) -> None:
        torch.zeros(64, dtype="f16", name="x")
        raise KeyboardInterrupt

    found = kb.run(stopped, "one-cube")
    assert found.status == "INTERRUPTED"
    assert found.latency_ns > 0
    assert kb.run("hello-send", "one-cube").ok


def interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def test_a_run_is_there_although_its_explanation_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = kb.run("hello-send", "one-cube")
    monkeypatch.setattr(run_explanation, "explain_run", interrupt)
    found = kb.run("hello-send", "one-cube", advise=True)
    assert (found.status, found.exit_code, found.advised) == ("INTERRUPTED", 130, None)
    assert found.remarks == ("not explained: the explanation was interrupted",)
    assert found.verdict.sentence.startswith("not explained; busiest: ")
    assert (found.latency_ns, found.report, found.checks) == (whole.latency_ns, whole.report, whole.checks)
    assert "explanation" not in found.to_dict()
    with pytest.raises(kb.InputError, match="its explanation was interrupted"):
        found.explain()
    with pytest.raises(kb.InputError, match="run again"):
        found.page("page.html")


def test_an_explanation_says_what_was_seen_whatever_the_machine_does_afterwards() -> None:
    def breaks_off(x: int, *, tl: Any) -> None:
        tl.store(x, tl.exp(tl.load(x, 64, "f16")))
        raise KeyboardInterrupt

    def program(torch: Any) -> None:
        torch.launch("k", breaks_off, torch.zeros(64, dtype="f16", name="x"))

    at_once, late = kb.run(program, "one-cube"), kb.run(program, "one-cube")
    said = at_once.to_dict()
    assert [line["busy"] for line in said["explanation"]["launches"][0]["lines"]] == [[]], "nothing has begun"
    late.engine.drain()  # the kernel is stopped now, and what it had under way ends
    assert late.to_dict() == said


@pytest.mark.parametrize(
    ("raised", "status", "said"),
    [
        (KeyboardInterrupt(), "INTERRUPTED", ()),
        (ValueError("used up"), "OK", ("no advice: the program fails when it runs again: ValueError: used up",)),
    ],
)
def test_a_run_is_there_although_its_advice_is_not(raised: BaseException, status: str, said: tuple[str, ...]) -> None:
    times = []

    def once(torch: Any) -> None:
        times.append(torch.zeros(64, dtype="f16", name="x"))
        if len(times) > 1:
            raise raised

    found = kb.run(once, "one-cube", advise=True)
    assert (found.status, found.remarks, found.advised) == (status, said, None)
    assert found.exit_code == (0 if said else 130)
    assert found.latency_ns == kb.run(lambda torch: torch.zeros(64, dtype="f16", name="x"), "one-cube").latency_ns


def test_overrides_are_those_of_the_machine() -> None:
    changes = {"cube.hbm.num_pcs": 4}
    run = kb.run("hello-send", "one-cube", overrides=changes)
    assert run.machine == kb.run("hello-send", kb.load_machine("one-cube").with_(changes)).machine
    with pytest.raises(kb.ConfigError, match=r"cube\.hbm\.num_pc"):
        kb.run("hello-send", overrides={"cube.hbm.num_pc": 4})
    with pytest.raises(kb.InputError, match=r"torch\.cubes=4 is no value of a machine; put it into settings"):
        kb.run("hello-send", overrides={"torch.cubes": 4})


def test_settings_of_front_ends_are_those_of_the_command() -> None:
    seen: list[tuple[int, str]] = []

    def program(torch: Any) -> None:
        seen.append((torch.frontends.torch.cubes, torch.frontends.triton.order))
        torch.zeros(64, dtype="f16", name="x")

    run = kb.run(program, "one-cube", settings={"torch.cubes": 4, "triton.order": "blocked"})
    assert seen == [(4, "blocked")]
    assert run.to_dict()["frontends"] == {"torch": {"cubes": 4}, "triton": {"order": "blocked"}}
    kb.run(program, "one-cube")
    assert seen[1:] == [(1, "cyclic")]


def test_limits_end_a_run() -> None:
    def loops(torch: Any) -> None:
        while True:
            pass

    found = kb.run(loops, "one-cube", max_wall_s=0.1)
    assert found.error is not None
    assert found.error.kind == "LimitReached"
    assert not kb.run("attention", "one-cube", max_sim_ns=100).ok


@pytest.mark.parametrize(
    ("program", "asked", "message"),
    [
        ("atention", {}, "did you mean 'attention'"),
        ("no_such.py", {}, "no such file"),
        ("kernbench.nowhere:run", {}, "importing kernbench.nowhere failed"),
        (7, {}, "not a bench or a function"),
        ("milestone-1h-gemm", {}, "is an evaluation"),
        ("attention", {"lqq": 1}, "did you mean 'lq'"),
        ("attention", {"lq": "many"}, "bench.lq"),
        ("attention", {"lq": 1, "params": {"lq": 2}}, "lq: given as a keyword and in params"),
        ("attention", {"lq": object()}, "lq: found"),
        ("attention", {"params": 3}, "must be a mapping of names to values"),
        ("attention", {"machine": "one-cub"}, "did you mean 'one-cube'"),
        ("attention", {"device": "sip:7"}, "sip:7"),
        ("attention", {"settings": {"torch.cubez": 4}}, "did you mean 'cubes'"),
        ("attention", {"settings": {"torch.cubes": 0}}, "torch.cubes: found 0, must be at least 1"),
        ("attention", {"settings": {"torch.cubes": object()}}, "torch.cubes: found"),
        (
            "attention",
            {"settings": {"cube.hbm.num_pcs": 4}},
            "'cube.hbm.num_pcs' is no frontend setting, .* torch",
        ),
        ("attention", {"settings": {"torch": {"cubes": 4}}}, "'torch' is no frontend setting"),
        ("attention", {"settings": {3: 4}}, "3 is no frontend setting"),
        ("attention", {"settings": ["torch.cubes=4"]}, "must be a mapping of names such as torch.cubes"),
        ("attention", {"max_sim_ns": -1}, "max_sim_ns: found -1, must be a number from 0"),
        ("attention", {"ccl": "none.yaml"}, "none.yaml"),
    ],
)
def test_wrong_calls_raise_with_what_is_allowed(program: Any, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(kb.InputError, match=message):
        kb.run(program, **{"machine": "one-cube", **asked})


@pytest.mark.parametrize("text", ["{", "[]", '{"status": "OK"}', '{"status": "FAILED", "error": "x", "place": null}'])
def test_what_is_no_run_is_refused_with_the_command_that_makes_one(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(kb.InputError, match="kernbench run --json"):
        kb.load("run.json")


@pytest.mark.slow
def test_the_largest_bench_is_pickled_in_a_megabyte() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert len(pickle.dumps(kb.run("qkv-gemm-multi-pe"))) <= 1_000_000
