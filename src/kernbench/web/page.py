"""The page as a file: markup, style, scripts and data put into one; and served to the browsers of this machine, which
are told when there is a new one."""

from __future__ import annotations

import html
import json
from dataclasses import field
from hashlib import sha256
from http import HTTPStatus
from http.client import HTTP_PORT
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from threading import Lock
from typing import Any

from kernbench.common import __version__
from kernbench.common.errors import InputError
from kernbench.common.files import replacing, writable
from kernbench.common.values import state, value
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


@value
class Page:
    """A page, and the configuration that it was made from."""

    content: str
    title: str
    config: str

    @property
    def nbytes(self) -> int:
        """The size of the file."""
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
    wired = {} if run is None else run.engine.machine.network.links
    data = pack.text({"version": __version__, "machine": machine_view(machine, wired), "run": view, "notice": notice})
    return Page(_fill(title, data), title, machine.resolved_yaml())


def one_line(text: str) -> str:
    """A text with what cannot be seen in it, such as a line break, as an escape."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _fill(title: str, data: str) -> str:
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


HOST = "127.0.0.1"
NAMES = (HOST, "localhost", "[::1]")
# The page asks for news when it finds a version in its mark.
MARK = '<meta name="kernbench-version" content="">'


@state
class Shelf:
    """The page that is served: the last good one, and a message when a newer one failed. Shared between threads."""

    _content: bytes = b""
    _version: str = ""
    _message: str = ""
    _lock: Lock = field(default_factory=Lock)

    def put(self, page: str) -> None:
        """Serve this page from now on."""
        version = sha256(page.encode()).hexdigest()[:16]
        marked = page.replace(MARK, MARK.replace('content=""', f'content="{version}"'), 1)
        with self._lock:
            self._content, self._version, self._message = marked.encode(), version, ""

    def complain(self, message: str) -> None:
        """Keep the page, and let it show why there is no newer one."""
        with self._lock:
            self._message = message

    @property
    def page(self) -> bytes:
        """The page, marked with its version."""
        with self._lock:
            return self._content

    @property
    def news(self) -> bytes:
        """Version and message, as JSON."""
        with self._lock:
            return json.dumps({"version": self._version, "message": self._message}).encode()


class PageServer(ThreadingHTTPServer):
    """Serves a shelf at ``/``, and at ``/version`` what is on it."""

    daemon_threads = True

    def __init__(self, shelf: Shelf, port: int) -> None:
        self.shelf = shelf
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            why = error.strerror if isinstance(error, OSError) else "a port is a number from 0 to 65535"
            raise InputError(f"--port {port}: cannot be listened on: {why}") from error

    @property
    def url(self) -> str:
        """The address for a browser."""
        return f"http://{HOST}:{self.port}/"

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return int(self.server_address[1])

    @property
    def names(self) -> frozenset[str]:
        """The names a request may call it: this computer, with the port; browsers leave out port 80."""
        return frozenset(f"{name}:{self.port}" for name in NAMES) | frozenset(NAMES if self.port == HTTP_PORT else ())


class _Handler(BaseHTTPRequestHandler):
    """Answers requests for the page and for its version."""

    server: PageServer
    server_version = "kernbench"
    sys_version = ""

    def do_GET(self) -> None:
        """The page, its version, or nothing of that name."""
        self._answer(with_content=True)

    def do_HEAD(self) -> None:
        """Answer as GET would, without the content."""
        self._answer(with_content=False)

    def do_POST(self) -> None:
        """Nothing can be changed here."""
        self.send_response(HTTPStatus.METHOD_NOT_ALLOWED)
        self.send_header("Allow", "GET, HEAD")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_POST  # noqa: N815 - as http.server calls them

    def _answer(self, *, with_content: bool) -> None:
        if not self._is_asked_by_name():
            self.send_error(
                HTTPStatus.MISDIRECTED_REQUEST, explain=f"this server answers to {self.server.url} and to localhost"
            )
            return
        answers = {"/": ("text/html; charset=utf-8", self.server.shelf.page)}
        answers["/version"] = ("application/json", self.server.shelf.news)
        found = answers.get(self.path.partition("?")[0])
        if found is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        kind, content = found
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if with_content:
            self.wfile.write(content)

    def _is_asked_by_name(self) -> bool:
        """Tell whether the request names this server.

        A page of somebody else can have its own name resolved to this computer, and would then read what is served.
        """
        given = self.headers.get_all("Host", [])
        return len(given) == 1 and given[0].strip().lower() in self.server.names

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as http.server calls it
        """Say nothing: a page asks every second."""
