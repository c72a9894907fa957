"""The page as a file: markup, style, scripts and data in one. A written page can be read again."""

from __future__ import annotations

import html
from importlib import resources
from pathlib import Path
from typing import Protocol

from kernbench.common import __version__
from kernbench.common.errors import InputError
from kernbench.common.files import read_input, replacing, writable
from kernbench.common.values import value
from kernbench.topology.builder import Topology
from kernbench.web.activity import ObservedRun
from kernbench.web.machine_view import source_name, view_machine
from kernbench.web.packing import Pack
from kernbench.web.run_view import view_run

# The page polls for news if this mark has a version.
MARK = '<meta name="kernbench-version" content="">'

STYLES = ("style.css", "dock.css")
# In order of dependency.
SCRIPTS = (
    "core.js",
    "colours.js",
    "data.js",
    "state.js",
    "camera.js",
    "scene.js",
    "heat.js",
    "map.js",
    "head.js",
    "details.js",
    "timebar.js",
    "tracks.js",
    "timeline.js",
    "path.js",
    "roofline.js",
    "tables.js",
    "main.js",
)


@value
class Page:
    """A page and the configuration of its machine."""

    content: str
    title: str
    config: str

    @property
    def nbytes(self) -> int:
        """The size of the file."""
        return len(self.content.encode())

    def write(self, path: str | Path) -> None:
        """Write the file and, beside it, ``NAME.config.yaml`` with the machine. Raises InputError if that fails."""
        place = writable(path)
        with replacing(place) as temporary:
            temporary.write_text(self.content, encoding="utf-8", newline="\n")
        with replacing(place.with_name(f"{place.name}.config.yaml")) as temporary:
            temporary.write_text(f"# kernbench {__version__}: {self.title}\n{self.config}", encoding="utf-8")


def make_page(machine: Topology, run: ObservedRun | None = None) -> Page:
    """Make the page of a machine and, optionally, of a run on it. Equal runs give equal pages."""
    pack = Pack()
    # A run that ended at time 0 has only its end to show.
    view = None if run is None or not run.end_ps else view_run(run, pack)
    title = escape_unseen(source_name(machine) if run is None else f"{run.bench} on {source_name(machine)}")
    wired = {} if run is None else run.engine.machine.network.links
    data = pack.text(
        {
            "version": __version__,
            "machine": view_machine(machine, wired),
            "run": view,
            "notice": run.notice if run else "",
        }
    )
    return Page(_fill(title, data), title, machine.resolved_yaml())


def escape_unseen(text: str) -> str:
    """Write invisible characters of a text, such as line breaks, as escapes."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _fill(title: str, data: str) -> str:
    """Insert everything into the markup. Neither base64 nor the page's scripts can close a ``script`` element."""
    scripts = "\n".join(f"// ---- {name}\n{_asset(name)}" for name in SCRIPTS)
    parts = {
        "TITLE": html.escape(f"{title} · kernbench"),
        "STYLE": "\n".join(map(_asset, STYLES)),
        "DATA": data,
        "SCRIPTS": scripts,
    }
    page = _asset("page.html")
    for name, content in parts.items():
        page = page.replace(f"<!-- {name} -->", content, 1)
    return page


def _asset(name: str) -> str:
    return (resources.files("kernbench.web") / "assets" / name).read_text(encoding="utf-8")


class PageSource(Protocol):
    """Provides a page, and the files that it depends on."""

    @property
    def files(self) -> tuple[Path, ...]:
        """The files to watch for changes."""

    def content(self) -> str:
        """Return the current page. Raises KernbenchError if there is none."""


@value
class FileSource:
    """A page that exists as a file."""

    path: Path

    @property
    def files(self) -> tuple[Path, ...]:
        """The file of the page."""
        return (self.path,)

    def content(self) -> str:
        """Read the file. Raises InputError if it cannot be read or is no complete page."""
        try:
            content = read_input(self.path, most=None).decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{self.path}: cannot be read: it is not UTF-8 text") from error
        if MARK not in content or not content.rstrip().endswith("</html>"):
            raise InputError(f"{self.path}: not a complete page; write one with: kernbench web --out {self.path}")
        return content
