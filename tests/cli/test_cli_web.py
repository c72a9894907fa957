"""``kernbench web``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from kernbench.cli import web_command
from kernbench.library.pages import MadePage, PageRequest
from kernbench.runtime_api import run_explanation
from kernbench.web.server import PageServer, Shelf, Watcher

Run = Callable[..., Any]
SMALL = ("--set", "sip.cube_mesh.w=1", "--set", "sip.cube_mesh.h=1", "--set", "system.sips.count=1")
GEMM = ("--bench", "gemm-single-pe", "--set", "bench.m=64", "--set", "bench.k=64", "--set", "bench.n=64")


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Watcher]:
    """What would have been served; the command then ends as if the user had interrupted it."""
    found: list[Watcher] = []

    def serve(watcher: Watcher, tell: Callable[[str], None]) -> None:
        found.append(watcher)
        watcher.server.server_close()
        raise KeyboardInterrupt

    monkeypatch.setattr(web_command, "serve", serve)
    return found


def test_a_page_of_the_machine(kernbench: Run) -> None:
    ran = kernbench("web", *SMALL)
    assert ran.code == 0
    assert Path("report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "report.html" in ran.out
    assert "report.html.config.yaml" in ran.err


def test_a_page_of_a_run(kernbench: Run) -> None:
    ran = kernbench("web", *SMALL, *GEMM, "--out", "gemm.html", "--json")
    document = json.loads(ran.out)
    assert (ran.code, document["page"], document["bench"], document["status"]) == (
        0,
        "gemm.html",
        "gemm-single-pe",
        "OK",
    )
    assert document["nbytes"] == Path("gemm.html").stat().st_size
    assert document["sim_ns"] > 0


SETTINGS = """
def run(torch):
    torch.zeros(8, dtype="f32", name="x")
    return f"{torch.frontends.torch.cubes} {torch.frontends.torch.from_load} {torch.frontends.triton.points}"
"""


def test_a_run_has_the_settings_of_front_ends(kernbench: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mine.py").write_text(SETTINGS)
    said: list[str] = []
    make = PageRequest.make

    def note(request: PageRequest, *given: Any) -> MadePage:
        made = make(request, *given)
        said.append("" if made.run is None else made.run.said)
        return made

    monkeypatch.setattr(PageRequest, "make", note)
    ran = kernbench("web", *SMALL, "--bench", "mine.py", "--set", "torch.cubes=2", "--from-load", "--points", "3")
    assert ran.code == 0, ran.err
    assert said == ["2 True 3"]


SCRIPT = """
import sys
from kernbench.runtime_api.context import current_context

current_context().zeros(8, dtype="f32", name="x")
print(sys.argv[1:])
"""


def test_a_page_of_a_script_with_arguments(kernbench: Run) -> None:
    Path("mine.py").write_text(SCRIPT)
    ran = kernbench("web", *SMALL, "--script", "mine.py", "--", "--size", "3")
    assert ran.code == 0, ran.err
    assert "['--size', '3']" in ran.out
    assert Path("report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("page.html", "--script", "mine.py"), "page.html: without --out, this argument is an existing page"),
        (("--script", "mine.py", "page.html"), "to write a new one, give --out page.html"),
        (("--script", "mine.py", "page.html", "--", "3"), "(page.html): write arguments of the script after --"),
        (("page.html", "--", "3"), "(page.html): name the program with --bench or --script"),
        (("--script", "mine.py", "--size", "3"), "Write arguments of the script after --"),
    ],
)
def test_only_what_comes_after_two_dashes_is_for_a_script(
    kernbench: Run, arguments: tuple[str, ...], told: str
) -> None:
    Path("mine.py").write_text(SCRIPT)
    ran = kernbench("web", *SMALL, *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert told in ran.err
    assert not list(Path().glob("*.html"))


def test_a_run_is_stopped_by_its_limits(kernbench: Run) -> None:
    ran = kernbench("web", *SMALL, *GEMM, "--max-sim-ns", "10")
    assert ran.code == 1
    assert "--max-sim-ns 10" in ran.err
    assert Path("report.html").exists()


def test_a_run_that_fails_has_a_page_and_ends_with_1(kernbench: Run) -> None:
    Path("mine.py").write_text(
        'def run(torch):\n    torch.zeros(64, dtype="f16", name="x")\n    raise ValueError("no")\n'
    )
    ran = kernbench("web", *SMALL, "--bench", "mine.py")
    assert ran.code == 1
    assert "mine.py:3" in ran.err
    assert Path("report.html").exists()


INTERRUPTED = """
def run(torch):
    torch.zeros(64, dtype="f16", name="x")
    raise KeyboardInterrupt
