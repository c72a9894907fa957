"""The page of a run: what it carries is what the run did."""

from __future__ import annotations

import re
from itertools import chain
from typing import Any

import pytest
from web_support import GEMM, PageData, load_and_copy, observe_run, read_page

from kernbench.common.errors import BenchError
from kernbench.library.pages import PageRequest
from kernbench.observe.trace import PE_ROWS
from kernbench.runtime_api.bench_registry import Bench, load_bench
from kernbench.runtime_api.run_request import RunRequest
from kernbench.runtime_api.types import DeviceSelector
from kernbench.topology.builder import Topology, resolve_topology
from kernbench.web import run_view
from kernbench.web.activity import ROWS_OF_KIND, ObservedRun
from kernbench.web.page import Page, make_page


@pytest.fixture(scope="module")
def data(page: Page) -> PageData:
    return read_page(page.content)


def function(program: object) -> Bench:
    return Bench(name="bench", description="a function", function=program, file="")  # type: ignore[arg-type]


def test_the_page_loads_nothing(page: Page) -> None:
    without_data = re.sub(r'id="data">[^<]*', "", page.content)
    assert not re.findall(r"""(?:src|href)=["'](?!data:|#)|@import|url\(|https?://""", without_data)


def test_no_mark_is_left_unfilled(page: Page) -> None:
    assert not re.findall(r"<!-- [A-Z]+ -->", page.content)


def test_equal_runs_give_equal_pages(machine: Topology, page: Page) -> None:
    again = observe_run(machine, load_bench("gemm-single-pe"), DeviceSelector("all"), GEMM)
    assert make_page(machine, again).content == page.content


def test_a_page_without_a_run_says_so(machine: Topology) -> None:
    assert read_page(make_page(machine).content).head["run"] is None


def test_every_part_and_link_is_there(machine: Topology, data: PageData) -> None:
    graph, view = machine.topology_obj, data.head["machine"]
    assert view["nodes"]["id"] == list(graph.nodes)
    assert len(view["edges"]["src"]) == len(graph.edges)


def test_a_link_is_led_from_its_source_to_its_destination(machine: Topology, data: PageData) -> None:
    """Up to the sizes of what it joins: wires of the host begin at its edge."""
    graph, edges = machine.topology_obj, data.head["machine"]["edges"]
    for at, edge in enumerate(graph.edges):
        flat = edges["ways"][edges["way"][at]]
        ends = [tuple(flat[:2]), tuple(flat[-2:])]
        src, dst = graph.nodes[edge.src], graph.nodes[edge.dst]
        if not {src.kind, dst.kind} & {"host", "switch"}:
            assert (ends[::-1] if edges["against"][at] else ends) == [
                pytest.approx(src.pos_mm, abs=1e-3),
                pytest.approx(dst.pos_mm, abs=1e-3),
            ]


def test_bytes_of_all_bins_are_the_bytes_of_the_link(gemm: ObservedRun, data: PageData) -> None:
    run = data.head["run"]
    whole = run["windows"][0]
    found = dict(zip(whole["links"], map(sum, data.rows("traffic0", whole["bins"])), strict=True))
    edges = gemm.engine.machine.graph.edges
    carried = {(link.src, link.dst): link.nbytes for link in gemm.links}
    assert {(edges[link].src, edges[link].dst): nbytes for link, nbytes in found.items()} == carried


def test_no_bin_holds_more_than_the_link_can_carry(data: PageData) -> None:
    bandwidth = data.head["machine"]["edges"]["bw_gbs"]
    for number, window in enumerate(data.head["run"]["windows"]):
        bin_ns = (window["end_ps"] - window["start_ps"]) / window["bins"] / 1000
        for link, row in zip(window["links"], data.rows(f"traffic{number}", window["bins"]), strict=True):
            assert max(row) <= bandwidth[link] * (bin_ns + 0.001) + 1


def test_there_is_a_window_for_the_launch(gemm: ObservedRun, data: PageData) -> None:
    launch = data.head["run"]["windows"][1]
    handle = next(each for each in gemm.engine.handles if each.msg.name == launch["name"])
    assert (launch["start_ps"], launch["end_ps"]) == (handle.submitted_ps, handle.ended_ps)


