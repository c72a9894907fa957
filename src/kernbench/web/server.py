"""Serve a page to the browsers of this machine, which are told when there is a new one; make it anew when a file
that it was made from changes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import field
from hashlib import sha256
from http import HTTPStatus
from http.client import HTTP_PORT
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from kernbench.common.errors import InputError, KernbenchError
from kernbench.common.values import state
from kernbench.web.page import MARK, PageSource

HOST = "127.0.0.1"
NAMES = (HOST, "localhost", "[::1]")


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
        """Answer with the page, its version, or nothing of that name."""
        self._answer(with_content=True)

    def do_HEAD(self) -> None:
        """Answer as GET would, without the content."""
        self._answer(with_content=False)

    def do_POST(self) -> None:
        """Refuse: nothing can be changed here."""
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


PAUSE_S = 0.5

Stamp = tuple[int, int] | None


def _stamp(path: Path) -> Stamp:
    """Return the time and size of a file, which change when it does; None while there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


@state
class Watcher:
    """Puts a new page on a server's shelf when a file of its source has changed."""

    source: PageSource
    server: PageServer
    _seen: list[Stamp] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._seen = self._stamps()

    def look(self) -> str | None:
        """Make a new page if a file has changed; return the error, empty without one, None when nothing has changed."""
        now = self._stamps()
        if now == self._seen:
            return None
        self._seen = now
        try:
            self.server.shelf.put(self.source.content())
        except KernbenchError as error:
            self.server.shelf.complain(str(error))
            return str(error)
        return ""

    def _stamps(self) -> list[Stamp]:
        return [_stamp(path) for path in self.source.files]


def serve(watcher: Watcher, tell: Callable[[str], None]) -> None:
    """Serve until interrupted, and ``tell`` of every change."""
    with watcher.server as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            while True:
                found = watcher.look()
                if found is not None:
                    tell(found or "changed: browsers show the new page")
                time.sleep(PAUSE_S)
        finally:
            server.shutdown()
