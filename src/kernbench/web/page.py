"""The page as a file: markup, style, scripts and data put into one."""

from __future__ import annotations

import html
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from kernbench import __version__
from kernbench.common.files import replacing, writable
from kernbench.topology.builder import Topology
from kernbench.web.machine_view import machine_view, source_name
from kernbench.web.observer import ObservedRun
from kernbench.web.packing import Pack
from kernbench.web.run_view import notice_of, run_view

# In the order in which they need each other.
SCRIPTS = (
    "core.js",
    "format.js",
    "colours.js",
    "data.js",
    "state.js",
    "camera.js",
    "scene.js",
    "heat.js",
    "map.js",
    "details.js",
    "timebar.js",
    "tracks.js",
    "timeline.js",
    "path.js",
    "tables.js",
    "live.js",
    "main.js",
)


@dataclass(frozen=True, slots=True)
class Page:
    """A page, and the configuration that it was made from."""

    content: str
    title: str
    config: str

    @property
    def nbytes(self) -> int:
        """How large the file is."""
        return len(self.content.encode())

    def write(self, path: str | Path) -> None:
        """Write the file, and beside it ``NAME.config.yaml`` with the machine. InputError when that cannot be."""
        place = writable(path)
        with replacing(place) as temporary:
            temporary.write_text(self.content, encoding="utf-8", newline="\n")
        with replacing(place.with_name(f"{place.name}.config.yaml")) as temporary:
            temporary.write_text(f"# kernbench {__version__}: {self.title}\n{self.config}", encoding="utf-8")


def make_page(machine: Topology, run: ObservedRun | None = None) -> Page:
    """The page of a machine, and of a run on it if there is one. Equal runs give equal pages."""
    pack = Pack()
    # A run that ended before any time had passed has nothing to show but its end.
    view = None if run is None or not run.end_ps else run_view(run, pack)
    title = one_line(source_name(machine) if run is None else f"{run.result.bench} on {source_name(machine)}")
    notice = "" if run is None else notice_of(run)
    data = pack.text({"version": __version__, "machine": machine_view(machine), "run": view, "notice": notice})
    return Page(_filled(title, data), title, machine.resolved_yaml())


def one_line(text: str) -> str:
    """A text with what cannot be seen in it, such as a line break, as an escape."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _filled(title: str, data: str) -> str:
    """The markup with everything in it. Neither base64 nor our own scripts can end a ``script`` element."""
    scripts = "\n".join(f"// ---- {name}\n{_asset(name)}" for name in SCRIPTS)
    parts = {
        "TITLE": html.escape(f"{title} · kernbench"),
        "STYLE": _asset("style.css"),
        "DATA": data,
        "SCRIPTS": scripts,
    }
    page = _asset("page.html")
    for name, content in parts.items():
        page = page.replace(f"<!-- {name} -->", content, 1)
    return page


def _asset(name: str) -> str:
    return (resources.files("kernbench.web") / "assets" / name).read_text(encoding="utf-8")