def test_every_launch_has_a_window_however_many_there_are(machine: Topology, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_view, "BINS_OF_LAUNCHES", 1300)

    def program(torch: Any) -> None:
        x = torch.zeros(16, 16, dtype="f16", name="x")
        for at in range(13):
            torch.launch(f"step{at % 7}", "gemm_composite", x, x, x, 16, 16, 16, "f16")

    run = observe_run(machine, function(program), DeviceSelector("all"), ())
    data = read_page(make_page(machine, run).content)
    whole, *windows = data.head["run"]["windows"]
    launches = [handle for handle in run.engine.handles if handle.msg.name.startswith("step")]
    assert [(each["name"], each["start_ps"], each["end_ps"]) for each in windows] == [
        (handle.msg.name, handle.submitted_ps, handle.ended_ps) for handle in launches
    ]
    assert {each["bins"] for each in windows} == {100}
    assert (whole["end_ps"], whole["bins"]) == (run.end_ps, 240)
    assert [path["end_ps"] for path in data.head["run"]["paths"][1:]] == [each["end_ps"] for each in windows]


def test_every_part_of_a_pe_works_on_rows_that_there_are(machine: Topology) -> None:
    kinds = {node.kind for node in machine.topology_obj.nodes.values() if node.pe is not None}
    assert set(ROWS_OF_KIND) == kinds - {"pe_mmu", "pe_tcm"}
    assert sorted(chain.from_iterable(ROWS_OF_KIND.values())) == [
        at for at, row in enumerate(PE_ROWS) if row != "other"
    ]


def test_spans_are_the_works_of_the_engines(gemm: ObservedRun, data: PageData) -> None:
    run = data.head["run"]
    counts = {row: count for row, (count, _) in zip(run["rows"], run["timeline"]["index"], strict=True) if count}
    works = [work.engine for work in gemm.log.seen.each_work()]
    assert counts == {"cpu": 1} | {engine: works.count(engine) for engine in PE_ROWS if engine in works}


def test_spans_have_the_times_of_the_works(gemm: ObservedRun, data: PageData) -> None:
    row = PE_ROWS.index("GEMM")
    index = data.head["run"]["timeline"]["index"]
    spans = data.section("spans")
    first = 3 * sum(count for count, _ in index[:row])
    mine = spans[first : first + 3 * index[row][0]]
    found, start = [], 0
    for since, length in zip(mine[::3], mine[1::3], strict=True):
        start += since
        found.append((start, start + length))
    assert found == sorted((w.start_ps, w.end_ps) for w in gemm.log.seen.each_work() if w.engine == "GEMM")


def test_an_engine_is_busy_as_long_as_its_spans(gemm: ObservedRun, data: PageData) -> None:
    gemm_row = data.rows("busy0", data.head["run"]["windows"][0]["bins"])[PE_ROWS.index("GEMM")]
    works = [w for w in gemm.log.seen.each_work() if w.engine == "GEMM"]
    assert sum(gemm_row) == sum(w.end_ps - w.start_ps for w in works)


def test_the_steps_of_a_path_leave_no_gap(data: PageData) -> None:
    for path in data.head["run"]["paths"]:
        ends = [path["start_ps"], *(end for _, _, end, *_ in path["steps"])]
        assert [start for _, start, *_ in path["steps"]] == ends[:-1]
        assert ends[-1] == path["end_ps"]


def test_requests_are_all_there(gemm: ObservedRun, data: PageData) -> None:
    assert [each[4:6] for each in data.head["run"]["requests"]] == [
        [handle.submitted_ps, handle.ended_ps] for handle in gemm.engine.handles
    ]


def test_a_run_that_failed_is_shown_as_far_as_it_got(machine: Topology) -> None:
    def program(torch: object) -> None:
        torch.zeros(64, dtype="f16", name="x")  # type: ignore[attr-defined]
        raise ValueError("host trouble")

    head = read_page(
        make_page(machine, observe_run(machine, function(program), DeviceSelector("all"), ())).content
    ).head
    assert re.fullmatch(r"bench: FAILED: ValueError: host trouble\nat test_web_page\.py:\d+", head["notice"])
    assert head["run"]["requests"]


def test_the_run_and_every_launch_have_a_verdict(data: PageData) -> None:
    run, *launches = (path["verdict"] for path in data.head["run"]["paths"])
    assert len(launches) == len(data.head["run"]["windows"]) - 1
    assert re.search(r"kernels \d+%", run)
    assert [each for each in launches if not re.match(r"bound by \w+", each)] == []


