"""Making a page anew when what it was made from changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

from kernbench.common.errors import KernbenchError
from kernbench.web.server import PageServer
from kernbench.web.source import Source

PAUSE_S = 0.5

Stamp = tuple[int, int] | None


def _stamp(path: Path) -> Stamp:
    """What changes when a file does: time and size; None while there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


@dataclass(slots=True)
class Watcher:
    """Puts a new page on a server's shelf when a file of its source has changed."""

    source: Source
    server: PageServer
    _seen: list[Stamp] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._seen = self._stamps()

    def look(self) -> str | None:
        """None when nothing has changed; else what came of making a new page: nothing to say, or an error."""
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
