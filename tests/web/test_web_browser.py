"""The page in headless Chromium; left out where none is installed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from headless import Page as Tab
from web_support import load_and_copy, observe_run

from kernbench.observe.statistics import union_ps
from kernbench.runtime_api.bench_registry import Bench
from kernbench.runtime_api.types import DeviceSelector
from kernbench.topology.builder import Topology, resolve_topology
from kernbench.web.activity import ObservedRun
from kernbench.web.page import Page, make_page
from kernbench.web.server import PageServer, Shelf

PICTURE = "document.getElementById('layer-heat').toDataURL()"
DETAILS = "document.getElementById('details').innerText"
CHOSEN = "KB.state.selected && KB.machine.nameOfPe(KB.state.selected.id)"
FIRST_PE = "SIP 0 · cube 0 · PE 0"


@pytest.fixture(scope="module")
def address(page: Page, tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("web") / "page.html"
    page.write(place)
    return place.as_uri()


@pytest.fixture
def opened(tab: Tab, address: str) -> Iterator[Tab]:
    """The page of a run; no test may make it complain."""
    tab.problems.clear()
    tab.open(address)
    yield tab
    assert tab.problems == []


def place_of_pe(tab: Tab, pe: int) -> tuple[float, float]:
    """Where on the screen the middle of a PE is."""
    found: dict[str, Any] = tab.ask(
        f"(() => {{ const [x, y, w, h] = KB.machine.pes[{pe}].slice(3, 7);"
        " const [px, py] = KB.camera.toScreen(x + w / 2, y + h / 2);"
        " const box = document.getElementById('map').getBoundingClientRect();"
        " return {x: px + box.left, y: py + box.top}; })()"
    )
    return found["x"], found["y"]


def test_it_opens_on_the_run_with_its_verdict(opened: Tab) -> None:
    """The sentence is there on every tab; below it stands the launch with most of the time, which can be shown."""
    run, launch = opened.ask("[KB.run.paths[0].verdict, KB.run.paths[1].verdict]")
    shown = "[...document.querySelectorAll('#verdict .binds')].map(each => each.innerText)"
    assert opened.ask("KB.state.window") == 0
    assert "kernels " in run
    assert launch.startswith("bound by ")
    for key in "123456":
        opened.press(key)
        assert opened.ask(shown) == [run, launch]
    opened.ask("document.querySelector('#verdict button').click()")
    opened.settle()
    assert opened.ask("KB.state.window") == 1
    assert opened.ask(shown) == [run, launch]


def test_times_begin_with_the_window(opened: Tab) -> None:
    opened.ask("KB.set({window: 1, bin: 0, mode: 'moment', tab: 'timeline'})")
    opened.settle()
    assert opened.ask("KB.run.windows[1].start_ps") > 0
    assert opened.ask("document.getElementById('clock').textContent").startswith(
        "0.0 ns after the start of launch gemm"
    )
    said = opened.ask("document.querySelector('.zero').textContent")
    assert re.fullmatch(r"0 is the start of launch gemm, [\d.,]+ [nµ]s into the run", said)


def test_a_run_that_loads_first_says_one_time(tab: Tab, machine: Topology, tmp_path: Path) -> None:
    """Head, panel, verdict and timeline tell the time after loading, which stands beside it; 0 is between them."""
    bench = Bench(name="bench", description="a function", function=load_and_copy)
    observed = observe_run(machine, bench, DeviceSelector("all"))
    make_page(machine, observed).write(tmp_path / "page.html")
    tab.problems.clear()
    tab.open((tmp_path / "page.html").as_uri())
    times = observed.end_ps - observed.begin_ps, observed.begin_ps
    took, loading = tab.ask(f"[{times[0]}, {times[1]}].map(KB.format.time)")
    head = tab.ask("[...document.querySelectorAll('#summary li')].map(each => each.textContent)")
    assert head[1:3] == [f"{took} simulated", f"after {loading} of loading"]
    assert f"simulated\n{took}\nloading before that\n{loading}" in tab.ask(DETAILS)
    assert tab.ask("document.querySelector('#verdict-run b').textContent") == "Run, after loading"
    assert tab.ask("document.querySelector('.zero').textContent") == (
        f"0 is the start of the run, after {loading} of loading"
    )
    assert tab.ask("document.getElementById('window').options[0].text").startswith("loading and run · ")
    assert tab.ask("document.getElementById('clock').textContent").endswith(", loading included")
    tab.ask("KB.set({tab: 'path'})")
    tab.settle()
    assert tab.ask("document.querySelector('#panel-path select').options[0].text") == "run, after loading"
    tab.ask("KB.set({bin: 0, mode: 'moment', tab: 'requests'})")
    tab.settle()
    assert " before the start of the run" in tab.ask("document.getElementById('clock').textContent")
    ends = tab.ask("[...document.querySelectorAll('#panel-requests tbody tr')].map(row => row.lastChild.textContent)")
    assert set(ends) == {"ok, while loading", "ok", "ok, after the run"}
    assert tab.problems == []


def test_a_tooltip_tells_what_a_part_of_the_path_is(opened: Tab) -> None:
    """In the timeline of a launch, and in the strip."""
    opened.ask("KB.set({window: 1, tab: 'timeline'})")
    opened.settle()
    part, middle, row = opened.ask(
        "(() => { const step = [...KB.run.paths[1].steps].sort((a, b) => b[2] - b[1] - a[2] + a[1])[0];"
        " const box = document.querySelector('.timeline canvas').getBoundingClientRect();"
        " const x = KB.tracks.axis.x((step[1] + step[2]) / 2, box.width);"
        " return [KB.run.parts[step[0]], box.left + x, box.top + 52]; })()"
    )
    opened.point(middle, row)
    assert opened.ask("document.getElementById('tooltip').innerText").split("\n")[0] == part
    opened.press("2")
    assert opened.ask("document.getElementById('tooltip').hidden")
    x, y = opened.ask(
        "(() => { const box = document.querySelector('.strip canvas').getBoundingClientRect();"
        " return [box.left + 1, box.top + 5]; })()"
    )
    opened.point(x, y)
    assert "of the path" in opened.ask("document.getElementById('tooltip').innerText")


def test_the_roofline_shows_every_launch(opened: Tab) -> None:
    opened.press("3")
    points = opened.ask("KB.run.charts.flatMap(chart => chart.points).length")
    assert opened.ask("document.querySelectorAll('.roofline .mark').length") == points > 0
    x, y = opened.ask(
        "(() => { const box = document.querySelector('.roofline .mark').getBoundingClientRect();"
        " return [box.left + box.width / 2, box.top + box.height / 2]; })()"
    )
    opened.point(x, y)
    assert opened.ask("document.getElementById('tooltip').innerText").startswith("launch gemm")
    opened.click(x, y)
    assert opened.ask("KB.state.window") == 1


@pytest.mark.parametrize("key", "123456")
def test_it_fits_a_phone(opened: Tab, key: str) -> None:
    try:
        opened.resize(390, 844)
        opened.press(key)
        assert opened.ask("document.documentElement.scrollWidth") == 390
        assert opened.ask("document.getElementById('window').getBoundingClientRect().right <= 390")
    finally:
        opened.resize(1280, 800)


def test_it_loads_without_a_complaint(opened: Tab) -> None:
    assert opened.ask("document.documentElement.dataset.ready") == "true"
    assert opened.ask("document.getElementById('notice').hidden")


def test_it_opens_on_what_worked(opened: Tab) -> None:
    """On one PE of 16, large enough for its engines to be seen."""
    x, y = place_of_pe(opened, 0)
    left, top, width, height = opened.ask(
        "(() => { const box = document.getElementById('map').getBoundingClientRect();"
        " return [box.left, box.top, box.width, box.height]; })()"
    )
    assert left < x < left + width
    assert top < y < top + height
    assert opened.ask("KB.camera.scale >= KB.scene.SEEN.pes * 5")


def test_a_key_shows_everything_of_the_machine(opened: Tab) -> None:
    opened.press("f")
    opened.wait_for(
        "(() => { const [x, y, w, h] = KB.machine.bounds; const [left, top] = KB.camera.toScreen(x, y);"
        " const [right, bottom] = KB.camera.toScreen(x + w, y + h);"
        " return left >= 0 && top >= 0 && right <= KB.camera.width && bottom <= KB.camera.height; })()"
    )


def test_the_slider_changes_the_picture(opened: Tab) -> None:
    opened.ask("document.getElementById('time').focus()")
    opened.press("Home", 36)
    first = opened.ask(PICTURE)
    for _ in range(3):
        opened.press("PageUp", 33)
    assert opened.ask("KB.state.bin") > 0
    assert opened.ask(PICTURE) != first


def test_an_arrow_key_is_one_step_in_time(opened: Tab) -> None:
    opened.ask("document.getElementById('time').focus()")
    opened.press("ArrowRight", 39)
    assert opened.ask("[KB.state.bin, KB.state.mode]") == [1, "moment"]
    assert opened.ask("document.getElementById('time').getAttribute('aria-valuetext')")


def test_play_moves_on(opened: Tab) -> None:
    opened.press(" ", 32)
    opened.wait_for("KB.state.bin >= 3")
    opened.press(" ", 32)
    assert opened.ask("KB.state.playing") is False


def test_a_click_on_a_pe_shows_its_numbers(opened: Tab, gemm: ObservedRun) -> None:
    opened.ask("KB.set({window: 0, mode: 'average'})")
    opened.click(*place_of_pe(opened, 0))
    text = opened.ask(DETAILS)
    busy = union_ps((work.start_ps, work.end_ps) for work in gemm.log.seen.each_work() if work.engine == "GEMM")
    assert text.startswith(FIRST_PE)
    assert f"GEMM\t{busy / 1000:,.1f}" in text


def test_a_tooltip_tells_what_the_pointer_is_on(opened: Tab) -> None:
    opened.point(*place_of_pe(opened, 0))
    assert opened.ask("document.getElementById('tooltip').innerText").startswith(f"{FIRST_PE}\nany engine busy")


def test_a_click_on_an_idle_pe_says_that_it_did_nothing(opened: Tab) -> None:
    opened.ask("KB.camera.keep(KB.machine.bounds)")
    opened.click(*place_of_pe(opened, 5))
    assert "did nothing" in opened.ask(DETAILS)


def test_the_numbers_of_a_link_are_those_of_the_run(opened: Tab, gemm: ObservedRun) -> None:
    opened.ask("KB.set({window: 0, mode: 'average', selected: {kind: 'edge', id: 0}})")
    opened.settle()
    edge = gemm.engine.machine.graph.edges[0]
    (carried,) = (link for link in gemm.links if (link.src, link.dst) == (edge.src, edge.dst))
    assert f"{carried.nbytes / 1024:,.1f} KiB" in opened.ask(DETAILS)


def test_pes_can_be_stepped_through_by_keyboard(opened: Tab) -> None:
    opened.press("]")
    assert opened.ask(CHOSEN) == FIRST_PE
    assert FIRST_PE in opened.ask("document.getElementById('said').textContent")
    opened.press("Escape", 27)
    assert opened.ask("KB.state.selected") is None


def test_the_map_moves_by_keyboard(opened: Tab) -> None:
    opened.ask("document.getElementById('map').focus()")
    before = opened.ask("KB.state.camera")
    opened.press("ArrowRight", 39)
    opened.press("+")
    x, _, scale = opened.ask("KB.state.camera")
    assert (x > before[0], scale > before[2]) == (True, True)


def test_tab_reaches_every_control(opened: Tab) -> None:
    opened.ask("document.activeElement.blur()")
    wanted = {"window", "theme", "help-open", "map", "engine", "scale", "zoom-in", "play", "time", "splitter"}
    seen: set[str] = set()
    for _ in range(40):
        opened.press("Tab", 9)
        seen.add(opened.ask("document.activeElement.id"))
        if wanted <= seen:
            break
    assert wanted <= seen


def test_what_has_the_focus_can_be_seen(opened: Tab) -> None:
    opened.ask("document.activeElement.blur()")
    for _ in range(3):
        opened.press("Tab", 9)
    assert opened.ask("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_every_control_has_a_name(opened: Tab) -> None:
    nameless = opened.ask(
        "[...document.querySelectorAll('button, select, input')].filter(each => !each.textContent.trim()"
        " && !each.getAttribute('aria-label') && !each.title).map(each => each.outerHTML)"
    )
    assert nameless == []


def test_links_are_sorted_by_what_is_clicked(opened: Tab) -> None:
    opened.press("4")
    opened.ask("[...document.querySelectorAll('#panel-links th button')].find(b => b.textContent === 'bytes').click()")
    column = "[...document.querySelectorAll('#panel-links tbody tr')].map(row => row.cells[3].textContent)"
    most = opened.ask("Math.max(...KB.current().links.map(edge => KB.current().bytes(edge, -1)))")
    assert opened.ask(column)[0] == opened.ask(f"KB.format.size({most})")
    assert opened.ask("document.querySelector('#panel-links [aria-sort]').textContent") == "bytes"


@pytest.mark.parametrize("key", "123456")
def test_every_table_is_filled(opened: Tab, key: str) -> None:
    opened.press(key)
    panel = "document.querySelector('.panel:not([hidden])')"
    assert opened.ask(f"{panel}.querySelectorAll('canvas, tbody tr, svg').length") > 0


def test_a_click_on_the_timeline_shows_that_moment(opened: Tab) -> None:
    opened.ask("KB.set({window: 0, mode: 'average', tab: 'timeline'})")
    opened.settle()
    x, y, width, left, right = opened.ask(
        "(() => { const box = document.querySelector('.timeline canvas').getBoundingClientRect();"
        " return [box.left, box.top, box.width, KB.tracks.axis.left(box.width), KB.tracks.RIGHT]; })()"
    )
    opened.click(x + left + (width - left - right) / 2, y + 30)
    assert opened.ask("KB.state.mode") == "moment"
    assert opened.ask("KB.state.bin / KB.current().bins") == pytest.approx(0.5, abs=0.02)


def test_the_timeline_shows_the_engines_of_the_selected_pe(opened: Tab) -> None:
    names = "[...Array(9).keys()].filter(row => KB.run.spanCount(0, row)).length"
    picture = "document.querySelector('.timeline canvas').toDataURL()"
    all_pes = opened.ask(picture)
    opened.press("]")
    assert opened.ask(names) == 7  # cpu, scheduler, DMA in, fetch, GEMM, store, DMA out
    assert opened.ask(picture) != all_pes


def test_the_dock_is_made_higher_by_keyboard(opened: Tab) -> None:
    height = "document.querySelector('.dock').clientHeight"
    before = opened.ask(height)
    opened.ask("document.getElementById('splitter').focus()")
    opened.press("ArrowUp", 38)
    assert opened.ask(height) == before + 24


def test_light_and_dark(opened: Tab) -> None:
    light = opened.ask("getComputedStyle(document.body).backgroundColor")
    opened.press("t")
    assert opened.ask("document.documentElement.dataset.theme") == "dark"
    assert opened.ask("getComputedStyle(document.body).backgroundColor") != light
    opened.press("t")


def test_it_follows_the_system(tab: Tab, address: str) -> None:
    tab.ask("localStorage.clear()")
    tab.prefer("dark")
    tab.open(address)
    assert tab.ask("KB.state.theme") == "dark"
    tab.prefer("light")


def test_an_address_shows_what_it_was_copied_from(opened: Tab, address: str) -> None:
    opened.click(*place_of_pe(opened, 0))
    opened.press(".")
    opened.press("5")
    fragment = opened.ask("location.hash")
    opened.open(address + fragment)
    assert opened.ask(f"[{CHOSEN}, KB.state.bin, KB.state.tab]") == [FIRST_PE, 1, "pes"]


MALFORMED = (
    "#garbage",
    "#%",
    "#%E0%A4%A",
    "#w=%E0%A4%A&t=%ZZ",
    "?x=%E0%A4%A",
    "?x=%E0%A4%A#w=99&t=1e9",
    "#w=-1&t=-1",
    "#w=0.5&t=NaN",
    "#w=&t=&v=&s=&tab=",
    "#w=1e0&t=0x1",
    "#v=a,b,c",
    "#v=1,2,0",
    "#v=1e999,1,1",
    "#s=pe:9.9.9",
    "#s=pe:0.0",
    "#s=pe:",
    "#s=pe:00.0.0",
    "#s=cube:0.00",
    "#s=cube:0.0.0",
    "#s=cube:-0.0",
    "#s=node:nobody",
    "#s=link:a>b",
    "#s=constructor",
    "#s=:::>>>",
    "#tab=nothing",
    "#tab=constructor",
    "#&&&===%00",
    "#s=%3Cimg src=x onerror=document.title=1%3E",
)


def test_a_malformed_address_asks_for_nothing(opened: Tab) -> None:
    read = "(() => {{ history.replaceState(null, '', location.pathname + {}); return KB.readAddress(); }})()"
    asked = {text: opened.ask(read.format(json.dumps(text))) for text in MALFORMED}
    assert {text: {name: value for name, value in patch.items() if value} for text, patch in asked.items()} == {
        text: {} for text in MALFORMED
    }


@pytest.mark.parametrize("malformed", ["#%E0%A4%A", "?x=%E0%A4%A#w=99&t=1e9&s=cube:0.00&v=a,b,c&tab=nothing"])
def test_a_malformed_address_shows_the_page(opened: Tab, address: str, malformed: str) -> None:
    default = opened.ask("[KB.state.window, KB.state.bin, KB.state.mode, KB.state.tab]")
    opened.open(address + malformed)
    assert opened.ask("document.documentElement.dataset.ready") == "true"
    assert opened.ask("document.getElementById('notice').hidden")
    assert opened.ask("KB.state.selected") is None
    assert opened.ask("[KB.state.window, KB.state.bin, KB.state.mode, KB.state.tab]") == default
    assert opened.ask(DETAILS).startswith("gemm-single-pe")


def test_what_is_sound_in_a_malformed_address_is_shown(opened: Tab, address: str) -> None:
    opened.open(f"{address}#w=99&t=%ZZ&s=pe:0.0.1&tab=pes&%E0%A4%A")
    assert opened.ask(f"[{CHOSEN}, KB.state.tab]") == ["SIP 0 · cube 0 · PE 1", "pes"]


def test_a_link_in_an_address_may_be_escaped(opened: Tab, address: str) -> None:
    opened.open(f"{address}#s=link:host%3Eswitch")
    assert opened.ask(DETAILS).startswith("host\n→ switch")


NAMES = {
    name: name
    for name in (
        "<img src=x onerror=\"document.title='gone'\">",
        "</script><script>document.title='gone'</script>",
        "<!-- DATA --> <!-- SCRIPTS -->",
        'it\'s "&lt;" & more',
    )
}
NAMES |= {"\x1b[31mred\x07": "\\x1b[31mred\\x07", "a\x00b\x9b": "a\\x00b\\x9b", "\u202eturned": "\\u202eturned"}
"""Names, and how they are shown."""


def page_of_names(machine: Topology, names: Iterable[str], place: Path) -> None:
    """A run whose bench, tensors, launches and error are called so."""
    words = " ".join(names)

    def program(torch: Any) -> None:
        for name in names:
            x = torch.zeros(16, 16, dtype="f16", name=name)
            torch.launch(name, "gemm_composite", x, x, x, 16, 16, 16, "f16")
        raise ValueError(words)

    bench = Bench(name=words, description="names", function=program, file="")
    make_page(machine, observe_run(machine, bench, DeviceSelector("all"), ())).write(place)


def test_names_are_shown_as_text(tab: Tab, machine: Topology, tmp_path: Path) -> None:
    page_of_names(machine, NAMES, tmp_path / "page.html")
    tab.problems.clear()
    tab.open((tmp_path / "page.html").as_uri())
    assert tab.ask("document.documentElement.dataset.ready") == "true"
    for key in "123456":
        tab.press(key)
    read = tab.ask("document.body.innerText + document.title")
    for seen in NAMES.values():
        assert seen in tab.ask("document.getElementById('title').firstChild.textContent")
        assert seen in tab.ask("document.getElementById('notice').textContent")
        assert f"launch {seen}" in tab.ask("document.getElementById('window').textContent")
        assert f"init\t{seen}" in tab.ask("document.querySelector('#panel-requests').innerText")
        assert seen in tab.ask("document.title")
    assert tab.ask("document.querySelectorAll('img').length") == 0
    assert not set(read) & set("\x00\x07\x1b\x9b\u202e")
    assert tab.problems == []


@pytest.mark.parametrize("name", ["half \ud800 of a letter", "two\nlines: [x\u2028"])
def test_a_name_that_no_file_can_hold_is_written_all_the_same(machine: Topology, tmp_path: Path, name: str) -> None:
    page_of_names(machine, [name], tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8").rstrip().endswith("</html>")
    assert resolve_topology(tmp_path / "page.html.config.yaml").digest == machine.digest


def test_without_a_run_it_says_so(tab: Tab, machine: Topology, tmp_path: Path) -> None:
    make_page(machine).write(tmp_path / "machine.html")
    tab.problems.clear()
    tab.open((tmp_path / "machine.html").as_uri())
    assert "No run" in tab.ask(DETAILS)
    for key in "123456":
        tab.press(key)
    tab.click(*place_of_pe(tab, 0))
    assert "No run" in tab.ask(DETAILS)
    assert tab.problems == []


def test_a_served_page_comes_anew(tab: Tab, machine: Topology, page: Page) -> None:
    with PageServer(Shelf(), 0) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        server.shelf.put(make_page(machine).content)
        tab.open(server.url)
        assert tab.ask("KB.run") is None
        server.shelf.put(page.content)
        tab.wait_for("Boolean(window.document.documentElement?.dataset.ready && typeof KB === 'object' && KB.run)")
        tab.ask("location.href = 'about:blank'")
        server.shutdown()
