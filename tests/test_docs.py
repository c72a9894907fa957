"""Tests that links of the documentation lead somewhere, and that its site is built and loads nothing from elsewhere."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from kernbench.common.config_keys import list_paths
from kernbench.topology.builder import read_spec
from kernbench.topology.spec import TopologySpec
from kernbench.triton_emu.tl_context import TLContext

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
HOOKS = ("scripts/docs_hooks.py", "scripts/docs_reference.py")
QUOTED = re.compile(r"`[^`\n]*`")
needs_mkdocs = pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="the extra docs is not installed")


def anchors(page: Path) -> set[str]:
    """Return what a link to a part of a page can name: its headings, as GitHub and mkdocs write them."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def find_broken_links(page: Path) -> Iterator[str]:
    for target, anchor in LINK.findall(QUOTED.sub("", FENCED.sub("", page.read_text(encoding="utf-8")))):
        if re.match(r"[a-z]+:", target):
            continue
        file = page.parent / target if target else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            yield f"{page.relative_to(ROOT)}: {target}{'#' * bool(anchor)}{anchor}"


def test_links_lead_somewhere() -> None:
    assert len(PAGES) > 60
    assert [broken for page in PAGES for broken in find_broken_links(page)] == []


def test_broken_links_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    page = tmp_path / "a.md"
    page.write_text("# On `it`\n[x](a.md#on-it) [y](#on-it) [z](https://x.y) [1](b.md) [2](a.md#off) [3](#off)\n")
    assert list(find_broken_links(page)) == ["a.md: b.md", "a.md: a.md#off", "a.md: #off"]


def test_site_lists_every_page() -> None:
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]))
    docs = ROOT / "docs"
    pages = {page.relative_to(docs).as_posix() for folder in (docs, docs / "reference") for page in folder.glob("*.md")}
    generated = {"index.md", "contributing.md", "changelog.md", "decisions/index.md"}
    generated |= {"reference/command-line.md", "reference/configuration.md"}
    assert listed == pages | generated


class Loads(HTMLParser):
    """What a page loads: scripts, styles, pictures, frames; not what it links to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in {"a", "form"}:
            self.found += [text or "" for name, text in attrs if name in {"src", "srcset", "href", "data", "poster"}]


def build(folder: Path, project: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)


@pytest.mark.slow
@needs_mkdocs
def test_site_is_complete_and_loads_nothing_from_other_hosts(tmp_path: Path) -> None:
    done = build(tmp_path)
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 60
    loaded = []
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text(encoding="utf-8"))
        loaded += [text for text in loads.found if re.match(r"(https?:)?//", text)]
    assert loaded == []
    styles = [
        text for sheet in tmp_path.rglob("*.css") for text in re.findall(r"(?:url\(|@import )[^;)]*", sheet.read_text())
    ]
    assert [text for text in styles if "//" in text] == []
    reference = (tmp_path / "reference" / "machines.html").read_text(encoding="utf-8")
    assert "Pseudo-channels of a slice." in reference
    library = (tmp_path / "reference" / "library.html").read_text(encoding="utf-8")
    names = re.findall(
        r"from kernbench\.library\S* import \w+ as (\w+)", (ROOT / "src/kernbench/__init__.py").read_text()
    )
    assert [name for name in names if f'id="kernbench.{name}"' not in library] == []
    assert (tmp_path / "source" / "examples" / "pytorch" / "train.py").read_text() == (
        ROOT / "examples/pytorch/train.py"
    ).read_text()
    assert "accepted" in (tmp_path / "decisions" / "index.html").read_text(encoding="utf-8")
    searched = (tmp_path / "search" / "search_index.json").read_text(encoding="utf-8")
    calls = [name for name in dir(TLContext) if not name.startswith("_")]
    assert len(calls) > 50
    assert [
        name for name in (*list_paths(TopologySpec, read_spec("default", ())), *calls) if name not in searched
    ] == []


@pytest.mark.slow
@needs_mkdocs
def test_broken_links_end_the_build(tmp_path: Path) -> None:
    project = tmp_path / "project"
    for name in ("docs", "scripts", "examples", "src/kernbench"):
        (project / name).mkdir(parents=True)
    for name in ("mkdocs.yml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "src/kernbench/__init__.py", *HOOKS):
        shutil.copy(ROOT / name, project / name)
    shutil.copytree(ROOT / "docs", project / "docs", dirs_exist_ok=True)
    shutil.copytree(ROOT / "examples", project / "examples", dirs_exist_ok=True)
    for page in (project / "docs" / "reference").glob("*.md"):  # the reference takes long, and is built above
        page.write_text(page.read_text().partition(":::")[0])
    assert build(tmp_path / "good", project).returncode == 0
    with (project / "docs" / "parts.md").open("a") as page:
        page.write("\n[x](nowhere.md) [y](cli.md#nothing) [z](../examples/none.py)\n")
    done = build(tmp_path / "bad", project)
    assert done.returncode != 0
    assert [line for line in ("'nowhere.md'", "'#nothing'", "'../examples/none.py'") if line not in done.stderr] == []
