"""What the page shows of a run, beside what ``kernbench run --json`` says of the same run."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from headless import Page as Tab

from ideal_memory import IDEAL
from kernbench.cli.main import main

SMALL = ("--set", "system.sips.count=2", "--set", "sip.cube_mesh.w=1", "--set", "sip.cube_mesh.h=1")
MANY = """
from kernbench.policy.placement.dp import DPPolicy


def copy(p, q, n, *, tl):
    at = tl.program_id(0) * n * 2
    tl.store(q + at, tl.load(p + at, (n,), "f16"))
    tl.store(p + at, tl.load(q + at, (n,), "f16"))


def run(torch):
    split = DPPolicy(cube="row_wise", pe="row_wise")
    x = torch.zeros(1024, 2, dtype="f16", name="x", dp=split)
    y = torch.zeros(1024, 2, dtype="f16", name="y", dp=split)
    for at in range(9):
        torch.launch(f"step{at}", copy, x, y, 16)
    torch.launch("step0", copy, x, y, 16)
"""
WITHOUT_BANKS = tuple(word for each in IDEAL for word in ("--set", each))
RUNS = {
    "queues": ("--bench", "ipcq-allreduce", *WITHOUT_BANKS),
    "tiles": ("--bench", "matmul-composite", "--set", "bench.m=64", "--set", "bench.n=96", "--set", "bench.k=64"),
    "many launches": ("--bench", "many.py"),
}
SPENT_BY_SLICES = {
    "data": "data_ps",
    "rows": "rows_ps",
    "turns": "turnarounds_ps",
    "refresh": "refresh_ps",
    "groups": "groups_ps",
}
UNITS = {"ps": 1e-3, "ns": 1.0, "µs": 1e3, "ms": 1e6, "B": 1, "KiB": 2**10, "MiB": 2**20, "%": 0.01, "GB/s": 1.0, "": 1}
NONSENSE = ("NaN", "undefined", "Infinity", "∞", "null")


@dataclass(frozen=True)
class Shown:
    """A page in the browser, and the JSON document of the run that it shows."""

    tab: Tab
    run: dict[str, Any]

    def ask(self, expression: str) -> Any:
        """The value of an expression on the page."""
        return self.tab.ask(expression)

    def heads(self) -> list[str]:
        """The heads of the critical path's tables."""
        found: list[str] = self.ask("[...document.querySelectorAll('#panel-path h3')].map(each => each.textContent)")
        return found

    def show(self, **state: Any) -> None:
        """Change what the page shows."""
        self.tab.ask(f"KB.set({json.dumps(state)})")
        self.tab.settle()

    def fact(self, name: str) -> str:
        """A fact of the panel."""
        return str(
            self.ask(
                f"[...document.querySelectorAll('#details dt')].find(e => e.textContent === '{name}')"
                ".nextElementSibling.textContent"
            )
        )

    def table(self, selector: str) -> list[dict[str, str]]:
        """The rows of a table by the names of its columns."""
        heads, rows = self.ask(
            f"(() => {{ const table = document.querySelector('{selector}');"
            " const words = row => [...row.cells].map(cell => cell.textContent);"
            " return [words(table.tHead.rows[0]), [...table.tBodies[0].rows].map(words)]; })()"
        )
        return [dict(zip(heads, row, strict=True)) for row in rows]


def agree(shown: str, value: float) -> bool:
    """Whether a figure with its unit is ``value`` (ns, bytes, a share, GB/s) as precisely as it is shown."""
    match = re.fullmatch(r"(<?)([\d,]+)(?:\.(\d+))?\s*(\S*)", shown.strip())
    assert match is not None, shown
    less, whole, digits, unit = match.groups()
    number, digits = float(f"{whole.replace(',', '')}.{digits or 0}"), digits or ""
    found = value / UNITS[unit]
    return found < number if less else abs(found - number) <= 0.5 * 10 ** -len(digits) + 1e-6 * number


def total(texts: list[str]) -> float:
    return sum(float(text.replace(",", "")) for text in texts)