def test_the_heaviest_launch_has_most_of_the_path_in_kernels(machine: Topology) -> None:
    """Launches of one name count together."""

    def nap(p: int, *, tl: Any) -> None:
        tl.program_id(0)

    def work(p: int, times: int, *, tl: Any) -> None:
        for _ in range(times):
            tl.store(p, tl.load(p, (32,), "f16"))

    def program(torch: Any) -> None:
        x = torch.zeros(64, dtype="f16", name="x")
        torch.launch("single", work, x, 6)
        torch.launch("twice", work, x, 4)
        torch.launch("nap", nap, x)
        torch.launch("twice", work, x, 5)

    run = read_page(make_page(machine, observe_run(machine, function(program), DeviceSelector("all"), ())).content)
    window, share = run.head["run"]["heaviest"]
    assert [each["name"] for each in run.head["run"]["windows"]] == ["run", "single", "twice", "nap", "twice"]
    assert window == 4
    assert 0 < share < 1


def test_a_launch_that_never_ended_is_shown_as_far_as_it_got(machine: Topology) -> None:
    def wait(p: int, *, tl: Any) -> None:
        tl.store(p, tl.recv("E", 16, "i8"))

    def program(torch: Any) -> None:
        torch.install_ipcq("ring_allreduce_tcm", world_size_override=2)
        x = torch.zeros(16, dtype="i8", name="x")
        torch.launch("wait", wait, x)

    run = observe_run(machine, function(program), DeviceSelector("all"), ())
    head = read_page(make_page(machine, run).content).head
    assert head["notice"].startswith("bench: FAILED: IpcqDeadlock")
    assert [each["name"] for each in head["run"]["windows"]] == ["run", "wait"]
    assert head["run"]["heaviest"][0] == 1


def test_without_a_kernel_there_is_no_heaviest_launch(machine: Topology) -> None:
    run = observe_run(machine, function(lambda torch: torch.zeros(64, dtype="f16")), DeviceSelector("all"), ())
    assert read_page(make_page(machine, run).content).head["run"]["heaviest"] == [0, 0.0]


def test_a_run_begins_when_it_has_loaded(machine: Topology) -> None:
    """Its time, its path and its verdict are those after loading; its window and its requests have both."""
    observed = observe_run(machine, function(load_and_copy), DeviceSelector("all"), ())
    run = read_page(make_page(machine, observed).content).head["run"]
    filled, *_ = (each.ended_ps for each in observed.engine.handles if each.msg.title == "weights")
    assert run["begin_ps"] == observed.begin_ps >= filled > 0
    assert run["sim_ps"] == run["end_ps"] - run["begin_ps"]
    assert (run["paths"][0]["start_ps"], run["paths"][0]["end_ps"]) == (run["begin_ps"], run["end_ps"])
    assert (run["windows"][0]["start_ps"], run["windows"][0]["end_ps"]) == (0, run["end_ps"])
    assert min(start for *_, start, _, _ in run["requests"]) == 0


def test_a_run_that_is_interrupted_is_shown_until_then(machine: Topology) -> None:
    def program(torch: Any) -> None:
        x = torch.zeros(64, dtype="f16", name="x")
        torch.launch("stopped", interrupt_itself, x)

    def interrupt_itself(x: int, *, tl: Any) -> None:
        tl.wait(tl.load(x, (64,), "f16"))
        raise KeyboardInterrupt

    run = observe_run(machine, function(program), DeviceSelector("all"), ())
    head = read_page(make_page(machine, run).content).head
    assert (head["notice"], head["run"]["status"]) == ("bench: INTERRUPTED", "INTERRUPTED")
    assert head["run"]["end_ps"] == run.end_ps
    assert [ended for *_, ended, _ in head["run"]["requests"]][-1] == -1
    assert head["run"]["paths"][0]["end_ps"] == run.end_ps


def test_a_run_without_requests_is_no_run(machine: Topology) -> None:
    run = observe_run(machine, function(lambda torch: None), DeviceSelector("all"), ())
    head = read_page(make_page(machine, run).content).head
    assert head["run"] is None
    assert re.fullmatch(r"bench: NO_REQUESTS\nat test_web_page\.py:\d+", head["notice"])


def test_a_bench_with_machines_of_its_own_is_refused() -> None:
    with pytest.raises(BenchError, match="milestone-1h-gemm"):
        PageRequest(RunRequest.of(bench="milestone-1h-gemm", topology="one-cube")).make()


def test_the_file_comes_with_its_configuration(page: Page, machine: Topology, tmp_path: object) -> None:
    place = tmp_path / "page.html"  # type: ignore[operator]
    page.write(place)
    config = place.with_name("page.html.config.yaml")
    assert place.read_text(encoding="utf-8") == page.content
    assert resolve_topology(config).digest == machine.digest


def test_where_the_package_lies_is_not_told(page: Page) -> None:
    data = read_page(page.content)
    facts = data.head["machine"]["facts"]
    assert facts[0] == ["source", "the packaged machine"]
    assert [name for name, _ in facts].count("source") == 1
