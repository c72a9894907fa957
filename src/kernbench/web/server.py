"""Serve a page to the browsers of this computer, and rebuild it when a file of its source changes.

Browsers poll for a new version.
"""

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
    """The served page: the last good one, with a message if a newer one failed. Shared between threads."""

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
        """Keep serving the page, with a message why there is no newer one."""
        with self._lock:
            self._message = message

    @property
    def page(self) -> bytes:
        """The page with its version mark."""
        with self._lock:
            return self._content

    @property
    def news(self) -> bytes:
        """Version and message as JSON."""
        with self._lock:
            return json.dumps({"version": self._version, "message": self._message}).encode()


class PageServer(ThreadingHTTPServer):
    """Serves a shelf: its page at ``/``, its version and message at ``/version``."""

    daemon_threads = True

    def __init__(self, shelf: Shelf, port: int) -> None:
        self.shelf = shelf
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            why = error.strerror if isinstance(error, OSError) else "a port is a number from 0 to 65535"
            raise InputError(f"--port {port}: cannot listen on this port: {why}") from error

    @property
    def url(self) -> str:
        """The address for a browser."""
        return f"http://{HOST}:{self.port}/"

    @property
    def port(self) -> int:
        """The port of the server."""
        return int(self.server_address[1])

    @property
    def names(self) -> frozenset[str]:
        """The host names that a request may use: this computer, with the port; browsers omit port 80."""
        return frozenset(f"{name}:{self.port}" for name in NAMES) | frozenset(NAMES if self.port == HTTP_PORT else ())


class _Handler(BaseHTTPRequestHandler):
    """Answers requests for the page and for its version."""

    server: PageServer
    server_version = "kernbench"
    sys_version = ""

    def do_GET(self) -> None:
        """Send the page, its version, or 404."""
        self._answer(with_content=True)

    def do_HEAD(self) -> None:
        """Send the headers of a GET response."""
        self._answer(with_content=False)

    def do_POST(self) -> None:
        """Refuse the request: the server is read-only."""
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
        answer = answers.get(self.path.partition("?")[0])
        if answer is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        kind, content = answer
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if with_content:
            self.wfile.write(content)

    def _is_asked_by_name(self) -> bool:
        """Return True if the request names this server.

        Otherwise, a foreign site could resolve its own host name to this computer and read the served page.
        """
        hosts = self.headers.get_all("Host", [])
        return len(hosts) == 1 and hosts[0].strip().lower() in self.server.names

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as http.server calls it
        """Log nothing: a page polls every second."""


PAUSE_S = 0.5

Stamp = tuple[int, int] | None


def _stamp(path: Path) -> Stamp:
    """Return time and size of a file, which detect changes; None without a file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


@state
class Watcher:
    """Puts a new page on a server's shelf when a file of its source changes."""

    source: PageSource
    server: PageServer
    _seen: list[Stamp] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._seen = self._stamps()

    def look(self) -> str | None:
        """Rebuild the page if a file changed. Return the error or an empty text, or None without a change."""
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
    """Serve until interrupted, and report every change to ``tell``."""
    with watcher.server as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            while True:
                message = watcher.look()
                if message is not None:
                    tell(message or "changed: browsers load the new page")
                time.sleep(PAUSE_S)
        finally:
            server.shutdown()