"""


def test_a_run_that_is_interrupted_has_a_page_as_far_as_it_got(kernbench: Run) -> None:
    Path("mine.py").write_text(INTERRUPTED)
    ran = kernbench("web", *SMALL, "--bench", "mine.py", "--json")
    document = json.loads(ran.out)
    assert (ran.code, document["status"], document["page"]) == (130, "INTERRUPTED", "report.html")
    assert document["sim_ns"] > 0
    assert "interrupted: the page shows the run until then" in ran.err
    assert Path("report.html").exists()


def test_a_run_that_is_interrupted_is_not_served(kernbench: Run, served: list[Watcher]) -> None:
    Path("mine.py").write_text(INTERRUPTED)
    ran = kernbench("web", *SMALL, "--bench", "mine.py", "--port", "0")
    assert (ran.code, served) == (130, [])
    assert "interrupted: without --out, no page is written" in ran.err
    assert "http" not in ran.out


def test_an_explanation_that_is_interrupted_leaves_no_page(kernbench: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_explanation, "explain_run", interrupt)
    ran = kernbench("web", *SMALL, *GEMM)
    assert (ran.code, ran.out) == (130, "")
    assert "interrupted before a page was written" in ran.err
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--bench", "gemm-singel-pe"), "gemm-single-pe"),
        (("--set", "bench.m=64"), "--bench"),
        (("--out", "no/such/folder.html"), "no/such/folder.html"),
        (("--bench", "gemm-single-pe", "--device", "sip:7"), "sip:7"),
        (("page.html",), "--port"),
        (("page.html", "--port", "0"), "page.html"),
        (("page.html", "--port", "0", "--bench", "gemm-single-pe"), "page.html"),
        (("--port", "70000"), "70000"),
        (("--ccl", "no.yaml"), "--bench"),
        (("--bench", "ccl-allreduce", "--ccl", "no.yaml"), "no.yaml"),
        (("page.html", "--port", "0", "--ccl", "ccl.yaml"), "page.html"),
        (("page.html", "--port", "0", "--from-load"), "page.html"),
        (("page.html", "--port", "0", "--device", "sip:0"), "page.html"),
        (("one.html", "two.html"), "one.html two.html"),
        (("--", "3"), "only a script takes arguments"),
        (("--set", "torch.cubes=2"), "--bench"),
        (("--max-wall-s", "3"), "--max-wall-s"),
        (("--as-cuda",), "--script"),
        (("--bench", "gemm-single-pe", "--script", "mine.py"), "give one of them"),
        (("--bench", "gemm-single-pe", "--set", "torch.cube=2"), "cubes"),
        (("--script", "mine.py"), "mine.py"),
    ],
)
def test_bad_input_ends_with_2(kernbench: Run, arguments: tuple[str, ...], told: str) -> None:
    ran = kernbench("web", *arguments)
    assert ran.code == 2
    assert told in ran.err
    assert not list(Path().iterdir())


CCL = """
defaults: {{algorithm: mine}}
algorithms:
  mine: {{module: kernbench.ccl.algorithms.ring_allreduce, topology: ring_1d, n_elem: 64, buffer_kind: {kind}}}
"""


def test_collectives_work_as_ccl_says(kernbench: Run) -> None:
    """The same time as ``run`` gives with the same file, and another one with another file."""
    times = {}
    two = ("--set", "sip.cube_mesh.w=1", "--set", "sip.cube_mesh.h=1", "--set", "system.sips.count=2")
    for kind in ("tcm", "hbm"):
        Path("mine.yaml").write_text(CCL.format(kind=kind))
        arguments = ("--bench", "ccl-allreduce", "--ccl", "mine.yaml", *two, "--json")
        web, run = kernbench("web", *arguments), kernbench("run", *arguments)
        assert (web.code, run.code) == (0, 0)
        times[kind] = json.loads(web.out)["sim_ns"]
        assert times[kind] == json.loads(run.out)["sim_ns"]
    assert times["tcm"] != times["hbm"]


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ('    torch.zeros(64, dtype="f16", name="x")\n    assert False, "numbers are off"', "numbers are off"),
        ("    assert 1 == 2", "AssertionError"),
        ("    pass", "no request"),
    ],
)
@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_a_run_that_went_wrong_says_so(kernbench: Run, program: str, told: str, as_json: tuple[str, ...]) -> None:
    Path("mine.py").write_text(f"def run(torch):\n{program}\n")
    ran = kernbench("web", *SMALL, "--bench", "mine.py", *as_json)
    assert ran.code == 1
    assert told in ran.err
    assert Path("report.html").exists()
    if as_json:
        assert json.loads(ran.out)["status"] in {"FAILED", "NO_REQUESTS"}


def test_a_port_that_is_taken_is_found_before_the_run(kernbench: Run) -> None:
    with PageServer(Shelf(), 0) as other:
        ran = kernbench("web", *GEMM, "--port", str(other.server_address[1]))
    assert ran.code == 2
    assert "--port" in ran.err


def test_a_served_run_is_not_written(kernbench: Run, served: list[Watcher]) -> None:
    ran = kernbench("web", *SMALL, *GEMM, "--port", "0")
    assert ran.code == 130
    assert served[0].server.shelf.page.startswith(b"<!doctype html>")
    assert served[0].server.url in ran.out
    assert not list(Path().iterdir())


def test_a_page_that_is_there_is_served(kernbench: Run, served: list[Watcher]) -> None:
    kernbench("web", *SMALL)
    ran = kernbench("web", "report.html", "--port", "0")
    assert ran.code == 130
    assert served[0].source.files == (Path("report.html"),)
    assert b"kernbench-version" in served[0].server.shelf.page
    ran = kernbench("web", "report.html", "--port", "0", "--json")
    assert json.loads(ran.out) == {"page": "report.html", "url": served[1].server.url}