@pytest.fixture(scope="module", params=RUNS)
def shown(request: pytest.FixtureRequest, tab: Tab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    place = tmp_path_factory.mktemp("figures")
    told = io.StringIO()
    with contextlib.chdir(place), contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(told):
        Path("many.py").write_text(MANY, encoding="utf-8")
        arguments = (*RUNS[request.param], *SMALL)
        assert main(["web", *arguments, "--out", "page.html"]) == 0
        told.truncate(0)
        told.seek(0)
        assert main(["run", *arguments, "--json", "--explain"]) == 0
    tab.problems.clear()
    tab.open((place / "page.html").as_uri())
    yield Shown(tab, json.loads(told.getvalue()))
    assert tab.problems == []


@pytest.fixture(autouse=True)
def whole_run(shown: Shown) -> None:
    shown.show(window=0, bin=0, mode="average", selected=None, engine=-1, tab="timeline")


def test_there_is_one_total(shown: Shown) -> None:
    run = shown.run
    assert agree(shown.fact("simulated"), run["sim_ns"])
    assert agree(shown.ask("document.querySelector('#summary li:nth-child(2) b').textContent"), run["sim_ns"])
    assert agree(shown.ask("document.getElementById('window').options[0].text").split(" · ")[1], run["sim_ns"])
    assert agree(shown.ask("document.getElementById('clock').textContent").removeprefix("average of "), run["sim_ns"])
    shown.show(tab="path")
    (head,) = (
        e for e in shown.ask("[...document.querySelectorAll('#panel-path h3')].map(e => e.textContent)") if "Spent" in e
    )
    assert agree(head.split(" · ")[1], run["sim_ns"])
    assert shown.ask("KB.timeline && [KB.tracks.axis.from, KB.tracks.axis.to]") == [0, round(run["sim_ns"] * 1000)]


def test_the_head_of_the_run(shown: Shown) -> None:
    run = shown.run
    assert shown.fact("status") == run["status"]
    assert agree(shown.fact("requests"), sum(phase["requests"] for phase in run["phases"]))
    assert agree(shown.fact("events"), run["events"])
    assert agree(shown.fact("transfers"), run["transfers"])
    for name, value in run["params"].items():
        assert shown.fact(name) == str(value)


def test_every_launch_can_be_chosen(shown: Shown) -> None:
    launches = shown.run["explanation"]["launches"]
    options = shown.ask("[...document.getElementById('window').options].map(each => each.text)")[1:]
    assert len(options) == len(launches)
    for text, launch in zip(options, launches, strict=True):
        assert f"launch {launch['name']}" in text
        assert agree(text.split(" · ")[-1], launch["critical_path"]["total_ps"] / 1000)
    assert len(set(options)) == len(options)


def test_the_paths_of_the_run_and_of_every_launch(shown: Shown) -> None:
    explained = shown.run["explanation"]
    shown.show(tab="path")
    for window, found in enumerate([explained, *explained["launches"]]):
        shown.ask(
            f"(() => {{ const choice = document.querySelector('#panel-path select'); choice.value = {window};"
            " choice.dispatchEvent(new Event('change')); })()"
        )
        shown.tab.settle()
        assert shown.ask("document.getElementById('window').selectedIndex") == window
        whole = found["critical_path"]["total_ps"]
        spent = {row["part"]: row for row in shown.table("#panel-path .path > section table")}
        assert list(spent) == [each["part"] for each in sorted(found["critical_path"]["parts"], key=lambda e: -e["ps"])]
        for part in found["critical_path"]["parts"]:
            assert agree(spent[part["part"]]["ns"], part["ps"] / 1000)
            assert agree(spent[part["part"]]["share"], part["ps"] / whole)
        tables = "#panel-path .path > div:nth-of-type(2) section:nth-of-type({}) table"
        on_path = {row["resource"]: row for row in shown.table(tables.format(1))}
        resources = [each for each in found["critical_path"]["resources"] if each["ps"] >= 0.01 * whole]
        assert list(on_path) == [each["resource"] for each in resources]
        for each in resources:
            assert agree(on_path[each["resource"]]["ns"], each["ps"] / 1000)
            assert agree(on_path[each["resource"]]["share"], each["ps"] / whole)
        bounds = {row["resource"]: row for row in shown.table(tables.format(2))}
        assert {name: agree(row["ns"], 0) for name, row in bounds.items()}.keys() == {
            bound["resource"] for bound in found["roofline"]["bounds"]
        }
        for bound in found["roofline"]["bounds"]:
            assert agree(bounds[bound["resource"]]["ns"], bound["ps"] / 1000)
            assert agree(bounds[bound["resource"]]["of the time"], bound["ps"] / whole)
        slices = found.get("slices", [])
        assert sum("Time of HBM slices" in each for each in shown.heads()) == bool(slices)
        rows = shown.table("#panel-path .path > div:nth-of-type(2) section:last-child table") if slices else []
        for row, each in zip(rows, slices[:8], strict=True):
            assert row["slice"] == each["where"]
            for head, key in SPENT_BY_SLICES.items():
                assert agree(row[head], each[key] / whole)
            assert agree(row["hits"], each["hits"] / max(1, each["bursts"]))


def test_who_waited_for_whom(shown: Shown) -> None:
    shown.show(tab="path")
    for window, launch in enumerate(shown.run["explanation"]["launches"], start=1):
        shown.ask(f"KB.chooseWindow({window})")
        shown.tab.settle()
        assert any("on the path that waited for others" in head for head in shown.heads()) == bool(launch["waits"])
        rows = shown.table("#panel-path .path > div:last-child section:last-child table") if launch["waits"] else []
        assert len(rows) == len(launch["waits"])
        for row, wait in zip(rows, launch["waits"], strict=True):
            for column, kernel in (("waiting", wait["waiting"]), ("of", wait["cause"])):
                sip, cube, pe = kernel["pe"]
                assert f"SIP {sip} · cube {cube} · PE {pe} (" in row[column]
                assert f"{'step' if 'schedule' in launch else 'line'} {kernel['line']})" in row[column]
            assert wait["for"].split(" by ")[0] in row["for"]
            assert agree(row["times"], wait["count"])
            assert agree(row["waited ns"], wait["ns"])


def test_engines_of_all_pes(shown: Shown) -> None:
    shown.show(tab="pes")
    rows = shown.table("#panel-pes table")
    for engine in shown.run["engines"]:
        busy = [row[f"{engine['engine']} ns"] for row in rows]
        assert total(busy) == pytest.approx(engine["busy_ns"], abs=0.051 * len(busy))
        assert sum(text != "0.0" for text in busy) == engine["pes"]
    named = {f"{engine['engine']} ns" for engine in shown.run["engines"]}
    assert {name for name in rows[0] if name.endswith(" ns")} - named <= {"any engine ns", "kernel ns", "scheduler ns"}


def test_operations_of_all_pes(shown: Shown) -> None:
    counts: dict[str, int] = {}
    for pe in shown.ask("KB.run.active"):
        shown.show(selected={"kind": "pe", "id": pe})
        facts = shown.ask(
            "[...document.querySelectorAll('#details section:last-child dt')]"
            ".map(name => [name.textContent, name.nextSibling.textContent])"
        )
        for name, count in facts:
            counts[name] = counts.get(name, 0) + int(count.replace(",", ""))
    for engine in shown.run["engines"]:
        assert counts[engine["engine"]] == engine["records"]
    assert counts["kernels"] >= sum(launch["pe_count"] for launch in shown.run["launches"])


def test_the_queues_of_every_pe(shown: Shown) -> None:
    drawn = words_of_parts(shown)
    for queue in shown.run["queues"]:
        sip, cube, pe = queue["pe"]
        place = shown.ask(f"KB.machine.peAt({sip}, {cube}, {pe})")
        label = next(words for node, words in drawn if node == f"sip{sip}.cube{cube}.pe{pe}.pe_ipcq")
        assert agree(label.split("\n")[1], queue["busy_ns"] / shown.run["sim_ns"])
        shown.show(selected={"kind": "pe", "id": place})
        (found,) = shown.ask(
            "[...document.querySelectorAll('#details section')].filter(e => e.textContent.startsWith('Queues'))"
            ".map(e => [...e.querySelectorAll('tbody tr')]"
            ".map(row => [...row.cells].slice(0, 3).map(cell => cell.textContent)))"
        )
        assert [row[0] for row in found] == [use["direction"] for use in queue["sent"]]
        for (_, messages, nbytes), use in zip(found, queue["sent"], strict=True):
            assert agree(messages, use["messages"])
            assert agree(nbytes, use["nbytes"])
        assert agree(shown.fact("busy"), queue["busy_ns"])
    assert shown.ask("KB.run.queues.length") == len(shown.run["queues"])


def words_of_parts(shown: Shown) -> list[tuple[str, str]]:
    """What the map writes on the parts of every PE, seen from near."""
    return [
        (node, words)
        for node, words in shown.ask(
            "KB.machine.peNodes.flat().map(node =>"
            " [KB.machine.nodes.id[node], KB.heat.wordsOf(node, KB.heat.partShares(node))[0]])"
        )
    ]


def test_links_and_memories(shown: Shown) -> None:
    run = shown.run
    shown.show(tab="links")
    rows = {row["link"]: row for row in shown.table("#panel-links table")}
    for link in run["traffic"]["busiest"]:
        row = rows[f"{link['src']} → {link['dst']}"]
        assert agree(row["bytes"], link["nbytes"])
        assert agree(row["bandwidth"], link["bw_gbs"])
        assert agree(row["used"], link["utilisation"])
        assert agree(row["rate"], link["nbytes"] / run["sim_ns"])
        assert agree(row["most in FIFO"], link["peak_fifo_bytes"])
    carried = "KB.run.links.filter(([edge]) => KB.machine.kindOf(KB.machine.edges.{}[edge]) === 'hbm_ctrl')"
    for way, name in (("dst", "hbm_in"), ("src", "hbm_out")):
        assert shown.ask(f"{carried.format(way)}.reduce((all, link) => all + link[1], 0)") == run["traffic"][name]


def test_requests_by_phase(shown: Shown) -> None:
    shown.show(tab="requests")
    shown.ask(
        "[...document.querySelectorAll('#panel-requests button')].find(b => b.textContent === 'Show all').click()"
    )
    rows = shown.table("#panel-requests table")
    for phase in shown.run["phases"]:
        mine = [row for row in rows if row["what"] == phase["phase"]]
        assert len(mine) == phase["requests"]
        longest = max(float(row["took ns"].replace(",", "")) for row in mine)
        assert longest == pytest.approx(phase["longest_ns"], abs=0.051)
    over = [row for row in rows if float(row["submitted ns"].replace(",", "")) >= shown.run["sim_ns"] + 0.1]
    assert all("after the run" in row["end"] for row in over)


def test_no_share_is_beyond_the_whole(shown: Shown) -> None:
    assert shown.ask(
        "KB.run.windows.every((_, number) => { const window = KB.run.window(number);"
        " const bins = [-1, ...Array(window.bins).keys()]; const share = each => each >= 0 && each <= 1;"
        " return bins.every(bin => window.links.every(edge => share(window.utilisation(edge, bin)))"
        "  && KB.machine.hbm.every(node => share(window.memoryShare(node, bin)))"
        "  && KB.run.active.every((_, at) => KB.run.engines.every((_, row) =>"
        "   share(window.busyOf(at, row, bin) / window.ps(bin))))); })"
    )


def test_nothing_reads_as_no_number(shown: Shown) -> None:
    """Every tab, window and kind of selection; and the words on the map, from far and near."""
    shown.ask(
        "(() => { const write = CanvasRenderingContext2D.prototype.fillText; window.drawn = [];"
        " CanvasRenderingContext2D.prototype.fillText = function (text, ...at) {"
        " window.drawn.push(text); return write.call(this, text, ...at); }; })()"
    )
    read = ""
    windows = shown.ask("KB.run.windows.length")
    things = [None, *({"kind": kind, "id": 0} for kind in ("pe", "edge", "node")), {"kind": "cube", "id": "0.0"}]
    hbm = {"kind": "node", "id": shown.ask("KB.machine.hbm[0]")}
    for at, tab in enumerate(shown.ask("KB.tables.ids")):
        shown.show(
            tab=tab, window=at % windows, mode=("average", "moment")[at % 2], bin=3, scale=("full", "max")[at % 2]
        )
        read += shown.ask("document.body.innerText")
    for at, thing in enumerate((*things, hbm)):
        place = f"[...KB.camera.cameraFor(KB.machine.pes[0].slice(3, 7)).slice(0, 2), {(3, 13, 222)[at % 3]}]"
        shown.ask(f"KB.camera.put({place})")
        shown.show(selected=thing, mode=("average", "moment")[at % 2])
        read += shown.ask("document.body.innerText")
    read += "\n".join([*shown.ask("window.drawn"), *(words for _, words in words_of_parts(shown))])
    shown.show(scale="full")
    assert "DMA in" in read
    assert [word for word in NONSENSE if re.search(rf"(?<![\w.]){word}(?!\w)", read)] == []


def test_everything_has_a_colour_of_its_own(shown: Shown) -> None:
    other = shown.ask("KB.colours.part('nothing of that name')")
    assert shown.ask("KB.run.parts.map(name => KB.colours.part(name))").count(other) == 0
    assert shown.ask("KB.run.rows.map(name => KB.colours.engine(name))").count(other) == 0
    assert shown.ask("KB.run.requests.map(each => KB.colours.phase(each[0]))").count(other) == 0
