"""Serving a page to this machine's browsers, and telling them when there is a new one."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import sha256
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any

from kernbench.common.errors import InputError

HOST = "127.0.0.1"
# The page asks for news when it finds a version in its mark.
MARK = '<meta name="kernbench-version" content="">'


@dataclass(slots=True)
class Shelf:
    """What is served: the last good page, and a message when making a newer one failed. Shared between threads."""

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
        """Where a browser finds it."""
        return f"http://{HOST}:{self.server_address[1]}/"


class _Handler(BaseHTTPRequestHandler):
    """Answers requests for the page and for its version."""

    server: PageServer
    server_version = "kernbench"
    sys_version = ""

    def do_GET(self) -> None:
        """The page, its version, or nothing of that name."""
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
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as http.server calls it
        """Say nothing: a page asks every second."""
